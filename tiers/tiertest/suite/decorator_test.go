package suite

import (
	"context"
	"errors"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// TestFaultyWithoutFaults shows that the decorator changes nothing by itself, with
// an empty plan and with none.
func TestFaultyWithoutFaults(t *testing.T) {
	t.Parallel()
	Run(t, func(t *testing.T) driver.Tier {
		return tiertest.NewFaulty(openReference(t, tiertest.ReferenceOptions{}), tiertest.NewPlan())
	}, Options{
		Small: func(t *testing.T) driver.Tier {
			return tiertest.NewFaulty(openReference(t, smallReferences[0]), nil)
		},
		LRU: true,
		Reopen: func(t *testing.T, old driver.Tier) driver.Tier {
			return tiertest.NewFaulty(reopenReference(t, old.(*tiertest.Faulty).Unwrap()), nil)
		},
		Corrupt: func(t *testing.T, tier driver.Tier, key block.Key) {
			corruptReference(t, tier.(*tiertest.Faulty).Unwrap(), key)
		},
	})
}

// TestFaultyWithFaults shows that a decorated tier has errors, but never wrong
// bytes and never a job without its Result.
func TestFaultyWithFaults(t *testing.T) {
	t.Parallel()
	plan := everyNth()
	Run(t, func(t *testing.T) driver.Tier {
		return tiertest.NewFaulty(openReference(t, tiertest.ReferenceOptions{}), plan)
	}, Options{
		Small: func(t *testing.T) driver.Tier {
			return tiertest.NewFaulty(openReference(t, smallReferences[0]), plan)
		},
		Faulty: true,
	})
	if plan.Injected() == 0 {
		t.Error("no fault was injected")
	}
}

// TestFaultyOutcomes shows the effect of each fault on a correct tier.
func TestFaultyOutcomes(t *testing.T) {
	bad := numberedKey("bad", 0)
	match := func(k block.Key) bool { return k == bad }
	plan := tiertest.NewPlan()
	h := newTestHarness(t, tiertest.NewFaulty(openReference(t, tiertest.ReferenceOptions{}), plan))
	blocks := []payload{h.payload(numberedKey("good", 0), 0, 3000), h.payload(bad, 0, 3000)}
	want := func(what string, o driver.Outcome, err error) {
		t.Helper()
		if o.Status != driver.Failed || !errors.Is(o.Err, err) {
			t.Errorf("%s: got %v (%v), want %v", what, o.Status, o.Err, err)
		}
	}

	plan.Set(tiertest.Rule{Op: tiertest.OpStore, Match: match, Fault: tiertest.Fault{Err: block.ErrUnavailable}})
	outcomes := h.store(blocks...)
	h.wantStatus(outcomes, 0, driver.Stored)
	want("Store, acknowledgement lost", outcomes[1], block.ErrUnavailable)
	plan.Set()
	h.wantAll(h.load(blocks...), driver.Loaded)

	plan.Set(tiertest.Rule{Op: tiertest.OpLookup, Match: match, Fault: tiertest.Fault{Hide: true}})
	h.wantPresence(driver.Miss, bad)
	plan.Set(tiertest.Rule{Op: tiertest.OpLookup, Nth: 1, Fault: tiertest.Fault{Err: block.ErrUnavailable}})
	out := []driver.Presence{driver.Hit, driver.Hit}
	if err := h.tier.Lookup(t.Context(), keysOf(blocks), out); !errors.Is(err, block.ErrUnavailable) {
		t.Errorf("Lookup: got %v, want %v", err, block.ErrUnavailable)
	}
	h.checkAllMiss(out)

	plan.Set(tiertest.Rule{Op: tiertest.OpLoad, Match: match, Fault: tiertest.Fault{Corrupt: true}})
	outcomes = h.load(blocks...)
	h.wantStatus(outcomes, 0, driver.Loaded)
	want("Load, corrupt", outcomes[1], block.ErrCorrupt)
	h.wantPresence(driver.Miss, bad)
}

// TestFaultyStall shows that a completion is delayed until it is released, while others go through,
// and that Close releases it when its context is done.
func TestFaultyStall(t *testing.T) {
	for _, released := range []bool{true, false} {
		rule, release := stallStore(numberedKey("slow", 0))
		h := newTestHarness(t, tiertest.NewFaulty(openReference(t, tiertest.ReferenceOptions{Workers: 1}), tiertest.NewPlan(rule)))
		slow := h.submit(jobSpec{op: storeJob, blocks: h.payloads("slow", 2, 100)})
		h.wantAll(h.store(h.payloads("quick", 2, 100)...), driver.Stored)
		if n := slow.calls.Load(); n != 0 {
			t.Errorf("Done was called %d times before the release", n)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if released {
			release()
		} else {
			cancel()
		}
		h.close(ctx)
		h.wantAll(h.settle(slow), driver.Stored)
	}
}

// plain is a tier without any optional ability.
type plain struct{ driver.Tier }

// TestFaultyAbilities shows that the decorator passes on the abilities of the tier below, and what
// it does for a tier without them.
func TestFaultyAbilities(t *testing.T) {
	sync := tiertest.NewPlan(tiertest.Rule{Op: tiertest.OpSync, Nth: 2, Fault: tiertest.Fault{Err: block.ErrUnavailable}})
	r := openReference(t, tiertest.ReferenceOptions{MaxBlocks: 2})
	f := tiertest.NewFaulty(r, sync)
	h := newTestHarness(t, f)
	host := newTestHost()
	f.SetHost(host)
	blocks := h.payloads("able", 3, 100)
	for _, p := range blocks {
		h.wantAll(h.store(p), driver.Stored)
	}
	if leave, _ := host.told(blocks[0].key); leave != 1 {
		t.Errorf("the Host was asked %d times, want once", leave)
	}
	moved := h.update(blocks[1], numberedKey("able", 9), blocks[1].attrs)
	h.wantThere(moved, blocks[2])
	for i, want := range []error{nil, block.ErrUnavailable, nil} {
		if err := h.settleSync(h.submitSync(f, nil)); !errors.Is(err, want) {
			t.Errorf("Sync %d: got %v, want %v", i, err, want)
		}
	}
	if got, want := f.Stats(), r.Stats(); got != want || got.Blocks != 2 {
		t.Errorf("Stats: got %+v, want %+v of 2 blocks", got, want)
	}
	sync.Set(tiertest.Rule{Op: tiertest.OpLoad, Fault: tiertest.Fault{Corrupt: true}})
	h.never(h.load(moved), driver.Loaded, "the plan calls it corrupt")
	if _, lost := host.told(moved.key); len(lost) != 1 || !errors.Is(lost[0], block.ErrCorrupt) {
		t.Errorf("lost %v, want %v", lost, block.ErrCorrupt)
	}

	f = tiertest.NewFaulty(plain{openReference(t, tiertest.ReferenceOptions{})}, nil)
	h = newTestHarness(t, f)
	f.SetHost(host)
	h.wantAll(h.store(blocks...), driver.Stored)
	if f.Update(blocks[0].key, blocks[1].key, &blocks[0].attrs) {
		t.Error("Update without a Recorder: got true, want false")
	}
	h.wantPresence(driver.Miss, keysOf(blocks[:2])...)
	h.wantPresence(driver.Hit, blocks[2].key)
	if err := h.settleSync(h.submitSync(f, nil)); !errors.Is(err, block.ErrUnavailable) {
		t.Errorf("Sync without a Syncer: got %v, want %v", err, block.ErrUnavailable)
	}
	if got := f.Stats(); got != (driver.Stats{State: "online"}) {
		t.Errorf("Stats without a Statser: got %+v, want zeros", got)
	}
	if err := f.Blocks(func(*driver.Held) bool { t.Error("a block is listed"); return true }); err != nil {
		t.Errorf("Blocks without an Enumerator: got %v, want none", err)
	}
}

// TestFaultySyncStall shows that a Sync is held back until it is released.
func TestFaultySyncStall(t *testing.T) {
	stall := make(chan struct{})
	r := openReference(t, tiertest.ReferenceOptions{})
	f := tiertest.NewFaulty(r, tiertest.NewPlan(tiertest.Rule{Op: tiertest.OpSync, Nth: 1, Fault: tiertest.Fault{Stall: stall}}))
	h := newTestHarness(t, f)
	slow := h.submitSync(f, nil)
	if err := h.settleSync(h.submitSync(f, nil)); err != nil {
		t.Errorf("the second Sync: got %v, want success", err)
	}
	if n := slow.calls.Load(); n != 0 {
		t.Errorf("done was called %d times before the release", n)
	}
	close(stall)
	if err := h.settleSync(slow); err != nil {
		t.Errorf("the first Sync: got %v, want success", err)
	}
}

// TestSuiteWithoutAbilities shows that the suite passes a tier without any optional
// ability.
func TestSuiteWithoutAbilities(t *testing.T) {
	t.Parallel()
	Run(t, func(t *testing.T) driver.Tier { return plain{openReference(t, tiertest.ReferenceOptions{})} }, Options{})
}
