package suite

import (
	"cmp"
	"errors"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// small are the options of a small tier.
var small = tiertest.ReferenceOptions{CapacityBytes: 8 * 4096}

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
	r := old.(*tiertest.Reference).Reopen()
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
// with one worker and with several.
func TestReference(t *testing.T) {
	for name, opts := range map[string]tiertest.ReferenceOptions{
		"two workers": {CapacityBytes: 32 << 20},
		"one worker":  {Workers: 1},
		"latency":     {Workers: 8, Latency: time.Microsecond},
		"direct":      {Direct: true, MaxKeyBytes: 2000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			Run(t, func(*testing.T) driver.Tier { return tiertest.OpenReference(opts) }, Options{
				Small: func(*testing.T) driver.Tier { return tiertest.OpenReference(small) },
				Budgeted: func(t *testing.T) driver.Tier {
					return tiertest.OpenReference(tiertest.ReferenceOptions{BudgetBytes: 20000})
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
		return func(*testing.T) driver.Tier { return tiertest.Finding{Reference: tiertest.OpenReference(opts)} }
	}
	Run(t, reference(tiertest.ReferenceOptions{}), Options{
		Small: reference(small),
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
	return tiertest.NewPlan(
		tiertest.Rule{Op: tiertest.OpStore, Every: 7, Fault: tiertest.Fault{Err: block.ErrUnavailable}},
		tiertest.Rule{Op: tiertest.OpStore, Every: 11, Fault: tiertest.Fault{Corrupt: true}},
		tiertest.Rule{Op: tiertest.OpLoad, Every: 5, Fault: tiertest.Fault{Corrupt: true}},
		tiertest.Rule{Op: tiertest.OpLoad, Every: 9, Fault: tiertest.Fault{Err: block.ErrUnavailable}},
		tiertest.Rule{Op: tiertest.OpSync, Every: 3, Fault: tiertest.Fault{Err: block.ErrUnavailable}},
		tiertest.Rule{Op: tiertest.OpLookup, Every: 31, Fault: tiertest.Fault{Err: block.ErrUnavailable}},
	)
}

// TestReferenceFaults shows that with faults the reference implementation has errors, but never
// wrong bytes and never a job without its Result (A33).
func TestReferenceFaults(t *testing.T) {
	t.Parallel()
	plan := everyNth()
	Run(t, func(t *testing.T) driver.Tier {
		return tiertest.OpenReference(tiertest.ReferenceOptions{Faults: plan})
	}, Options{
		Small: func(t *testing.T) driver.Tier {
			return tiertest.OpenReference(tiertest.ReferenceOptions{CapacityBytes: 8 * 4096, Faults: plan})
		},
		Faulty: true,
	})
	if plan.Injected() == 0 {
		t.Error("no fault was injected")
	}
}

// plain is a tier without any optional ability.
type plain struct{ driver.Tier }

// TestSuiteWithoutAbilities shows that the suite passes a tier without any optional
// ability.
func TestSuiteWithoutAbilities(t *testing.T) {
	t.Parallel()
	Run(t, func(t *testing.T) driver.Tier { return plain{tiertest.OpenReference(tiertest.ReferenceOptions{})} }, Options{})
}
