package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/names"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
	"github.com/kvfs/kvfs/tiers/transfer"
)

// fetched is what a Prefetch has told.
type fetched struct {
	mu      sync.Mutex
	results []transfer.PrefetchResult
	times   []int // Done was called, by path
}

// prefetch asks for blocks and waits for all answers.
func (w *world) prefetch(ctx context.Context, names ...string) *fetched {
	f := newFetched(len(names))
	w.fetch(ctx, f, names...)
	for i, n := range f.times {
		if n != 1 {
			w.t.Errorf("Done was called %d times for %s", n, names[i])
		}
	}
	return f
}

func newFetched(n int) *fetched {
	return &fetched{results: make([]transfer.PrefetchResult, n), times: make([]int, n)}
}

func (w *world) fetch(ctx context.Context, f *fetched, names ...string) {
	paths := make([][]byte, len(names))
	for i, name := range names {
		paths[i] = []byte(name)
	}
	w.e.Prefetch(ctx, transfer.PrefetchRequest{Request: "req", Paths: paths, Done: func(i int, r transfer.PrefetchResult) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.results[i] = r
		f.times[i]++
	}})
}

// letters are the results as in docs/control.md.
func (f *fetched) letters() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := make([]byte, len(f.results))
	for i, r := range f.results {
		s[i] = "!.mlw"[r.Outcome]
	}
	return string(s)
}

// atRest waits until no load is left, and checks the accounts.
func (w *lower) atRest() {
	w.t.Helper()
	w.drain()
	eventually(w.t, "all loads have ended", w.e.AtRest)
	w.audit()
	if p := w.e.Stats().PinnedBytes; p != 0 {
		w.t.Errorf("%d bytes pinned", p)
	}
}

func numbered(dir string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s/%03d", dir, i)
	}
	return names
}

// TestPrefetch: each outcome, for names of all kinds, duplicates among them.
func TestPrefetch(t *testing.T) {
	w, disk := openLowerOne(t, state.Options{LookupLease: time.Hour}, tiertest.ReferenceOptions{})
	must(t, w.mkdir("g/sub"), w.put(10, "g/m", []byte("1234")))
	w.nonresident("12345", "g/a", "g/b", "g/c")
	w.nonresident("gone", "g/lost")
	f, err := w.create(10, "g/new", true, true)
	must(t, err)
	temp, err := w.create(10, "g/x.tmp", true, true)
	must(t, err)
	must(t, w.put(10, "g/shadow", []byte("old")))
	shadow := w.writing(20, "g/shadow", true)
	shadow.rewrite("new", 0)
	must(t, w.put(10, "g/old", []byte("x")))
	must(t, w.e.SetTTL(resolve(t, w.world, "g/old").ID, time.Nanosecond))
	eventually(t, "its time passes", func() bool { return w.states(names.PresenceOptions{}, "g/old") == "." })
	disk.Corrupt(mustKey(t, "g/lost"))

	rows := []struct{ name, want string }{
		{"g/a", "l"}, {"g/m", "m"}, {"g/none", "."}, {"g/a", "l"}, {"g/b", "l"}, {"g/new", "w"}, {"g/x.tmp", "w"}, {"g/shadow", "w"},
		{"g", "."}, {"g/sub", "."}, {"", "."}, {"/g/c", "."}, {"g/", "."}, {"g/../g/c", "."}, {".kvfs/status", "."}, {"g/c\x00", "."},
		{strings.Repeat("x", 5000), "."}, {"g/old", "."}, {"g/lost", "!"}, {"g/c", "l"}, {"g/a", "l"},
	}
	var names []string
	want := ""
	for _, r := range rows {
		names, want = append(names, r.name), want+r.want
	}
	got := w.prefetch(context.Background(), names...)
	if s := got.letters(); s != want {
		t.Errorf("results\n     %q,\nwant %q", s, want)
	}
	if r := got.results[0]; r.Bytes != 5 || r.Err != nil {
		t.Errorf("loaded: %+v", r)
	}
	must(t, shadow.close(), f.close(), temp.close(), w.unlink(10, "g/x.tmp"))
	w.atRest()
	w.wantWhere("g/a", "[memory disk]", "g/b", "[memory disk]", "g/c", "[memory disk]")
	// Once more: nothing is to be done.
	if s := w.prefetch(context.Background(), "g/a", "g/b").letters(); s != "mm" {
		t.Errorf("again: %q", s)
	}
	if s := w.prefetch(context.Background()).letters(); s != "" {
		t.Errorf("of none: %q", s)
	}
	w.e.Expire()
	w.end()
}

