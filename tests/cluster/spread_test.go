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
	const size = 16 * mib
	nodes := few(9, 5)
	w := newWorld(t, harness.ClusterOptions{Nodes: nodes, PeerTimeout: patient})
	for i := range nodes {
		out, err := w.Net.Net.Run(i, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "400mbit", "burst", "256kb", "latency", "100ms")
		if err != nil {
			harness.Skip(t, "this kernel cannot slow down a link: %v\n%s", err, out)
		}
	}
	for i := range 10 { // on a busy machine they may come one after the other
		lent, later := w.readAtOnce(block("hot-%d", i), size)
		t.Logf("the first node sent the block %v times to %d readers, and told %v to come back", lent, nodes-1, later)
		if lent < float64(nodes-1) && later > 0 {
			return
		}
	}
	t.Error("no block has spread")
}

// readAtOnce writes a block on the first node and has all others read it. It returns how often the first node has sent it,
// and told a reader to come back.
func (w *world) readAtOnce(name string, size int) (lent, later float64) {
	w.t.Helper()
	w.mustWrite(w.Nodes[0], name, size)
	w.WaitQuiet()
	want, err := os.ReadFile(w.Nodes[0].Path(name))
	if err != nil {
		w.t.Fatal(err)
	}
	lentBefore, laterBefore := w.lent(w.Nodes[0])
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
		w.t.Fatal(err)
	}
	lent, later = w.lent(w.Nodes[0])
	return lent - lentBefore, later - laterBefore
}

// lent returns how often a node has sent a block to a peer, and told one to come back.
func (w *world) lent(n *harness.Node) (lent, later float64) {
	w.t.Helper()
	for _, s := range n.Status().Raw["secondaries"].([]any) {
		if d, ok := s.(map[string]any)["detail"].(map[string]any); ok && d["lent_blocks"] != nil {
			return d["lent_blocks"].(float64), d["later_answers"].(float64)
		}
	}
	w.t.Fatal("no tier of peers in the status")
	return 0, 0
}

// TestSendRate shows that a node sends no faster than peer.send_rate says, and that its peers still get the right bytes.
func TestSendRate(t *testing.T) {
	const blocks, size, rate, burst = 6, mib / 2, mib, 64 << 10
	w := newWorld(t, harness.ClusterOptions{Nodes: 2, PeerTimeout: patient, Flags: func(node int) []string {
		if node == 0 {
			return []string{"--peer-send-rate", "1MiB"}
		}
		return nil
	}})
	for i := range blocks {
		w.mustWrite(w.Nodes[0], block("rated-%d", i), size)
	}
	w.WaitQuiet()
	began := time.Now()
	for i := range blocks {
		if w.mustRead(w.Nodes[1], block("rated-%d", i)) == 0 {
			t.Errorf("block %d is not there", i)
		}
	}
	if took, least := time.Since(began), time.Duration(blocks*size-burst)*time.Second/rate; took < least {
		t.Errorf("took %v, %v is the least", took, least)
	}
}
