package cluster

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestGraves shows that a node which comes back does not bring back blocks that were removed or
// replaced meanwhile, although it has the old block on SSD and the node that made the change is
// gone. Other blocks do come back.
func TestGraves(t *testing.T) {
	for _, kill := range []bool{false, true} {
		name := "stopped"
		if kill {
			name = "killed"
		}
		t.Run("node was "+name, func(t *testing.T) { testGraves(t, harness.ClusterOptions{}, kill) })
	}
}

// TestGravesOwned does that with nodes that know only a share of what the others have.
func TestGravesOwned(t *testing.T) {
	long(t)
	testGraves(t, owned(harness.ClusterOptions{}), true)
}

func testGraves(t *testing.T, opts harness.ClusterOptions, kill bool) {
	opts.Options = harness.Options{Disk: "256MiB"}
	w := newWorld(t, opts)
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
	w.takeDown(c, kill)
	a.WaitState(c, "failed", "left")

	// What is done to the copies while their origin is away holds for it, too.
	w.remove(a, removed)
	next := w.mustWrite(a, replaced, 50_000)
	w.rename(a, moved, moved+"-to")
	w.wantVersion(b, removed, 0)
	w.wantVersion(b, replaced, next)
	w.wantVersion(b, moved, 0)
	w.WaitQuiet()
	w.takeDown(a, kill)
	b.WaitState(a, "failed", "left")

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

// TestGravesKept shows that what a node has removed or replaced while another one could not be
// reached stays so when they meet again, although the only node that knows of it was
// restarted in between: killed, with its blocks in memory; stopped, with them on SSD.
func TestGravesKept(t *testing.T) {
	for _, tc := range []struct {
		name string
		kill bool
		opts harness.Options
	}{
		{"killed, memory", true, harness.Options{}},
		{"stopped, SSD", false, harness.Options{Disk: "256MiB"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, harness.ClusterOptions{Nodes: 2, Options: tc.opts})
			a, c := w.Nodes[0], w.Nodes[1]
			versions := w.fill(c, "kept", 2, 100_000)
			removed, replaced := block("kept-000"), block("kept-001")
			w.wantVersion(a, removed, versions[removed])
			w.wantVersion(a, replaced, versions[replaced])
			w.WaitQuiet()
			w.Net.Isolate(c.Index)
			a.WaitState(c, "failed")
			c.WaitState(a, "failed")
			w.remove(a, removed)
			next := w.mustWrite(a, replaced, 50_000)
			w.takeDown(a, tc.kill)
			a.Restart()
			w.Net.Heal()
			w.WaitJoined()
			w.wantEverywhere(removed, 0)
			w.wantEverywhere(replaced, next)
			w.agree()
		})
	}
}

func (w *world) takeDown(n *harness.Node, kill bool) {
	w.t.Helper()
	if kill {
		n.Kill()
	} else if code := n.Stop(); code != 0 {
		w.t.Fatalf("stop of %s: exit code %d", n.Name, code)
	}
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

// TestClock runs a node whose clock is an hour fast or slow. Of two versions all nodes read the
// later one, from any writer, and removals are obeyed in both directions. The others know how far its clock is off, and
// that it has other settings.
func TestClock(t *testing.T) {
	for _, offset := range []string{"1h", "-1h"} {
		t.Run(offset, func(t *testing.T) {
			wrong := harness.ClockBinary(t, offset)
			w := newWorld(t, harness.ClusterOptions{Binary: func(node int) string {
				if node == 1 {
					return wrong
				}
				return ""
			}, Flags: func(node int) []string {
				if node == 1 {
					return []string{"--mount-plain-patterns", "*.mine"}
				}
				return nil
			}})
			ahead, err := time.ParseDuration(offset)
			if err != nil {
				t.Fatal(err)
			}
			a, b := w.Nodes[0], w.Nodes[1]
			harness.Poll(t, "node 1 has told its clock", func() bool { return member(a, b.Name).ClockError != 0 })
			if m := member(a, b.Name); !m.SettingsDiffer || math.Abs(m.ClockAhead-ahead.Seconds()) > m.ClockError {
				t.Errorf("%+v, want a clock that is %v ahead, and other settings", m, ahead)
			}
			name := block("clock")
			for i := range 9 {
				n := w.Nodes[(i+1)%3]
				w.wantEverywhere(name, w.mustWrite(n, name, 10_000+i))
				if i%2 == 0 {
					w.remove(w.Nodes[i%3], name)
					w.wantEverywhere(name, 0)
				}
			}
			w.agree()
		})
	}
}

// TestClockMended runs three nodes with an SSD. The clock of one is 30 days fast and that of another two days slow. They obey
// each other's removals. After both clocks are mended, the versions of the fast one are still ahead, which status and doctor
// say. All nodes read what each of them writes, over those versions too, and obey each other's removals, also when the node
// has lost its SSD.
func TestClockMended(t *testing.T) {
	clocks := map[int]string{1: harness.ClockBinary(t, "720h"), 2: harness.ClockBinary(t, "-48h")}
	w := newWorld(t, harness.ClusterOptions{Options: harness.Options{Disk: "256MiB"}, Binary: func(node int) string { return clocks[node] }})
	a, b, c := w.Nodes[0], w.Nodes[1], w.Nodes[2]
	change := func(when string) {
		for i := range 3 {
			writer, remover, name := w.Nodes[i], w.Nodes[(i+1)%3], block("clock-%s-%d", when, i)
			w.wantEverywhere(name, w.mustWrite(writer, name, 10_000))
			w.wantEverywhere(name, w.mustWrite(remover, name, 20_000))
			w.remove(writer, name)
			w.wantEverywhere(name, 0)
		}
	}
	early := block("clock-early")
	w.wantEverywhere(early, w.mustWrite(a, early, 10_000)) // a copy is on the fast node
	w.remove(c, early)
	w.wantEverywhere(early, 0)
	change("wrong")
	old, older := block("clock-old"), block("clock-older")
	w.wantEverywhere(old, w.mustWrite(b, old, 10_000))
	w.wantEverywhere(older, w.mustWrite(b, older, 10_000))

	clear(clocks)
	b.Restart()
	c.Restart()
	w.WaitJoined()
	change("mended")
	w.wantEverywhere(old, w.mustWrite(a, old, 20_000))
	for _, command := range []string{"status", "doctor"} {
		for n, from := range map[*harness.Node]string{a: b.Name, b: "this node"} {
			out, errs, _ := harness.Kvfs(t, command, n.Dir)
			if want := "versions are 7"; !strings.Contains(out, want) || !strings.Contains(out, "ahead of the clock, since one of "+from) {
				t.Errorf("%s of %s: no %q of %s in\n%s%s", command, n.Name, want, from, out, errs)
			}
		}
	}

	b.Kill()
	b.DropMemory()
	removeAll(t, b.DiskDir)
	b.Restart()
	w.WaitJoined()
	change("lost")
	for _, name := range []string{old, older} {
		w.remove(c, name)
		w.wantEverywhere(name, 0)
	}
	w.agree()
}

// removeAll empties a directory.
func removeAll(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	for i := 0; err == nil && i < len(entries); i++ {
		err = os.RemoveAll(filepath.Join(dir, entries[i].Name()))
	}
	if err != nil {
		t.Fatal(err)
	}
}
