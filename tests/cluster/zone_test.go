package cluster

import (
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestZone has all nodes of a zone ask at once for a block that one node of another zone has, over a link that takes a tenth
// of a second for it: all get the right bytes, and the block crosses the link once.
func TestZone(t *testing.T) {
	const size = 4 * mib
	nodes := few(6, 4)
	w := newWorld(t, harness.ClusterOptions{Nodes: nodes, PeerTimeout: patient, Flags: func(node int) []string {
		return []string{"--zone", []string{"far", "near"}[min(node, 1)]}
	}})
	if out, err := w.Net.Net.Run(0, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "400mbit", "burst", "256kb", "latency", "100ms"); err != nil {
		harness.Skip(t, "this kernel cannot slow down a link: %v\n%s", err, out)
	}
	for i := range 10 { // on a busy machine the node that fetches it may take too long
		lent, _ := w.readAtOnce(block("zone-%d", i), size)
		t.Logf("the node in the other zone sent the block %v times to %d readers", lent, nodes-1)
		if lent == 1 {
			return
		}
	}
	t.Error("each block crossed the boundary more than once")
}
