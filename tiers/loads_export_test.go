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
	e.Mu.Lock()
	defer e.Mu.Unlock()
	return e.Mu.Fates.Of(e.Mu.Fates.Hash(path)).Explain(e.Opts.Kernels)
}

// Limits of prefetches.
const (
	PrefetchKeys = prefetchKeys
	MaxHintCalls = maxHintCalls
)

// AuditLoads compares the accounts of loads with what is queued and under way.
func (e *Engine) AuditLoads() error {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	var errs []error
	for _, s := range e.Tiers {
		errs = append(errs, s.AuditLocked())
	}
	return errors.Join(errs...)
}

// AtRest reports whether no load is queued or under way, and nobody waits for one.
func (e *Engine) AtRest() bool {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	for _, s := range e.Tiers {
		if jobs, waiting := s.LoadJobsLocked(nil); len(jobs)+waiting > 0 {
			return false
		}
	}
	return len(e.loads.promotions)+len(e.loads.orphans) == 0
}

// HintsUnderWay returns how many calls of Hint have not ended.
func (e *Engine) HintsUnderWay() int { return int(e.loads.hints.Taken()) }

// Measure has a tier appear to have given bytes in took, just now.
func (e *Engine) Measure(tier string, bytes int64, took time.Duration) {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	for _, s := range e.Tiers {
		if s.Opts.Name == tier {
			now := e.Opts.Now()
			s.Predict = lane.Predictor{}
			s.Predict.Ended(now.Add(-took), now, bytes)
		}
	}
}

// Measured returns how many bytes the measurements of a tier stand for.
func (e *Engine) Measured(tier string) float64 {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	for _, s := range e.Tiers {
		if s.Opts.Name == tier {
			return reflect.ValueOf(&s.Predict).Elem().FieldByName("bytes").Float()
		}
	}
	return 0
}
