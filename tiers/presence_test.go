package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/invariant"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// presences asks for the places of some paths at a time.
func (w *world) presences(o tiers.PresenceOptions, names ...string) []tiers.Place {
	paths := make([][]byte, len(names))
	for i, name := range names {
		paths[i] = []byte(name)
	}
	out := make([]tiers.Place, len(names))
	for i := range out {
		out[i] = tiers.Place{Presence: driver.Hit, Tier: 99, Late: true} // to be overwritten
	}
	w.e.Presences(paths, o, out)
	return out
}

// states is presences as the letters of docs/control.md: m, 1 and 2 are hits in memory and in
// the tiers below.
func (w *world) states(o tiers.PresenceOptions, names ...string) string {
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
func (w *world) wantStates(want string, names ...string) {
	w.t.Helper()
	if got := w.states(tiers.PresenceOptions{}, names...); got != want {
		w.t.Errorf("states of %q: %q, want %q", names, got, want)
	}
}

// TestPresences: each state that a name can be in, in batches over several directories (A15,
// A26), and that blocks of one group are not found in another (C20).
func TestPresences(t *testing.T) {
	refs := []*tiertest.Reference{tiertest.NewReference(t, tiertest.ReferenceOptions{}), tiertest.NewReference(t, tiertest.ReferenceOptions{})}
	w := openLower(t, shmDir(t), tiers.Options{CapacityBytes: 64 * page}, refs...)
	must(t, w.mkdir("g"), w.mkdir("g/sub"), w.mkdir("h"), w.put(10, "top", []byte("x")), w.put(10, "g/a", []byte("x")))
	w.hollow("x", "g/b", "g/sub/c")
	w.hollow("x", "h/second")
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
	shadow, err := w.openWrite(context.Background(), 20, "g/a", true)
	must(t, err)
	_, err = shadow.h.WriteAt(context.Background(), []byte("y"), 0)
	must(t, err)
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
	eventually(t, "its time passes", func() bool { return w.states(tiers.PresenceOptions{}, "g/new") == "." })

	release := refs[0].Hold(tiertest.OpLoad)
	a, err := w.lookup(10, "g/b")
	must(t, err)
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

// TestPresencesCount: hits and misses are counted as those of look-ups are, if the blocks get a lease.
func TestPresencesCount(t *testing.T) {
	w := open(t, shmDir(t), tiers.Options{})
	defer w.close(false)
	must(t, w.put(10, "a", []byte("x")))
	before := w.e.Stats().Counters
	w.presences(tiers.PresenceOptions{}, "a", "b") // nobody is about to read them
	w.presences(tiers.PresenceOptions{Lease: true}, "a", "b", "a", "c")
	after := w.e.Stats().Counters
	if hits, misses := after.LookupHit-before.LookupHit, after.LookupMisses-before.LookupMisses; hits != 2 || misses != 2 {
		t.Errorf("%d hits, %d misses", hits, misses)
	}
}

// TestPresencesLease: what was asked for with a lease stays while others go; without one it is
// as any other block.
func TestPresencesLease(t *testing.T) {
	for _, lease := range []bool{true, false} {
		clock := newTestClock()
		w := open(t, shmDir(t), tiers.Options{
			CapacityBytes: 4 * page, LookupLease: time.Hour, WriteTimeout: time.Minute, Now: clock.now,
		})
		for i := range 4 {
			must(t, w.put(10, fmt.Sprint(i), fill("1p", "x")))
		}
		clock.add(2 * time.Hour) // the writers' own look-ups
		w.presences(tiers.PresenceOptions{Lease: lease}, "0", "1")
		must(t, w.put(10, "new", fill("1p", "x")), w.put(10, "newer", fill("1p", "x")))
		want := map[bool]string{true: "mm..mm", false: "..mmmm"}[lease]
		if got := w.states(tiers.PresenceOptions{}, "0", "1", "2", "3", "new", "newer"); got != want {
			t.Errorf("lease %v: %q, want %q", lease, got, want)
		}
		w.close(false)
	}
}

// TestPresencesRemote: what only others have is found, gets no entry, and is late like anything
// else; the name of a file is no directory.
func TestPresencesRemote(t *testing.T) {
	c := newCrowd(t, 2, tiers.Options{ // its clock stands still, so that what was measured is not too old to count
		Now: newTestClock().now, Groups: map[block.GroupID]tiers.GroupOptions{"g": {OpenDeadline: time.Minute}},
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
	if got := b.states(tiers.PresenceOptions{Deadline: -1}, "g/x"); got != "2" {
		t.Errorf("without a deadline: %q", got)
	}
	if got := b.states(tiers.PresenceOptions{Deadline: 10 * time.Hour}, "g/x", "g/sub/y"); got != "22" {
		t.Errorf("with a long one: %q", got)
	}
	b.e.Measure("peer", 1<<40, time.Second)
	if got := b.reads("g/x"); got != "content" {
		t.Errorf("read %q", got)
	}
	b.wantStates("m2", "g/x", "g/sub/y")
}

// TestBlocks: each block whose bytes this node has is listed once, with its tiers but those of
// other nodes.
func TestBlocks(t *testing.T) {
	c := newCrowdOf(t, tiers.CascadeAsync, make([]tiers.Options, 2)...)
	defer c.close()
	a, b := c.nodes[0], c.nodes[1]
	must(t, a.mkdir("g"), a.put(10, "g/far", []byte("1")), a.put(10, "g/both", []byte("12")))
	c.tell()
	must(t, b.mkdir("h"), b.put(10, "h/low", []byte("123")), b.e.Drain(until(t)), b.put(10, "top.tmp", nil))
	b.evict("h/low")
	resolve(t, b.world, "g/far")
	if got := b.reads("g/both"); got != "12" {
		t.Errorf("read %q", got)
	}
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
	w, _ := openLowerOne(t, tiers.Options{LookupLease: time.Hour, OpenDeadline: time.Second}, tiertest.ReferenceOptions{})
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
	shadow, err := w.openWrite(context.Background(), 20, string(paths[0]), true)
	must(t, err)
	out := make([]tiers.Place, len(paths))
	if n := testing.AllocsPerRun(20, func() { w.e.Presences(paths, tiers.PresenceOptions{Lease: true}, out) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if out[3].Tier != 1 || out[39].Presence != driver.Hit || out[40].Presence != driver.Miss {
		t.Errorf("places %v", out[:41])
	}
	must(t, shadow.close(), f.close())
	w.end()
}

// closeWritten closes a file for which there may not have been room.
func closeWritten(t *testing.T, f *file) {
	t.Helper()
	if err := f.close(); err != nil && !errors.Is(err, block.ErrNoSpace) && !errors.Is(err, block.ErrPoisoned) {
		t.Fatal(err)
	}
}

// TestPresencesAgree: whatever happens to names, Presences says of each what a look-up by
// somebody who writes nothing says, and where the block is (A15, A26). The model is the engine's
// own other interface: Lookup, PresenceOf and TierNames.
func TestPresencesAgree(t *testing.T) {
	rng := rand.New(rand.NewPCG(seed(t), 0))
	w, disk := openLowerOne(t, tiers.Options{CapacityBytes: 24 * page, WriteTimeout: time.Millisecond, PromoteTimeout: 20 * time.Millisecond}, tiertest.ReferenceOptions{})
	must(t, w.mkdir("h"), w.mkdir("g/deep"))
	dirs := []string{"g", "h", "g/deep"}
	var names []string
	for _, d := range dirs {
		for i := range 8 {
			names = append(names, fmt.Sprintf("%s/%d", d, i), fmt.Sprintf("%s/%d.tmp", d, i))
		}
	}
	var writing []*file
	var release func()
	for range 600 {
		name := names[rng.IntN(len(names))]
		switch rng.IntN(11) {
		case 0, 1:
			if err := w.put(10, name, fill("1p", "x")); err != nil && !errors.Is(err, block.ErrNoSpace) {
				t.Fatalf("put %s: %v", name, err)
			}
		case 2:
			if f, err := w.openOrCreate(20, name); err == nil {
				writing = append(writing, f)
			}
			if len(writing) > 4 {
				closeWritten(t, writing[0])
				writing = writing[1:]
			}
		case 3:
			if len(writing) > 0 {
				closeWritten(t, writing[0])
				writing = writing[1:]
			}
		case 4:
			_ = w.unlink(10, name) // there may be none
		case 5:
			_ = w.rename(10, name, names[rng.IntN(len(names))], false) // likewise
		case 6, 7:
			_, err := w.e.EvictFrom(until(t), tiers.EvictRequest{Tier: "memory", Paths: []string{name}})
			must(t, err)
		case 8:
			if release == nil {
				release = disk.Hold(tiertest.OpLoad)
			} else {
				release()
				release = nil
			}
		case 9:
			w.e.Hint(nil, "", [][]byte{[]byte(name)})
		case 10:
			if a, err := w.e.Resolve(context.Background(), name); err == nil {
				_ = w.e.SetTTL(a.ID, [...]time.Duration{time.Nanosecond, time.Hour}[rng.IntN(2)]) // it may have gone
			}
		}
		w.agree(names)
	}
	if release != nil {
		release()
	}
	for _, f := range writing {
		closeWritten(t, f)
	}
	w.drain()
	eventually(t, "all is at rest", func() bool { return w.e.AtRest() && w.e.HintsUnderWay() == 0 })
	w.agree(names)
	w.close(false)
}

// agree compares Presences with Lookup. What changes by itself in between is looked at again.
func (w *lower) agree(names []string) {
	w.t.Helper()
	var wrong string
	for range 100 {
		got := w.states(tiers.PresenceOptions{}, names...)
		if wrong = ""; len(got) != len(names) {
			w.t.Fatalf("%d states", len(got))
		}
		for i, name := range names {
			if want := w.expect(name); !strings.Contains(want, got[i:i+1]) {
				wrong = fmt.Sprintf("%s: %q, want %q", name, got[i], want)
			}
		}
		if wrong == "" {
			return
		}
	}
	w.t.Fatal(wrong)
}

// expect returns the states that a name may be in by what Lookup says to a stranger.
func (w *lower) expect(name string) string {
	a, err := w.lookup(90, name)
	if err != nil {
		return ".w" // a version of somebody else may be on its way
	}
	defer w.forget(a.ID)
	if w.e.PresenceOf(a.ID) == driver.Pending || a.Temp {
		return "w"
	}
	if where := w.e.TierNames(a.ID); len(where) > 0 && where[0] == "memory" {
		return "m"
	}
	return "1"
}

// BenchmarkPresences measures one call of 10,000 names of 64 hexadecimal digits in one directory
// of 100,000: those that are there, and those that are not, the same or one of ten sets in turn.
func BenchmarkPresences(b *testing.B) {
	const all, asked = 100_000, 10_000
	w := open(b, shmDir(b), tiers.Options{CapacityBytes: (all + 10) * page, LookupLease: time.Minute})
	defer w.close(false)
	must(b, w.mkdir("g"))
	rng := rand.New(rand.NewPCG(1, 2))
	names := make([]string, all)
	for i := range names {
		names[i] = fmt.Sprintf("g/%016x%016x%016x%016x", rng.Uint64(), rng.Uint64(), rng.Uint64(), rng.Uint64())
		must(b, w.put(10, names[i], nil))
	}
	rng.Shuffle(all, func(i, j int) { names[i], names[j] = names[j], names[i] })
	paths, out := make([][]byte, asked), make([]tiers.Place, asked)
	text := []byte(strings.Join(names[:asked], ""))
	for i := range paths {
		paths[i], text = text[:len(names[i])], text[len(names[i]):]
	}
	for _, o := range []tiers.PresenceOptions{{}, {Lease: true}} {
		b.Run(fmt.Sprintf("lease=%v", o.Lease), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				w.e.Presences(paths, o, out)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/asked, "ns/name")
			if out[0].Presence != driver.Hit || out[asked-1].Presence != driver.Hit {
				b.Errorf("places %v, %v", out[0], out[asked-1])
			}
		})
	}
	for _, sets := range []int{1, 10} {
		absent := make([][]byte, sets*asked)
		for i := range absent {
			absent[i] = fmt.Appendf(nil, "g/%016x%016x%016x%016x", rng.Uint64(), rng.Uint64(), rng.Uint64(), rng.Uint64())
		}
		b.Run(fmt.Sprintf("absent=%d", len(absent)), func(b *testing.B) {
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				w.e.Presences(absent[n%sets*asked:][:asked], tiers.PresenceOptions{}, out)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/asked, "ns/name")
		})
	}
}
