package suite

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// harness is the tool of a case: a tier, a source of random numbers, and the submitted jobs, each
// of which it checks.
type harness struct {
	t    *testing.T
	opts Options
	open func(t *testing.T) driver.Tier
	tier driver.Tier
	rng  *rand.Rand
	stop func() // ends the calling goroutine: t.FailNow, or Goexit in a worker
	jobs *jobLog
}

// jobLog has every job of a case. All workers of a case use one jobLog.
type jobLog struct {
	lastID atomic.Uint64
	mu     struct {
		sync.Mutex
		flights []*flight
		syncs   []*syncFlight
	}
}

// newHarness opens a tier for one case. When the case has ended it closes the tier
// and checks that each job has been completed once.
func newHarness(t *testing.T, open func(t *testing.T) driver.Tier, opts Options) *harness {
	h := &harness{t: t, opts: opts, open: open, jobs: &jobLog{}, stop: t.FailNow}
	h.rng = rand.New(rand.NewPCG(opts.Seed, 0))
	h.tier = open(t)
	t.Cleanup(func() {
		h.close(context.Background())
		h.checkCalls()
	})
	return h
}

// useSmall replaces the open tier by a small one.
func (h *harness) useSmall() {
	h.close(context.Background())
	h.tier = h.opts.Small(h.t)
}

// worker returns a harness for one goroutine of a case, with its own random numbers.
func (h *harness) worker(n int) *harness {
	w := *h
	w.rng = rand.New(rand.NewPCG(h.opts.Seed, uint64(n)+1))
	w.stop = runtime.Goexit
	return &w
}

// errorf reports a breach of the contract.
func (h *harness) errorf(format string, args ...any) {
	h.t.Helper()
	h.t.Errorf(format, args...)
}

// fatalf reports a breach after which the case cannot go on.
func (h *harness) fatalf(format string, args ...any) {
	h.t.Helper()
	h.t.Errorf(format, args...)
	h.stop()
}