// jobOrder notes the blocks of jobs. Two jobs may reach a tier the other way round than they
// were begun: their numbers tell.
type jobOrder struct {
	mu   sync.Mutex
	jobs map[driver.JobID][]string
}

func (o *jobOrder) add(j *driver.Job) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.jobs == nil {
		o.jobs = map[driver.JobID][]string{}
	}
	for _, b := range j.Blocks {
		o.jobs[j.ID] = append(o.jobs[j.ID], b.Key.Path())
	}
}

// keys returns the blocks in the order in which their jobs were begun.
func (o *jobOrder) keys() (keys []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(o.jobs)) {
		keys = append(keys, o.jobs[id]...)
	}
	return keys
}

// TestPrefetchBounded: no more than a share of memory is under way at a time, in the order of the
// list and in few jobs; a list larger than memory comes to its end.
func TestPrefetchBounded(t *testing.T) {
	var order jobOrder
	w, disk := openLowerOne(t, state.Options{CapacityBytes: 32 * page, LookupLease: time.Hour, PromoteBatchKeys: 2}, tiertest.ReferenceOptions{
		Workers: 1, OnJob: func(op tiertest.Op, j *driver.Job) {
			if op != tiertest.OpLoad {
				return
			}
			if j.Promotion || j.Request != "req" || len(j.Blocks) > 2 {
				t.Errorf("job %+v", j)
			}
			order.add(j)
		}})
	names := numbered("g", 100)
	for _, name := range names {
		w.nonresident(string(fill("1p", "x")), name)
	}
	release := disk.Hold(tiertest.OpLoad)
	f := newFetched(len(names))
	done := make(chan struct{})
	go func() { defer close(done); w.fetch(context.Background(), f, names...) }()
	must(t, disk.AwaitSubmitted(until(t), tiertest.OpLoad, 4)) // an eighth of 32 pages
	if n := w.e.Promotions(); n != 4 {
		t.Errorf("%d under way, want 4", n)
	}
	release()
	<-done
	if s := f.letters(); s != strings.Repeat("l", len(names)) {
		t.Errorf("results %q", s)
	}
	if got := order.keys(); !slices.Equal(got, names) {
		t.Errorf("order %v", got)
	}
	w.atRest()
	w.wantWhere("g/099", "[memory disk]", "g/000", "[disk]")
	w.end()
}

// TestPrefetchCancel: when it is cancelled, all that is not told yet fails at once, no more is
// begun, and what was under way leaves no pin behind.
func TestPrefetchCancel(t *testing.T) {
	w, disk := openLowerOne(t, state.Options{LookupLease: time.Hour}, tiertest.ReferenceOptions{})
	names := numbered("g", 40)
	w.nonresident(string(fill("1p", "x")), names...)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	release := disk.Hold(tiertest.OpLoad)
	f := newFetched(len(names))
	done := make(chan struct{})
	go func() { defer close(done); w.fetch(ctx, f, names...) }()
	must(t, disk.AwaitSubmitted(until(t), tiertest.OpLoad, 8)) // an eighth of 64 pages
	cancel()
	<-done
	for i, r := range f.results {
		if f.times[i] != 1 || r.Outcome != transfer.PrefetchFailed || !errors.Is(r.Err, context.Canceled) {
			t.Errorf("%s: %+v, told %d times", names[i], r, f.times[i])
		}
	}
	release()
	w.atRest()
	if n, _ := disk.Jobs(tiertest.OpLoad); n == 0 || n > 8 {
		t.Errorf("%d jobs", n)
	}
	for i, n := range f.times {
		if n != 1 {
			t.Errorf("%s: told %d times in the end", names[i], n)
		}
	}
	w.wantWhere(names[0], "[memory disk]", names[39], "[disk]")
	if s := w.prefetch(ctx, names[38], names[0]); s.letters() != "!!" { // cancelled before it began
		t.Errorf("results %q", s.letters())
	}
	w.end()
}

