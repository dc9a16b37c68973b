package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/invariant"
	"github.com/kvfs/kvfs/tiers/names"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// presences asks for the places of some paths at a time.
func (w *world) presences(o names.PresenceOptions, blocks ...string) []names.Place {
	paths := make([][]byte, len(blocks))
	for i, name := range blocks {
		paths[i] = []byte(name)
	}
	out := make([]names.Place, len(blocks))
	for i := range out {
		out[i] = names.Place{Presence: driver.Hit, Tier: 99, Late: true} // to be overwritten
	}
	w.e.Presences(paths, o, out)
	return out
}

// states is presences as the letters of docs/control.md: m, 1 and 2 are hits in memory and in
// the tiers below.
func (w *world) states(o names.PresenceOptions, names ...string) string {
	var s strings.Builder
	for _, p := range w.presences(o, names...) {
		switch {
		case p.Late && p.Presence == driver.Miss:
			s.WriteByte('l')
		case p.Presence == driver.Hit && p.Tier == 0:
			s.WriteByte('m')
		case p.Presence == driver.Hit:
			s.WriteByte('0' + p.Tier)
		case p.Presence == driver.Pending:
			s.WriteByte('w')
		default:
			s.WriteByte('.')
		}
	}
	return s.String()
}

// wantStates compares states.
func (w *world) wantStates(want string, blocks ...string) {
	w.t.Helper()
	if got := w.states(names.PresenceOptions{}, blocks...); got != want {
		w.t.Errorf("states of %q: %q, want %q", blocks, got, want)
	}
}

// TestPresences: each state that a name can be in, in batches over several directories (A15,
// A26), and that blocks of one group are not found in another (C20).
func TestPresences(t *testing.T) {
	refs := []*tiertest.Reference{tiertest.NewReference(t, tiertest.ReferenceOptions{}), tiertest.NewReference(t, tiertest.ReferenceOptions{})}
	w := openLower(t, shmDir(t), state.Options{CapacityBytes: 64 * page}, refs...)
	must(t, w.mkdir("g"), w.mkdir("g/sub"), w.mkdir("h"), w.put(10, "top", []byte("x")), w.put(10, "g/a", []byte("x")))
	w.nonresident("x", "g/b", "g/sub/c")
	w.nonresident("x", "h/second")
	w.evict("disk", "h/second")
	w.wantWhere("h/second", "[peer]")

	f, err := w.create(10, "g/new", true, true) // being written under its final name
	must(t, err)
	temp, err := w.create(10, "g/x.tmp", true, true)
	must(t, err)
	w.wantStates("m", "top")
	w.wantStates("m1w1.2w", "g/a", "g/b", "g/new", "g/sub/c", "h/a", "h/second", "g/x.tmp")
	// Neighbours in the same directory, and a change of the directory between them.
	w.wantStates("m1.m1m", "g/a", "g/b", "g/none", "g/a", "g/b", "top")
	// What cannot be a block.
	w.wantStates("..........", "", "g", "g/", "/g/a", "/top", "g//a", "g/./a", "g/sub/../a", "g/a/x", strings.Repeat("x", 300))
	w.wantStates("....", ".kvfs", ".kvfs/status", "\x00", "none/at/all")
	w.wantStates("")

	// A name that is written anew is pending.
	shadow := w.writing(20, "g/a", true)
	shadow.rewrite("y", 0)
	w.wantStates("w", "g/a")
	must(t, shadow.close(), w.put(10, "g/t.tmp", []byte("z")))
	late, err := w.openWrite(context.Background(), 10, "g/t.tmp", false)
	must(t, err, w.rename(20, "g/t.tmp", "g/late", false)) // when it is closed
	w.wantStates("mw.", "g/a", "g/late", "g/t.tmp")
	must(t, late.close())
	w.wantStates("m", "g/late")

	must(t, f.close(), temp.close(), w.unlink(10, "g/x.tmp"))
	w.wantStates("m.", "g/new", "g/x.tmp")
	must(t, w.e.SetTTL(resolve(t, w.world, "g/new").ID, time.Nanosecond))
	eventually(t, "its time passes", func() bool { return w.states(names.PresenceOptions{}, "g/new") == "." })

	release := refs[0].Hold(tiertest.OpLoad)
	a := w.found(10, "g/b")
	if _, err := w.e.OpenRead(context.Background(), a.ID, by(10), true); !errors.Is(err, block.ErrPending) {
		t.Fatal(err)
	}
	w.forget(a.ID)
	w.wantStates("w1", "g/b", "g/sub/c")
	release()
	w.quiesce()
	w.wantStates("m", "g/b")
	w.e.Expire()
	w.end()
}

