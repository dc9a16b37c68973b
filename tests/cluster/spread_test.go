package cluster

import (
	"bytes"
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestSpread has all nodes ask at once for a block that one node has, over links that take a third of a second for it. The
// node sends it to a few of them, and those serve the others: all get the right bytes, and the node sends less than it
// would alone.
func TestSpread(t *testing.T) {
	const nodes, size = 9, 16 * mib
	w := newWorld(t, harness.ClusterOptions{Nodes: nodes, PeerTimeout: patient})
	for i := range nodes {
		w.Net.Run(i, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "400mbit", "burst", "256kb", "latency", "100ms")
	}
	name := block("hot-%d", 0)
	w.mustWrite(w.Nodes[0], name, size)
	w.WaitQuiet()
	want, err := os.ReadFile(w.Nodes[0].Path(name))
	if err != nil {
		t.Fatal(err)
	}
	peerStats := func(n *harness.Node) (lent, later float64) {
		for _, s := range n.Status().Raw["secondaries"].([]any) {
			if d, ok := s.(map[string]any)["detail"].(map[string]any); ok && d["lent_blocks"] != nil {
				return d["lent_blocks"].(float64), d["later_answers"].(float64)
			}
		}
		t.Fatal("no tier of peers in the status")
		return 0, 0
	}
	before, _ := peerStats(w.Nodes[0])
	begin := time.Now()
	var g errgroup.Group
	for _, n := range w.Nodes[1:] {
		g.Go(func() error {
			got, err := os.ReadFile(n.Path(name))
			if err == nil && !bytes.Equal(got, want) {
				err = errors.New("other bytes on " + n.Name)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	after, later := peerStats(w.Nodes[0])
	t.Logf("%d nodes had it after %v; the first one sent it %v times and told %v to come back", nodes, time.Since(begin).Round(time.Millisecond), after-before, later)
	if after-before >= nodes-1 || later == 0 {
		t.Errorf("the first node sent the block %v times to %d readers, and told %v to come back", after-before, nodes-1, later)
	}
}
