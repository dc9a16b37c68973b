package tiers

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/fate"

	"github.com/kvfs/kvfs/tiers/block"
)

// Remembered is what the engine remembers of a path, whatever is there now.
func (e *Engine) Remembered(path string) fate.Verdict {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.fates.Of(e.mu.fates.Hash(path)).Explain(e.opts.Kernels)
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
		var pending, loading int64
		for _, p := range s.pending {
			pending += p.size
		}
		for _, j := range s.jobs {
			loading += j.Bytes
		}
		if s.pendingBytes != pending || s.loadingBytes != loading || s.loading != len(s.jobs) {
			errs = append(errs, fmt.Errorf("tier %q: accounts say %d bytes wait, %d are loaded by %d jobs; there are %d, %d, %d",
				s.opts.Name, s.pendingBytes, s.loadingBytes, s.loading, pending, loading, len(s.jobs)))
		}
	}
	return errors.Join(errs...)
}

// CutLoads returns the jobs into which a tier's waiting loads of these sizes are cut, as indexes: those of request[i]
// may not go with others.
func CutLoads(sizes []int64, requests []string, keys int, bytes int64) (jobs [][]int) {
	e := &Engine{opts: Options{PromoteBatchKeys: keys, PromoteBatchBytes: bytes, Now: time.Now}}
	s := &secondary{jobs: map[driver.JobID]*LoadJob{}}
	at := map[*promotion]int{}
	for i, size := range sizes {
		p := &promotion{size: size, request: requests[i], key: block.Key{Hash: block.Hash(strconv.Itoa(i))}}
		at[p] = i
		s.queueLoadLocked(p)
	}
	for {
		load, batch := e.takeLoadsLocked(s)
		if load == nil {
			return jobs
		}
		s.endLoadLocked(load.ID, time.Now(), load.Bytes)
		job := make([]int, len(batch))
		for i, p := range batch {
			job[i] = at[p]
		}
		jobs = append(jobs, job)
	}
}

// AtRest reports whether no load is queued or under way, and nobody waits for one.
func (e *Engine) AtRest() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.tiers {
		if len(s.pending)+len(s.again)+len(s.jobs)+s.loading != 0 || s.loadingBytes != 0 {
			return false
		}
	}
	return len(e.mu.promotions)+len(e.mu.orphans) == 0
}

// HintsUnderWay returns how many calls of Hint have not ended.
func (e *Engine) HintsUnderWay() int { return int(e.hints.taken.Load()) }

// Predictor is the predictor of a tier.
type Predictor struct{ p predictor }

// Ended is predictor.ended.
func (p *Predictor) Ended(started, now time.Time, bytes int64) { p.p.ended(started, now, bytes) }

// After is predictor.after.
func (p *Predictor) After(bytes int64) time.Duration { return p.p.after(bytes) }

// Measure has a tier appear to have given bytes in took, just now.
func (e *Engine) Measure(tier string, bytes int64, took time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.tiers {
		if s.opts.Name == tier {
			now := e.opts.Now()
			s.predict = predictor{took: float64(took), bytes: float64(bytes), last: now}
		}
	}
}

// Measured returns how many bytes the measurements of a tier stand for.
func (e *Engine) Measured(tier string) float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.tiers {
		if s.opts.Name == tier {
			return s.predict.bytes
		}
	}
	return 0
}