// TestPresencesRemote: what only others have is found, gets no entry, and is late like anything
// else; the name of a file is no directory.
func TestPresencesRemote(t *testing.T) {
	c := newCrowd(t, 2, state.Options{ // its clock stands still, so that what was measured is not too old to count
		Now: newTestClock().now, Groups: map[block.GroupID]state.GroupOptions{"g": {OpenDeadline: time.Minute}},
	})
	defer c.close()
	a, b := c.nodes[0], c.nodes[1]
	must(t, a.mkdir("g"), a.mkdir("g/sub"), a.put(10, "g/x", []byte("content")), a.put(10, "g/sub/y", []byte("content")), b.put(10, "own", []byte("x")))
	c.tell()
	b.wantStates("22.m.", "g/x", "g/sub/y", "g/none", "own", "g/sub")
	if got := b.entries(); got != "own" {
		t.Errorf("entries %q", got)
	}
	b.hear(0, "own/x", driver.Located{Seq: 10, Mode: 0o100644, Size: 3}, true)
	b.wantStates(".", "own/x")
	b.hear(0, "own/x", driver.Located{}, false)

	b.e.Measure("peer", 7, time.Hour)
	b.wantStates("ll", "g/x", "g/sub/y")
	if got := b.states(names.PresenceOptions{Deadline: -1}, "g/x"); got != "2" {
		t.Errorf("without a deadline: %q", got)
	}
	if got := b.states(names.PresenceOptions{Deadline: 10 * time.Hour}, "g/x", "g/sub/y"); got != "22" {
		t.Errorf("with a long one: %q", got)
	}
	b.e.Measure("peer", 1<<40, time.Second)
	b.wantRead("content", "g/x")
	b.wantStates("m2", "g/x", "g/sub/y")
}

// TestBlocks: each block whose bytes this node has is listed once, with its tiers but those of
// other nodes.
func TestBlocks(t *testing.T) {
	c := newCrowdOf(t, state.CascadeAsync, make([]state.Options, 2)...)
	defer c.close()
	a, b := c.nodes[0], c.nodes[1]
	must(t, a.mkdir("g"), a.put(10, "g/far", []byte("1")), a.put(10, "g/both", []byte("12")))
	c.tell()
	must(t, b.mkdir("h"), b.put(10, "h/low", []byte("123")), b.e.Drain(until(t)), b.put(10, "top.tmp", nil))
	b.evictForced("memory", "h/low")
	resolve(t, b.world, "g/far")
	b.wantRead("12", "g/both")
	must(t, b.e.Drain(until(t)))
	got := map[string]string{}
	must(t, b.e.Blocks(context.Background(), func(path string, size int64, tiers []string) error {
		got[path] += fmt.Sprint(size, " ", tiers)
		return nil
	}))
	want := map[string]string{"h/low": "3 [disk]", "g/both": "2 [memory]"}
	if where := strings.Join(b.e.TierNames(resolve(t, b.world, "g/both").ID), " "); where == "memory disk peer" {
		want["g/both"] = "2 [memory disk]"
	}
	if !maps.Equal(got, want) {
		t.Errorf("blocks %v, want %v", got, want)
	}
	fail := errors.New("enough")
	if err := b.e.Blocks(context.Background(), func(string, int64, []string) error { return fail }); !errors.Is(err, fail) {
		t.Errorf("an error of fn: %v", err)
	}
	must(t, b.unlink(10, "top.tmp"))
}

// TestPresencesAllocs: nothing is allocated for what this node has, whatever the directories.
func TestPresencesAllocs(t *testing.T) {
	if invariant.Enabled {
		t.Skip("the checks of this build allocate")
	}
	w, _ := openLowerOne(t, state.Options{LookupLease: time.Hour, OpenDeadline: time.Second}, tiertest.ReferenceOptions{})
	must(t, w.mkdir("h"))
	var paths [][]byte
	for i := range 300 {
		name := fmt.Sprintf("%s/%064d", [...]string{"g", "h"}[i/7%2], i)
		if i < 40 {
			must(t, w.put(10, name, []byte("x")))
		}
		paths = append(paths, []byte(name))
	}
	w.evict("memory", string(paths[3]), string(paths[20]))
	f, err := w.create(10, "g/new", true, true) // so that there is something being written
	must(t, err)
	shadow := w.writing(20, string(paths[0]), true)
	out := make([]names.Place, len(paths))
	if n := testing.AllocsPerRun(20, func() { w.e.Presences(paths, names.PresenceOptions{Lease: true}, out) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if out[3].Tier != 1 || out[39].Presence != driver.Hit || out[40].Presence != driver.Miss {
		t.Errorf("places %v", out[:41])
	}
	must(t, shadow.close(), f.close())
	w.end()
}
