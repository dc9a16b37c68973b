package suite

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

func openReference(t *testing.T, opts tiertest.ReferenceOptions) *tiertest.Reference {
	t.Helper()
	r, err := tiertest.OpenReference(opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// smallOptions are the options of a small tier, limited by bytes or by blocks.
var smallReferences = []tiertest.ReferenceOptions{
	{CapacityBytes: 8 * 4096},
	{MaxBlocks: 8},
}

// reopenReference closes old and opens a tier with what outlived it.
func reopenReference(t *testing.T, old driver.Tier) driver.Tier {
	t.Helper()
	if err := old.Close(t.Context()); err != nil {
		t.Error(err)
	}
	return crashReference(t, old)
}

// crashReference opens a tier with what outlives a power cut of old, if old is not closed.
func crashReference(t *testing.T, old driver.Tier) driver.Tier {
	t.Helper()
	r, err := old.(*tiertest.Reference).Reopen()
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Close(t.Context()); err != nil {
		t.Error(err)
	}
	return r
}

// corruptReference damages the copy of a block.
func corruptReference(t *testing.T, tier driver.Tier, key block.Key) {
	t.Helper()
	if n := tier.(*tiertest.Reference).Corrupt(key); n != 1 {
		t.Errorf("Corrupt %v: got %d, want 1", key, n)
	}
}

// TestReference shows that the reference implementation keeps the contract (A34, A3, A4),
// with one worker and with several, limited by bytes and by blocks.
func TestReference(t *testing.T) {
	for name, opts := range map[string]tiertest.ReferenceOptions{
		"two workers": {CapacityBytes: 32 << 20},
		"one worker":  {Workers: 1},
		"latency":     {Workers: 8, Latency: time.Microsecond},
		"direct":      {Direct: true, MaxKeyBytes: 2000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			small := smallReferences[opts.Workers%2]
			Run(t, func(t *testing.T) driver.Tier { return openReference(t, opts) }, Options{
				Small: func(t *testing.T) driver.Tier { return openReference(t, small) },
				Budgeted: func(t *testing.T) driver.Tier {
					return openReference(t, tiertest.ReferenceOptions{BudgetBytes: 20000})
				},
				LRU:         true,
				MaxKeyBytes: cmp.Or(opts.MaxKeyBytes, block.MaxPath),
				Reopen:      reopenReference,
				Crash:       crashReference,
				Corrupt:     corruptReference,
				Offline: func(_ *testing.T, tier driver.Tier) {
					tier.(*tiertest.Reference).Fail(errors.New("device pulled"))
				},
			})
		})
	}
}

// TestFinding shows that the reference implementation keeps the contract of driver.Finder.
func TestFinding(t *testing.T) {
	t.Parallel()
	reference := func(opts tiertest.ReferenceOptions) func(t *testing.T) driver.Tier {
		return func(t *testing.T) driver.Tier { return tiertest.Finding{Reference: openReference(t, opts)} }
	}
	Run(t, reference(tiertest.ReferenceOptions{}), Options{
		Small: reference(smallReferences[0]),
		LRU:   true,
		Reopen: func(t *testing.T, old driver.Tier) driver.Tier {
			return tiertest.Finding{Reference: reopenReference(t, old.(tiertest.Finding).Reference).(*tiertest.Reference)}
		},
		Corrupt: func(t *testing.T, tier driver.Tier, key block.Key) {
			corruptReference(t, tier.(tiertest.Finding).Reference, key)
		},
	})
}

// everyNth faults stores, loads and look-ups at odd intervals.
func everyNth() *tiertest.Plan {
	released := make(chan struct{})
	close(released)
	return tiertest.NewPlan(
		tiertest.Rule{Op: tiertest.OpStore, Every: 7, Fault: tiertest.Fault{Err: block.ErrUnavailable}},
		tiertest.Rule{Op: tiertest.OpStore, Every: 11, Fault: tiertest.Fault{Corrupt: true}},
		tiertest.Rule{Op: tiertest.OpStore, Every: 13, Fault: tiertest.Fault{Short: true}},
		tiertest.Rule{Op: tiertest.OpLoad, Every: 5, Fault: tiertest.Fault{Corrupt: true}},
		tiertest.Rule{Op: tiertest.OpLoad, Every: 6, Fault: tiertest.Fault{Short: true, Stall: released}},
		tiertest.Rule{Op: tiertest.OpLoad, Every: 9, Fault: tiertest.Fault{Err: block.ErrUnavailable}},
		tiertest.Rule{Op: tiertest.OpSync, Every: 3, Fault: tiertest.Fault{Err: block.ErrUnavailable}},
		tiertest.Rule{Op: tiertest.OpSync, Every: 4, Fault: tiertest.Fault{Stall: released}},
		tiertest.Rule{Op: tiertest.OpLookup, Every: 10, Fault: tiertest.Fault{Hide: true}},
		tiertest.Rule{Op: tiertest.OpLookup, Every: 31, Fault: tiertest.Fault{Err: block.ErrUnavailable}},
	)
}

// TestReferenceFaults shows that with faults the reference implementation has errors, but never
// wrong bytes and never a job without its Result.
func TestReferenceFaults(t *testing.T) {
	t.Parallel()
	plan := everyNth()
	Run(t, func(t *testing.T) driver.Tier {
		return openReference(t, tiertest.ReferenceOptions{Faults: plan})
	}, Options{
		Small: func(t *testing.T) driver.Tier {
			return openReference(t, tiertest.ReferenceOptions{CapacityBytes: 8 * 4096, Faults: plan})
		},
		Faulty: true,
	})
	if plan.Injected() == 0 {
		t.Error("no fault was injected")
	}
}

// newTestHarness returns a harness around r for tests beyond the suite.
func newTestHarness(t *testing.T, r driver.Tier) *harness {
	open := func(*testing.T) driver.Tier { return r }
	return newHarness(t, open, Options{}.withDefaults(t))
}

// TestReferencePendingAndLatency shows that a block is Pending while its Store
// waits out the latency, that a Load of it then fails with ErrPending, and that
// time moves only when told (A15, A33).
func TestReferencePendingAndLatency(t *testing.T) {
	clock := tiertest.NewManualClock()
	h := newTestHarness(t, openReference(t, tiertest.ReferenceOptions{Latency: time.Hour, Clock: clock}))
	p := h.payload(numberedKey("p", 0), 0, 1000)
	store := h.submit(jobSpec{op: storeJob, blocks: []payload{p}})
	if err := clock.AwaitTimers(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	clock.Advance(time.Hour - 1)
	h.wantPresence(driver.Pending, p.key)
	clock.Advance(1)
	h.wantAll(h.settle(store), driver.Stored)
	h.wantPresence(driver.Hit, p.key)
}

// stallStore returns rules that hold the stores of key until release is called.
func stallStore(key block.Key) (rule tiertest.Rule, release func()) {
	stall := make(chan struct{})
	match := func(k block.Key) bool { return k == key }
	return tiertest.Rule{Op: tiertest.OpStore, Match: match, Fault: tiertest.Fault{Stall: stall}}, func() { close(stall) }
}

// TestReferenceWhileStoring shows calls during a Store: a Load fails with ErrPending, a second
// Store is Skipped, and Remove cancels the Store.
func TestReferenceWhileStoring(t *testing.T) {
	key := numberedKey("p", 0)
	rule, release := stallStore(key)
	h := newTestHarness(t, openReference(t, tiertest.ReferenceOptions{Faults: tiertest.NewPlan(rule)}))
	p := h.payload(key, 0, 1000)
	first := h.submit(jobSpec{op: storeJob, blocks: []payload{p}})
	if o := h.load(p)[0]; !errors.Is(o.Err, block.ErrPending) {
		t.Errorf("Load while storing: got %v (%v), want %v", o.Status, o.Err, block.ErrPending)
	}
	second := h.submit(jobSpec{op: storeJob, blocks: []payload{p}})
	if n := h.tier.Remove([]block.Key{key}); n != 0 {
		t.Errorf("Remove while storing: got %d, want 0", n)
	}
	h.wantPresence(driver.Miss, key)
	release()
	h.wantSkipped(h.settle(first), 0, block.ErrNotFound)
	h.wantSkipped(h.settle(second), 0, block.ErrPending)
	h.wantPresence(driver.Miss, key)
	h.wantAll(h.store(p), driver.Stored)
}

// TestReferenceOrder shows that loads are served before stores that were submitted
// earlier, by the order of completion on one worker.
func TestReferenceOrder(t *testing.T) {
	key := numberedKey("first", 0)
	rule, release := stallStore(key)
	h := newTestHarness(t, openReference(t, tiertest.ReferenceOptions{Workers: 1, Faults: tiertest.NewPlan(rule)}))
	present := h.payloads("present", 1, 100)
	h.wantAll(h.store(present...), driver.Stored)
	var mu sync.Mutex
	var order []string
	submit := func(name string, kind jobKind, blocks ...payload) *flight {
		return h.submit(jobSpec{op: kind, blocks: blocks, then: func() {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, name)
		}})
	}
	// The first store may still be in the queue when the load arrives, and be overtaken like the
	// second. So only the second must be after the load.
	flights := []*flight{
		submit("store 1", storeJob, h.payload(key, 0, 100)),
		submit("store 2", storeJob, h.payloads("second", 1, 100)...),
		submit("load", loadJob, present...),
	}
	release()
	for _, f := range flights {
		h.settle(f)
	}
	if slices.Index(order, "load") > slices.Index(order, "store 2") {
		t.Errorf("order of completion: got %v, want the load before store 2", order)
	}
}

// TestReferenceQueueFull shows that a full queue skips stores and fails loads, through Done as
// usual.
func TestReferenceQueueFull(t *testing.T) {
	clock := tiertest.NewManualClock()
	r := openReference(t, tiertest.ReferenceOptions{Workers: 1, QueueJobs: 1, Latency: 1, Clock: clock})
	h := newTestHarness(t, r)
	blocks := h.payloads("queue", 3, 100)
	served := h.submit(jobSpec{op: storeJob, blocks: blocks[:1]})
	if err := clock.AwaitTimers(t.Context(), 1); err != nil { // the job has left the queue
		t.Fatal(err)
	}
	queued := h.submit(jobSpec{op: storeJob, blocks: blocks[1:2]})
	store := h.submit(jobSpec{op: storeJob, blocks: blocks[2:]})
	load := h.submit(jobSpec{op: loadJob, blocks: blocks[2:]})
	h.wantPresence(driver.Miss, blocks[2].key)
	clock.Advance(1)
	h.wantAll(h.settle(served), driver.Stored)
	h.wantSkipped(h.settle(store), 0, block.ErrNoSpace)
	if o := h.settle(load)[0]; !errors.Is(o.Err, block.ErrUnavailable) {
		t.Errorf("Load into a full queue: got %v (%v), want %v", o.Status, o.Err, block.ErrUnavailable)
	}
	if err := clock.AwaitTimers(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	clock.Advance(1)
	h.wantAll(h.settle(queued), driver.Stored)
}

// TestReferenceFaultKinds shows the effect of each kind of fault on one block, and that the other
// blocks of the job are not affected.
func TestReferenceFaultKinds(t *testing.T) {
	unavailable := block.ErrUnavailable
	for _, row := range []struct {
		name       string
		rule       tiertest.Rule
		storeErr   error
		loadErr    error
		thenLookup driver.Presence
	}{
		{"store error", tiertest.Rule{Op: tiertest.OpStore, Fault: tiertest.Fault{Err: unavailable}}, unavailable, nil, driver.Miss},
		{"store short", tiertest.Rule{Op: tiertest.OpStore, Fault: tiertest.Fault{Short: true}}, block.ErrInvalid, nil, driver.Miss},
		{"store corrupt", tiertest.Rule{Op: tiertest.OpStore, Fault: tiertest.Fault{Corrupt: true}}, nil, block.ErrCorrupt, driver.Miss},
		{"load error", tiertest.Rule{Op: tiertest.OpLoad, Fault: tiertest.Fault{Err: unavailable}}, nil, unavailable, driver.Hit},
		{"load corrupt", tiertest.Rule{Op: tiertest.OpLoad, Fault: tiertest.Fault{Corrupt: true}}, nil, block.ErrCorrupt, driver.Miss},
		{"load short", tiertest.Rule{Op: tiertest.OpLoad, Fault: tiertest.Fault{Short: true}}, nil, block.ErrCorrupt, driver.Miss},
		{"second load", tiertest.Rule{Op: tiertest.OpLoad, Nth: 2, Fault: tiertest.Fault{Corrupt: true}}, nil, nil, driver.Hit},
		{"look-up hidden", tiertest.Rule{Op: tiertest.OpLookup, Fault: tiertest.Fault{Hide: true}}, nil, nil, driver.Miss},
	} {
		t.Run(row.name, func(t *testing.T) {
			bad := numberedKey("bad", 0)
			row.rule.Match = func(k block.Key) bool { return k == bad }
			plan := tiertest.NewPlan(row.rule)
			h := newTestHarness(t, openReference(t, tiertest.ReferenceOptions{Faults: plan}))
			blocks := []payload{h.payload(numberedKey("good", 0), 0, 5000), h.payload(bad, 0, 5000)}
			stored := h.store(blocks...)
			h.wantStatus(stored, 0, driver.Stored)
			if !errors.Is(stored[1].Err, row.storeErr) {
				t.Errorf("Store: got %v (%v), want error %v", stored[1].Status, stored[1].Err, row.storeErr)
			}
			loaded := h.load(blocks...)
			h.wantStatus(loaded, 0, driver.Loaded)
			if !errors.Is(loaded[1].Err, row.loadErr) {
				t.Errorf("Load: got %v (%v), want error %v", loaded[1].Status, loaded[1].Err, row.loadErr)
			}
			h.wantPresence(driver.Hit, blocks[0].key)
			h.wantPresence(row.thenLookup, bad)
			if n := plan.Injected(); (n == 0) != (row.rule.Nth == 2) {
				t.Errorf("injected %d faults", n)
			}
		})
	}
}

// TestReferenceCloseCancelled shows that a stalled job fails with ErrClosed when the context of
// Close is done, and later jobs with it.
func TestReferenceCloseCancelled(t *testing.T) {
	key := numberedKey("stalled", 0)
	rule, _ := stallStore(key)
	h := newTestHarness(t, openReference(t, tiertest.ReferenceOptions{Workers: 1, Faults: tiertest.NewPlan(rule)}))
	flights := []*flight{
		h.submit(jobSpec{op: storeJob, blocks: []payload{h.payload(key, 0, 100)}}),
		h.submit(jobSpec{op: storeJob, blocks: h.payloads("next", 2, 100)}),
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	h.close(ctx)
	// The second may have been served before the context took effect, but the first was not
	// released.
	if o := h.settle(flights[0])[0]; !errors.Is(o.Err, block.ErrClosed) {
		t.Errorf("stalled store: got %v (%v), want %v", o.Status, o.Err, block.ErrClosed)
	}
	h.wantFinishedOrClosed(flights[1])
}

// TestReferenceTooLarge shows that a block that cannot fit evicts nothing.
func TestReferenceTooLarge(t *testing.T) {
	h := newTestHarness(t, openReference(t, smallReferences[0]))
	blocks := h.payloads("small", 8, 4096)
	h.wantAll(h.store(blocks...), driver.Stored)
	o := h.store(h.payload(numberedKey("large", 0), 0, 8*4096+1))[0]
	if !errors.Is(o.Err, block.ErrTooLarge) {
		t.Errorf("got %v (%v), want %v", o.Status, o.Err, block.ErrTooLarge)
	}
	h.wantPresence(driver.Hit, keysOf(blocks)...)
}

// TestReferenceOptions shows that all violations are reported at once.
func TestReferenceOptions(t *testing.T) {
	_, err := tiertest.OpenReference(tiertest.ReferenceOptions{CapacityBytes: -1, Workers: -2})
	joined, ok := errors.Unwrap(err).(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 2 || !errors.Is(err, block.ErrInvalid) {
		t.Errorf("got %v, want two violations", err)
	}
}
