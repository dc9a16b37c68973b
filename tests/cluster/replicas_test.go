package cluster

import (
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// containsLine reports whether one line of text has all the words.
func containsLine(text string, words ...string) bool {
	for line := range strings.Lines(text) {
		found := 0
		for _, word := range words {
			if strings.Contains(line, word) {
				found++
			}
		}
		if found == len(words) {
			return true
		}
	}
	return false
}

// TestReplicas shows that with replicas: 1 the blocks of a node that is killed can be
// read on the others, from memory or, where there is one, from SSD.
func TestReplicas(t *testing.T) {
	for _, disk := range []string{"", "256MiB"} {
		t.Run("disk="+disk, func(t *testing.T) {
			w := newWorld(t, harness.ClusterOptions{
				Options: harness.Options{Disk: disk}, PeerTimeout: patient,
				Flags: func(int) []string { return []string{"--replicas", "1"} },
			})
			a, b, c := w.Nodes[0], w.Nodes[1], w.Nodes[2]
			w.waitCopies(6, w.Nodes...) // The first block of each node and its copy.
			before := copies(b) + copies(c)
			versions := w.fill(a, "replica", 24, 256*kib)
			w.waitCopies(before+int64(len(versions)), b, c)
			if disk != "" {
				w.spill(b, c)
			}
			w.WaitQuiet() // Now they know of each other's copies.
			a.Kill()
			for name, version := range versions {
				for _, n := range []*harness.Node{b, c} {
					if got := w.mustRead(n, name); got != version {
						t.Errorf("%s on %s after its writer was killed: got version %d, want %d", name, n.Name, got, version)
					}
				}
			}
			b.WaitState(a, "failed")
			w.agree()
		})
	}
}

// fill writes count blocks on a node and returns their versions.
func (w *world) fill(n *harness.Node, prefix string, count, size int) map[string]uint64 {
	w.t.Helper()
	versions := map[string]uint64{}
	for i := range count {
		name := block("%s-%03d", prefix, i)
		versions[name] = w.mustWrite(n, name, size)
	}
	return versions
}

// spill waits until all blocks of some nodes are on SSD, and drops them from memory.
func (w *world) spill(nodes ...*harness.Node) {
	w.t.Helper()
	for _, n := range nodes {
		harness.Poll(w.t, n.Name+" has all on SSD", func() bool {
			s := n.Status()
			return s.Secondary(w.t, "disk").Blocks >= s.Tiers[0].Blocks
		})
		// What the kernel has not let go of yet stays, and goes the next time.
		harness.Poll(w.t, n.Name+" has none in memory", func() bool {
			if out, errs, code := harness.Kvfs(w.t, "evict", "--tier", "memory", "--all", n.Dir); code != 0 {
				w.t.Fatalf("evict: exit code %d\n%s%s", code, out, errs)
			}
			return copies(n) == 0
		})
	}
}

// TestHolderSSD shows that a block which its only holder has on SSD alone can be read
// on the others.
func TestHolderSSD(t *testing.T) {
	w := newWorld(t, harness.ClusterOptions{Nodes: 2, Options: harness.Options{Disk: "256MiB"}})
	versions := w.fill(w.Nodes[0], "ssd", 8, mib+5)
	w.spill(w.Nodes[0])
	for name, version := range versions {
		w.wantVersion(w.Nodes[1], name, version)
	}
	w.agree()
}
