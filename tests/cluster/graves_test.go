package cluster

import (
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestGraves shows that a node which comes back does not bring back blocks that were removed or
// replaced meanwhile, although it has the old block on SSD and the node that made the change is
// gone. Other blocks do come back.
func TestGraves(t *testing.T) {
	w := newWorld(t, harness.ClusterOptions{Options: harness.Options{Disk: "256MiB"}})
	a, b, c := w.Nodes[0], w.Nodes[1], w.Nodes[2]
	versions := w.fill(c, "grave", 6, 100_000)
	removed, replaced, moved, kept := block("grave-000"), block("grave-001"), block("grave-002"), block("grave-003")
	w.wantVersion(b, removed, versions[removed]) // A copy, of which the removal must take care, too.
	for _, n := range []*harness.Node{a, b} {
		w.wantVersion(n, replaced, versions[replaced])
	}
	w.wantVersion(a, moved, versions[moved])
	w.spill(c)
	w.WaitQuiet()
	c.Kill()
	a.WaitState(c, "failed")

	// What is done to the copies while their origin is away holds for it, too.
	w.remove(a, removed)
	next := w.mustWrite(a, replaced, 50_000)
	w.rename(a, moved, moved+"-to")
	w.wantVersion(b, removed, 0)
	w.wantVersion(b, replaced, next)
	w.wantVersion(b, moved, 0)
	w.WaitQuiet()
	a.Kill()
	b.WaitState(a, "failed")

	c.Restart() // Only b knows of it.
	w.WaitJoined()
	w.wantEverywhere(removed, 0)
	w.wantEverywhere(moved, 0)
	w.wantEverywhere(replaced, next)
	w.wantEverywhere(kept, versions[kept])
	w.WaitQuiet()
	c.Restart() // Now from its own memory of it.
	w.WaitJoined()
	w.wantEverywhere(removed, 0)
	w.wantEverywhere(moved, 0)
	w.wantEverywhere(kept, versions[kept])
	a.Restart()
	w.WaitJoined()
	for _, n := range w.Nodes {
		w.wantVersion(n, removed, 0)
		w.wantVersion(n, moved+"-to", versions[moved])
		w.wantVersion(n, replaced, next)
	}
	w.agree()
}

// TestLostMemory shows that a node whose memory is lost comes back without the blocks
// that only its memory held: they are misses everywhere, and their names can be used.
func TestLostMemory(t *testing.T) {
	w := newWorld(t, harness.ClusterOptions{})
	a, b := w.Nodes[0], w.Nodes[1]
	versions := w.fill(a, "memory", 4, 10_000)
	w.wantVersion(b, block("memory-000"), versions[block("memory-000")])
	w.WaitQuiet()
	a.Kill()
	a.DropMemory()
	a.Restart()
	w.WaitJoined()
	w.wantEverywhere(block("memory-000"), versions[block("memory-000")])
	for _, name := range []string{block("memory-001"), block("memory-002")} {
		w.wantEverywhere(name, 0)
		w.wantEverywhere(name, w.mustWrite(b, name, 20_000))
	}
	w.agree()
}
