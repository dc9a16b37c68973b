package tiers

import (
	"errors"
	"time"

	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/transfer"
)

// Remembered is what the engine remembers of a path, whatever is there now.
func (e *Engine) Remembered(path string) fate.Verdict {
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	return e.st.Mu.Fates.Of(e.st.Mu.Fates.Hash(path)).Explain(e.st.Opts.Kernels)
}

// Limits of prefetches.
const (
	PrefetchKeys = transfer.PrefetchKeys
	MaxHintCalls = transfer.MaxHintCalls
)

// AuditLoads compares the accounts of loads with what is queued and under way.
func (e *Engine) AuditLoads() error {
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	var errs []error
	for _, s := range e.st.Tiers {
		errs = append(errs, s.AuditLocked())
	}
	return errors.Join(errs...)
}

// Measure has a tier appear to have given bytes in took, just now.
func (e *Engine) Measure(tier string, bytes int64, took time.Duration) {
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	for _, s := range e.st.Tiers {
		if s.Opts.Name == tier {
			now := e.st.Opts.Now()
			s.Predict = lane.Predictor{}
			s.Predict.Ended(now.Add(-took), now, bytes)
		}
	}
}
