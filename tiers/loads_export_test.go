package tiers

import (
	"errors"
	"reflect"
	"time"

	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/lane"
)

// Remembered is what the engine remembers of a path, whatever is there now.
func (e *Engine) Remembered(path string) fate.Verdict {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.verdicts.fates.Of(e.verdicts.fates.Hash(path)).Explain(e.opts.Kernels)
}

// Limits of prefetches.
const (
	PrefetchKeys = prefetchKeys
	MaxHintCalls = maxHintCalls
)

// AuditLoads compares the accounts of loads with what is queued and under way.
func (e *Engine) AuditLoads() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	for _, s := range e.tiers {
		errs = append(errs, s.AuditLocked())
	}
	return errors.Join(errs...)
}

// AtRest reports whether no load is queued or under way, and nobody waits for one.
func (e *Engine) AtRest() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.tiers {
		if jobs, waiting := s.LoadJobsLocked(nil); len(jobs)+waiting > 0 {
			return false
		}
	}
	return len(e.mu.promotions)+len(e.mu.orphans) == 0
}

// HintsUnderWay returns how many calls of Hint have not ended.
func (e *Engine) HintsUnderWay() int { return int(e.loads.hints.taken.Load()) }

// Measure has a tier appear to have given bytes in took, just now.
func (e *Engine) Measure(tier string, bytes int64, took time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.tiers {
		if s.opts.Name == tier {
			now := e.opts.Now()
			s.predict = lane.Predictor{}
			s.predict.Ended(now.Add(-took), now, bytes)
		}
	}
}

// Measured returns how many bytes the measurements of a tier stand for.
func (e *Engine) Measured(tier string) float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.tiers {
		if s.opts.Name == tier {
			return reflect.ValueOf(&s.predict).Elem().FieldByName("bytes").Float()
		}
	}
	return 0
}
