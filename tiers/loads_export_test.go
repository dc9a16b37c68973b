package tiers

import (
	"errors"
	"reflect"
	"time"

	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/lower"
	"github.com/kvfs/kvfs/tiers/state"
)

// Remembered is what the engine remembers of a path, whatever is there now.
func (e *Engine) Remembered(path string) fate.Verdict {
	e.core.Mu.Lock()
	defer e.core.Mu.Unlock()
	return e.core.Mu.Fates.Of(e.core.Mu.Fates.Hash(path)).Explain(e.core.Opts.Kernels)
}

// Limits of prefetches.
const (
	PrefetchKeys = lower.PrefetchKeys
	MaxHintCalls = lower.MaxHintCalls
)

// AuditLoads compares the accounts of loads with what is queued and under way.
func (e *Engine) AuditLoads() error {
	e.core.Mu.Lock()
	defer e.core.Mu.Unlock()
	var errs []error
	for _, s := range e.core.Tiers {
		errs = append(errs, s.AuditLocked())
	}
	return errors.Join(errs...)
}

// AtRest reports whether no load is queued or under way, and nobody waits for one.
func (e *Engine) AtRest() bool {
	e.core.Mu.Lock()
	defer e.core.Mu.Unlock()
	for _, s := range e.core.Tiers {
		if jobs, waiting := s.LoadJobsLocked(nil); len(jobs)+waiting > 0 {
			return false
		}
	}
	return len(e.loadsLocked("promotions", "orphans")) == 0
}

// HintsUnderWay returns how many calls of Hint have not ended.
func (e *Engine) HintsUnderWay() int {
	return int(inside(e.core.lower, "loads", "hints").Addr().Interface().(*state.Allowance).Taken())
}

// Measure has a tier appear to have given bytes in took, just now.
func (e *Engine) Measure(tier string, bytes int64, took time.Duration) {
	e.core.Mu.Lock()
	defer e.core.Mu.Unlock()
	for _, s := range e.core.Tiers {
		if s.Opts.Name == tier {
			now := e.core.Opts.Now()
			s.Predict = lane.Predictor{}
			s.Predict.Ended(now.Add(-took), now, bytes)
		}
	}
}

// Measured returns how many bytes the measurements of a tier stand for.
func (e *Engine) Measured(tier string) float64 {
	e.core.Mu.Lock()
	defer e.core.Mu.Unlock()
	for _, s := range e.core.Tiers {
		if s.Opts.Name == tier {
			return reflect.ValueOf(&s.Predict).Elem().FieldByName("bytes").Float()
		}
	}
	return 0
}
