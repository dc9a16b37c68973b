package tiertest

import (
	"context"
	"errors"
	"testing"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
)

// TestFaultyWithoutFaults shows that the decorator changes nothing by itself, with
// an empty plan and with none.
func TestFaultyWithoutFaults(t *testing.T) {
	t.Parallel()
	Run(t, func(t *testing.T) tiers.Tier {
		return NewFaulty(openReference(t, ReferenceOptions{}), NewPlan())
	}, Options{
		Small: func(t *testing.T) tiers.Tier {
			return NewFaulty(openReference(t, smallReferences[0]), nil)
		},
		LRU: true,
		Reopen: func(t *testing.T, old tiers.Tier) tiers.Tier {
			return NewFaulty(reopenReference(t, old.(*Faulty).Unwrap()), nil)
		},
	})
}

// TestFaultyWithFaults shows that a decorated tier has errors, but never wrong
// bytes and never a job without its Result.
func TestFaultyWithFaults(t *testing.T) {
	t.Parallel()
	plan := everyNth()
	Run(t, func(t *testing.T) tiers.Tier {
		return NewFaulty(openReference(t, ReferenceOptions{}), plan)
	}, Options{
		Small: func(t *testing.T) tiers.Tier {
			return NewFaulty(openReference(t, smallReferences[0]), plan)
		},
		Faulty: true,
	})
	if plan.Injected() == 0 {
		t.Error("no fault was injected")
	}
}

// TestFaultyOutcomes shows the effect of each fault on a tier that is sound.
func TestFaultyOutcomes(t *testing.T) {
	bad := numberedKey("bad", 0)
	match := func(k block.Key) bool { return k == bad }
	plan := NewPlan()
	h := newTestHarness(t, NewFaulty(openReference(t, ReferenceOptions{}), plan))
	blocks := []payload{h.payload(numberedKey("good", 0), 0, 3000), h.payload(bad, 0, 3000)}
	want := func(what string, o tiers.Outcome, err error) {
		t.Helper()
		if o.Status != tiers.Failed || !errors.Is(o.Err, err) {
			t.Errorf("%s: got %v (%v), want %v", what, o.Status, o.Err, err)
		}
	}

	plan.Set(Rule{Op: OpStore, Match: match, Fault: Fault{Err: block.ErrUnavailable}})
	outcomes := h.store(blocks...)
	h.wantStatus(outcomes, 0, tiers.Stored)
	want("Store, acknowledgement lost", outcomes[1], block.ErrUnavailable)
	plan.Set()
	h.wantAll(h.load(blocks...), tiers.Loaded)

	plan.Set(Rule{Op: OpLookup, Match: match, Fault: Fault{Hide: true}})
	h.wantPresence(tiers.Miss, bad)
	plan.Set(Rule{Op: OpLookup, Nth: 1, Fault: Fault{Err: block.ErrUnavailable}})
	out := []tiers.Presence{tiers.Hit, tiers.Hit}
	if err := h.tier.Lookup(t.Context(), keysOf(blocks), out); !errors.Is(err, block.ErrUnavailable) {
		t.Errorf("Lookup: got %v, want %v", err, block.ErrUnavailable)
	}
	h.checkAllMiss(out)

	plan.Set(Rule{Op: OpLoad, Match: match, Fault: Fault{Corrupt: true}})
	outcomes = h.load(blocks...)
	h.wantStatus(outcomes, 0, tiers.Loaded)
	want("Load, corrupt", outcomes[1], block.ErrCorrupt)
	h.wantPresence(tiers.Miss, bad)
}

// TestFaultyStall shows that a completion is held back until it is released, while
// others go through, and that Close lets go of it when its context is done.
func TestFaultyStall(t *testing.T) {
	for _, released := range []bool{true, false} {
		rule, release := stallStore(numberedKey("slow", 0))
		h := newTestHarness(t, NewFaulty(openReference(t, ReferenceOptions{Workers: 1}), NewPlan(rule)))
		slow := h.submit(jobSpec{op: OpStore, blocks: h.payloads("slow", 2, 100)})
		h.wantAll(h.store(h.payloads("quick", 2, 100)...), tiers.Stored)
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
		h.wantAll(h.settle(slow), tiers.Stored)
	}
}
