package tiers

import (
	"time"

	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/fate"

	"github.com/kvfs/kvfs/tiers/index"
)

// predictor measures what a tier gives, to tell how long a load that is asked for now would
// take. Guarded by Engine.mu.
//
// It sums the times from the end of one job to that of the next, or from its begin if that was
// later, and the bytes that they brought; the latest count most. With many jobs under way at a
// time that is the throughput of all together, and of blocks of one size it includes what each
// costs whatever its size.
type predictor struct {
	took  float64 // nanoseconds
	bytes float64
	last  time.Time // end of the last job
}

const (
	// predictDecay is the share that a measurement keeps when the next one comes.
	predictDecay = 0.9
	// predictStale is the age at which measurements of a tier that has had nothing to do since do
	// not count any more, so that one which was slow is tried again.
	predictStale = 10 * time.Second
	// maxPrediction bounds a prediction, in nanoseconds: longer than any deadline.
	maxPrediction = float64(1 << 62)
)

// ended follows the end of a job that brought some bytes.
func (p *predictor) ended(started, now time.Time, bytes int64) {
	since := started
	if p.last.After(started) {
		since = p.last
	}
	p.last = now
	if bytes > 0 {
		p.took = predictDecay*p.took + float64(now.Sub(since))
		p.bytes = predictDecay*p.bytes + float64(bytes)
	}
}

// after returns how long it will probably take until bytes have come; 0 if nothing is known.
func (p *predictor) after(bytes int64) time.Duration {
	if p.bytes == 0 {
		return 0
	}
	return time.Duration(min(p.took/p.bytes*float64(bytes), maxPrediction))
}

// lateLocked reports whether a load of size bytes that a tier is asked for now would probably
// take longer than deadline. What it was asked for before comes first. A tier that has given
// nothing for longer than that, though it was asked, is late, too.
func (e *Engine) lateLocked(s *secondary, size int64, deadline time.Duration) bool {
	if deadline == noDeadline {
		return false
	}
	now := e.opts.Now()
	queued := s.pendingBytes + s.loadingBytes
	if s.loading == 0 && queued == 0 && now.Sub(s.predict.last) > predictStale {
		return false
	}
	if s.predict.after(queued+size) > deadline {
		return true
	}
	since := s.busySince
	if s.predict.last.After(since) {
		since = s.predict.last
	}
	return s.loading > 0 && now.Sub(since) > deadline
}

// beginLoadLocked notes a load job.
func (s *secondary) beginLoadLocked(j *LoadJob) {
	if s.loading == 0 {
		s.busySince = j.Started
	}
	s.loading++
	s.loadingBytes += j.Bytes
	s.jobs[j.ID] = j
}

// endLoadLocked notes its end. brought: the bytes that came.
func (s *secondary) endLoadLocked(id driver.JobID, now time.Time, brought int64) {
	j := s.jobs[id]
	delete(s.jobs, id)
	s.loading--
	s.loadingBytes -= j.Bytes
	s.predict.ended(j.Started, now, brought)
}

// openDeadline returns how long the open of a block that is not in memory may wait, and whether
// the block would probably come too late. A tier that has nothing to do is asked for it all the
// same, without anybody waiting: else it could never show that it has become faster.
func (e *Engine) openDeadline(id index.ID) (deadline time.Duration, late bool) {
	e.mu.Lock()
	en := e.mu.ix.At(id)
	deadline = e.deadlineOfLocked(e.mu.room.Group(en.Group), 0)
	if deadline == noDeadline || !e.hollowLocked(id, en) || e.mu.promotions[id] != nil {
		e.mu.Unlock()
		return deadline, false
	}
	s := e.firstTier(en)
	idle := s.loading == 0 && len(s.pending) == 0
	if late = e.lateLocked(s, en.Size, deadline); late {
		e.mu.counters.DeadlinePredicted++
		e.verdictLocked(id, fate.Deadline, s.opts.Name, fate.Cause{Reason: fate.ReasonPredicted})
	}
	e.mu.Unlock()
	if late && idle {
		e.promote(e.ctx, nil, id, true)
	}
	return deadline, late
}