// TestPrefetchLease: what was fetched, or was in memory already, stays there for as long as after a
// look-up.
func TestPrefetchLease(t *testing.T) {
	clock := newTestClock()
	w, _ := openLowerOne(t, state.Options{CapacityBytes: 8 * page, LookupLease: time.Hour, Now: clock.now}, tiertest.ReferenceOptions{})
	w.nonresident(string(fill("1p", "x")), "g/a", "g/c")
	must(t, w.put(10, "g/b", fill("1p", "x")))
	w.drain()
	clock.add(2 * time.Hour) // the look-ups of the writers
	if s := w.prefetch(context.Background(), "g/a", "g/b").letters(); s != "lm" {
		t.Errorf("results %q", s)
	}
	w.evict("disk", "g/a", "g/b") // that has to keep what it promised, too
	for _, name := range numbered("g", 20) {
		must(t, w.put(10, name, fill("1p", "x")))
		w.drain()
	}
	w.wantStates("mm1", "g/a", "g/b", "g/c")
	clock.add(2 * time.Hour)
	w.end()
}

// TestPrefetchClose: the end of the engine ends prefetches and hints.
func TestPrefetchClose(t *testing.T) {
	w, disk := openLowerOne(t, state.Options{PromoteBatchKeys: 1}, tiertest.ReferenceOptions{})
	names := numbered("g", 40)
	w.nonresident(string(fill("1p", "x")), names...)
	disk.Hold(tiertest.OpLoad)
	paths := make([][]byte, len(names))
	for i := range names {
		paths[len(names)-1-i] = []byte(names[i])
	}
	w.e.Hint(nil, "hint", paths)
	f := newFetched(len(names))
	done := make(chan struct{})
	go func() { defer close(done); w.fetch(context.Background(), f, names...) }()
	must(t, disk.AwaitSubmitted(until(t), tiertest.OpLoad, 16))
	must(t, w.e.Close(context.Background(), false))
	<-done
	for i, n := range f.times {
		if n != 1 {
			t.Errorf("%s: told %d times", names[i], n)
		}
	}
	if !w.e.AtRest() {
		t.Error("loads are left")
	}
	if jobs, _ := w.e.Jobs(); len(jobs) != 0 {
		t.Errorf("jobs %+v", jobs)
	}
	w.audit()
	if s := w.prefetch(context.Background(), names[39]); s.letters() != "!" && s.letters() != "m" {
		t.Errorf("afterwards: %q", s.letters())
	}
	w.e.Hint(nil, "", paths)
}

// TestPrefetchTimeout: a tier that does not answer fails a prefetch after PromoteTimeout; what it
// gives afterwards leaves no pin (A24).
func TestPrefetchTimeout(t *testing.T) {
	w, disk := openLowerOne(t, state.Options{PromoteTimeout: 10 * time.Millisecond}, tiertest.ReferenceOptions{})
	w.nonresident("content", "g/a", "g/b")
	release := disk.Hold(tiertest.OpLoad)
	got := w.prefetch(context.Background(), "g/a", "g/a", "g/b")
	if s := got.letters(); s != "!!!" || !errors.Is(got.results[0].Err, block.ErrNotFound) {
		t.Errorf("results %q, %v", s, got.results[0].Err)
	}
	if n := w.e.Stats().Secondaries[0].PromoteTimeouts; n != 3 {
		t.Errorf("%d timeouts", n)
	}
	if n := w.e.Promotions(); n != 2 {
		t.Errorf("%d promotions", n)
	}
	release()
	w.atRest()
	w.wantWhere("g/a", "[memory disk]")
	w.end()
}

// TestHint: a hint returns at once, copies what it was given, and is forgotten while too many are
// under way.
func TestHint(t *testing.T) {
	w, disk := openLowerOne(t, state.Options{CapacityBytes: 1024 * page}, tiertest.ReferenceOptions{})
	names := numbered("g", tiers.MaxHintCalls+4)
	w.nonresident("x", names...)
	release := disk.Hold(tiertest.OpLoad)
	path := []byte("g/000")
	for _, name := range names {
		copy(path, name)
		w.e.Hint(nil, "hint", [][]byte{path})
	}
	copy(path, "?????")
	w.e.Hint(nil, "hint", nil)
	eventually(t, "all have begun", func() bool { return w.e.Promotions() == tiers.MaxHintCalls })
	release()
	w.atRest()
	for i, name := range names {
		if want := i < tiers.MaxHintCalls; (w.where(name) == "[memory disk]") != want {
			t.Errorf("%s: in %s", name, w.where(name))
		}
	}
	eventually(t, "the next hint is heard", func() bool { // when the others have ended
		w.e.Hint(nil, "hint", [][]byte{[]byte(names[len(names)-1])})
		return w.where(names[len(names)-1]) == "[memory disk]"
	})
	w.atRest()
	w.end()
}

