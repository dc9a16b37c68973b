package tiers

import (
	"slices"
	"time"

	"github.com/kvfs/kvfs/tiers/driver"

	"github.com/kvfs/kvfs/tiers/block"
)

// requestLoad puts a promotion among those that the next job of its tier takes.
func (e *Engine) requestLoad(p *promotion) {
	for _, s := range e.queueLoads([]*promotion{p}) {
		e.mu.Lock()
		full := len(s.pending) >= e.opts.PromoteBatchKeys || s.pendingBytes >= e.opts.PromoteBatchBytes || e.opts.PromoteWindow == 0
		e.mu.Unlock()
		if full {
			e.flushLoads(s)
		} else {
			time.AfterFunc(e.opts.PromoteWindow, func() { e.flushLoads(s) })
		}
	}
}

// queueLoads puts promotions among those that wait to become part of a job, and returns their
// tiers.
func (e *Engine) queueLoads(list []*promotion) (queued []*secondary) {
	e.mu.Lock()
	closed := e.mu.closed
	if !closed {
		for _, p := range list {
			p.asked++
			p.tier.queueLoadLocked(p)
			if !slices.Contains(queued, p.tier) {
				queued = append(queued, p.tier)
			}
		}
	}
	e.mu.Unlock()
	if closed {
		for _, p := range list {
			e.failPromotion(p, block.ErrClosed)
		}
	}
	return queued
}

// queueLoadLocked puts p behind what was asked for before, but who waits in an open goes before
// what is wanted ahead of use.
func (s *secondary) queueLoadLocked(p *promotion) {
	at := len(s.pending)
	for !p.ahead && at > 0 && s.pending[at-1].ahead {
		at--
	}
	s.pending = slices.Insert(s.pending, at, p)
	s.pendingBytes += p.size
}

// hastenLocked follows that somebody waits in an open for what was wanted ahead of use.
func (e *Engine) hastenLocked(p *promotion) {
	if !p.ahead {
		return
	}
	p.ahead = false
	if i := slices.Index(p.tier.pending, p); i >= 0 {
		p.tier.pending = slices.Delete(p.tier.pending, i, i+1)
		p.tier.pendingBytes -= p.size
		p.tier.queueLoadLocked(p)
	}
}

// flushLoads gives the pending promotions of a tier to it, in jobs of one request
// each, limited in keys and bytes.
func (e *Engine) flushLoads(s *secondary) {
	for {
		e.mu.Lock()
		load, batch := e.takeLoadsLocked(s)
		e.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		job := &driver.Job{ID: load.ID, Request: load.Request, Promotion: load.Promotion, Blocks: make([]driver.Transfer, len(batch))}
		for i, p := range batch {
			job.Blocks[i] = driver.Transfer{Key: p.key, Size: p.size, Sum: p.sum, File: p.file}
			if s == e.remote {
				job.Blocks[i].Attrs.Seq = p.seq
			}
		}
		started := e.opts.Now()
		job.Done = e.answered(s, job, func(r *driver.Result) { e.loaded(s, load.ID, batch, r, started) })
		s.tier.Load(job)
	}
}

func (e *Engine) takeLoadsLocked(s *secondary) (*LoadJob, []*promotion) {
	if len(s.pending) == 0 || s.loading >= maxLoadJobs || e.mu.closed {
		return nil, nil
	}
	var batch, rest []*promotion
	var bytes int64
	keys := map[block.Key]struct{}{}
	for i, p := range s.pending {
		_, twice := keys[p.key] // the name went to another block meanwhile
		if len(batch) > 0 && (twice || p.request != batch[0].request || p.ahead != batch[0].ahead) {
			rest = append(rest, p)
			continue
		}
		if len(batch) >= e.opts.PromoteBatchKeys || len(batch) > 0 && bytes+p.size > e.opts.PromoteBatchBytes {
			rest = append(rest, s.pending[i:]...)
			break
		}
		keys[p.key] = struct{}{}
		batch = append(batch, p)
		bytes += p.size
	}
	s.pending = rest
	s.pendingBytes -= bytes
	s.stats.Batches++
	load := &LoadJob{
		ID: driver.JobID(e.jobs.Add(1)), Request: batch[0].request, Tier: s.opts.Name, Promotion: !batch[0].ahead,
		Keys: len(batch), Bytes: bytes, Started: e.opts.Now(),
	}
	s.beginLoadLocked(load)
	return load, batch
}

// loaded follows the end of a load job.
func (e *Engine) loaded(s *secondary, id driver.JobID, batch []*promotion, r *driver.Result, started time.Time) {
	sum := batchSummary{tier: s.opts.Name, request: batch[0].request, keys: len(batch), took: e.opts.Now().Sub(started)}
	if e.opts.TierSummary {
		sum.groups = map[block.GroupID]int{}
	}
	for i, p := range batch {
		o := &r.Outcomes[i]
		if o.Status == driver.Loaded {
			sum.bytes += p.size
			if !p.taken {
				sum.success++
			}
		}
		if p.taken { // no read
			sum.keys--
		} else if sum.groups != nil {
			sum.groups[p.key.Group]++
		}
		if p.aside != nil {
			p.aside(o)
			continue
		}
		if o.Status == driver.Loaded {
			e.learnAttrs(p, o.Attrs)
			e.finishPromotion(s, p, o)
			continue
		}
		sum.failed++
		e.retryPromotion(s, p, o)
	}
	e.mu.Lock()
	s.endLoadLocked(id, e.opts.Now(), sum.bytes)
	line := e.summarizeLocked(&sum)
	e.mu.Unlock()
	e.logSummary(line)
	e.flushLoads(s)
}