// await reports whether done is closed in time.
func (h *harness) await(done <-chan struct{}) bool {
	timer := time.NewTimer(h.opts.Timeout)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// within runs fn and fails if fn hangs.
func (h *harness) within(what string, fn func()) {
	h.t.Helper()
	done := make(chan struct{})
	go func() { // ends with fn; if the tier hangs, it leaks, and the case fails
		defer close(done)
		fn()
	}()
	if !h.await(done) {
		h.fatalf("%s: did not return within %v", what, h.opts.Timeout)
	}
}

// close closes the tier, unless it is closed already.
func (h *harness) close(ctx context.Context) {
	h.t.Helper()
	if h.tier == nil {
		return
	}
	tier := h.tier
	h.tier = nil
	h.within("Close", func() {
		if err := tier.Close(ctx); err != nil && !h.opts.Faulty {
			h.errorf("Close: got %v, want success", err)
		}
	})
}

// checkCalls checks that each job of the case was completed once (A32).
func (h *harness) checkCalls() {
	h.jobs.mu.Lock()
	flights, syncs := slices.Clone(h.jobs.mu.flights), slices.Clone(h.jobs.mu.syncs)
	h.jobs.mu.Unlock()
	for _, f := range flights {
		if n := f.calls.Load(); n != 1 {
			h.errorf("%v: Done called %d times, want once", f, n)
		}
		f.release()
	}
	for _, f := range syncs {
		if n := f.calls.Load(); n != 1 {
			h.errorf("Sync: done called %d times, want once", n)
		}
	}
}

// lookup returns the presence of the keys. ok is false if a faulty tier failed.
func (h *harness) lookup(keys ...block.Key) (out []driver.Presence, ok bool) {
	h.t.Helper()
	out = make([]driver.Presence, len(keys))
	for i := range out {
		out[i] = driver.Pending // must be overwritten
	}
	err := h.tier.Lookup(context.Background(), keys, out)
	if err == nil {
		return out, true
	}
	if !h.opts.Faulty {
		h.fatalf("Lookup of %d keys: got %v, want success", len(keys), err)
	}
	h.checkKind("Lookup", err, errorKinds)
	h.checkAllMiss(out)
	return out, false
}

// checkAllMiss checks the result of a failed look-up.
func (h *harness) checkAllMiss(out []driver.Presence) {
	h.t.Helper()
	for i, p := range out {
		if p != driver.Miss {
			h.errorf("out[%d] after a failed Lookup: got %v, want miss", i, p)
		}
	}
}

// wantPresence checks that all keys have one presence. A faulty tier may miss blocks that it has,
// but a removed block stays missing there, too.
func (h *harness) wantPresence(want driver.Presence, keys ...block.Key) {
	h.t.Helper()
	out, ok := h.lookup(keys...)
	if !ok {
		return
	}
	for i, got := range out {
		if got != want && (!h.opts.Faulty || want == driver.Miss) {
			h.errorf("Lookup %.80q: got %v, want %v", keys[i].Path(), got, want)
		}
		if f, ok := ability[driver.Finder](h.tier); ok && want == driver.Miss {
			h.wantLost(f, keys[i].Path())
		}
	}
}

// wantStatus reports whether outcome i is one of want, and checks that it is,
// unless the tier is faulty.
func (h *harness) wantStatus(outcomes []driver.Outcome, i int, want ...driver.Status) bool {
	h.t.Helper()
	got := outcomes[i]
	if slices.Contains(want, got.Status) {
		return true
	}
	if !h.opts.Faulty {
		h.errorf("block %d %.80q: got %v (error %v), want %v",
			i, got.Key.Path(), got.Status, got.Err, want)
	}
	return false
}

// wantAll checks that every outcome has status want, unless the tier is faulty. It reports whether
// all have.
func (h *harness) wantAll(outcomes []driver.Outcome, want driver.Status) bool {
	h.t.Helper()
	all := true
	for i := range outcomes {
		all = h.wantStatus(outcomes, i, want) && all
	}
	return all
}

// wantHeld checks that the outcomes at places say that the tier holds the version already: Skipped
// without an error.
func (h *harness) wantHeld(outcomes []driver.Outcome, places ...int) {
	h.t.Helper()
	for _, i := range places {
		if h.wantStatus(outcomes, i, driver.Skipped) && outcomes[i].Err != nil && !h.opts.Faulty {
			h.errorf("block %d %.80q: skipped with error %v, want none: the tier holds it",
				i, outcomes[i].Key.Path(), outcomes[i].Err)
		}
	}
}

// wantSkipped checks that outcome i is Skipped for that reason.
func (h *harness) wantSkipped(outcomes []driver.Outcome, i int, reason error) {
	h.t.Helper()
	if h.wantStatus(outcomes, i, driver.Skipped) && !errors.Is(outcomes[i].Err, reason) && !h.opts.Faulty {
		h.errorf("block %d %.80q: skipped with error %v, want %v",
			i, outcomes[i].Key.Path(), outcomes[i].Err, reason)
	}
}

// eventually waits until check is true.
func (h *harness) eventually(what string, check func() bool) {
	h.t.Helper()
	timeout := time.NewTimer(h.opts.Timeout)
	defer timeout.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !check() {
		select {
		case <-tick.C:
		case <-timeout.C:
			h.fatalf("%s: not within %v", what, h.opts.Timeout)
		}
	}
}

// never checks that no outcome has status bad, also for a faulty tier.
func (h *harness) never(outcomes []driver.Outcome, bad driver.Status, why string) {
	h.t.Helper()
	for i, o := range outcomes {
		if o.Status == bad {
			h.errorf("block %d %.80q: got %v: %s", i, o.Key.Path(), o.Status, why)
		}
	}
}

// store stores the blocks in one job and returns its outcomes, checked.
func (h *harness) store(blocks ...payload) []driver.Outcome {
	h.t.Helper()
	return h.settle(h.submit(jobSpec{op: storeJob, blocks: blocks}))
}

// load loads the blocks in one job and returns its outcomes, checked.
func (h *harness) load(blocks ...payload) []driver.Outcome {
	h.t.Helper()
	return h.settle(h.submit(jobSpec{op: loadJob, blocks: blocks}))
}

// size returns n within the limits of the tier.
func (h *harness) size(n int64) int64 {
	return min(max(n, h.opts.MinBytes), h.opts.MaxBytes)
}

// payloads returns n blocks of size bytes, named prefix and a number.
func (h *harness) payloads(prefix string, n int, size int64) []payload {
	blocks := make([]payload, n)
	for i := range blocks {
		blocks[i] = h.payload(numberedKey(prefix, i), 0, size)
	}
	return blocks
}

// payload returns the content of generation gen of a block. size is fitted to the limits of the
// tier.
func (h *harness) payload(key block.Key, gen int, size int64) payload {
	return newPayload(h.opts.Seed, key, gen, h.size(size))
}