// TestPrefetchStorm: prefetches that are cancelled, opens that are interrupted or come too late,
// and whatever else happens to the names at the same time leave nothing behind.
func TestPrefetchStorm(t *testing.T) {
	seed := seed(t)
	w, disk := openLowerOne(t, state.Options{
		CapacityBytes: 24 * page, LookupLease: time.Millisecond, WriteTimeout: 2 * time.Millisecond,
		OpenDeadline: 2 * time.Millisecond, PromoteBatchKeys: 3, PromoteWindow: 50 * time.Microsecond,
	}, tiertest.ReferenceOptions{
		Direct: true, Latency: 3 * time.Millisecond, Clock: jitter{},
		Faults: tiertest.NewPlan(tiertest.Rule{Op: tiertest.OpLoad, Every: 7, Fault: tiertest.Fault{Err: block.ErrUnavailable}}),
	})
	names := numbered("g", 60)
	w.later = seed%2 == 0
	for _, name := range names {
		w.nonresident(string(fill("1p", "x")), name)
	}
	var wg sync.WaitGroup
	for n := range 6 {
		rng := rand.New(rand.NewPCG(seed, uint64(n)))
		wg.Go(func() {
			for range 150 {
				w.stormStep(rng, n, names)
			}
		})
	}
	wg.Wait()
	w.drain()
	eventually(t, "all loads have ended", w.e.AtRest)
	w.audit()
	if n, done := disk.Jobs(tiertest.OpLoad); n == 0 || n != done {
		t.Errorf("%d loads, %d done", n, done)
	}
	w.end()
}

// stormStep does one of the things that TestPrefetchStorm is about.
func (w *lower) stormStep(rng *rand.Rand, n int, blocks []string) {
	name := blocks[rng.IntN(len(blocks))]
	var some []string
	for range 1 + rng.IntN(20) {
		some = append(some, blocks[rng.IntN(len(blocks))])
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.IntN(5))*time.Millisecond)
	defer cancel()
	switch n {
	case 0:
		w.fetch(ctx, newFetched(len(some)), some...)
	case 1:
		w.prefetch(context.Background(), some...)
	case 2, 3:
		if got := w.content(name); got != "ErrNotFound" && got != "ErrStale" && (len(got) != page || got[0] != 'x') {
			w.t.Errorf("%s: %.40q", name, got)
		}
	case 4:
		_, err := w.e.EvictFrom(context.Background(), tiers.EvictRequest{Tier: "memory", Paths: some[:1]})
		must(w.t, err)
		w.presences(names.PresenceOptions{Lease: true}, some...)
		w.e.Why(name)
		w.e.Jobs()
		w.audit()
	default:
		paths := make([][]byte, len(some))
		for i := range some {
			paths[i] = []byte(some[i])
		}
		w.e.Hint(nil, "hint", paths)
		if rng.IntN(8) == 0 {
			_ = w.unlink(10, name) // it may have gone
			if err := w.put(10, name, fill("1p", "x")); err != nil && !errors.Is(err, block.ErrNoSpace) {
				w.t.Errorf("put %s: %v", name, err)
			}
		}
	}
}

// TestPrefetchMeets: what happens to a name while its block is on its way.
func TestPrefetchMeets(t *testing.T) {
	for _, row := range []struct {
		name string
		do   func(w *lower)
		want string
	}{
		{"unlink", func(w *lower) { must(w.t, w.unlink(10, "g/a")) }, "."},
		{"rename", func(w *lower) { must(w.t, w.rename(10, "g/a", "g/b", false)) }, "l"},
		{"rewritten", func(w *lower) { must(w.t, w.put(10, "g/a", []byte("2"))) }, "m"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w, disk := openLowerOne(t, state.Options{}, tiertest.ReferenceOptions{})
			w.nonresident("1", "g/a")
			release := disk.Hold(tiertest.OpLoad)
			f := newFetched(1)
			done := make(chan struct{})
			go func() { defer close(done); w.fetch(context.Background(), f, "g/a") }()
			must(t, disk.AwaitSubmitted(until(t), tiertest.OpLoad, 1))
			row.do(w)
			must(t, w.e.Drain(until(t)))
			release()
			<-done
			if s := f.letters(); !strings.Contains(row.want, s) {
				t.Errorf("result %q, want %q: %v", s, row.want, f.results[0].Err)
			}
			eventually(t, "all loads have ended", w.e.AtRest)
			w.audit()
		})
	}
}
