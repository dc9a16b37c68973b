package tiers

import (
	"time"

	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
)

// lateLocked reports whether a load of size bytes, asked of a tier now, would probably take longer than deadline.
func lateLocked(s *secondary, size int64, deadline time.Duration) bool {
	return deadline != noDeadline && s.LateLocked(size, deadline)
}

// openDeadline returns how long the open of a hollow block may wait, and whether the block would probably come too
// late. If the tier is idle, openDeadline then starts a load for which no caller waits: otherwise a tier could never
// show that it has become faster.
func (e *lookups) openDeadline(id index.ID) (deadline time.Duration, late bool) {
	e.mu.Lock()
	en := e.mu.ix.At(id)
	deadline = e.deadlineOfLocked(e.mu.room.Group(en.Group), 0)
	if deadline == noDeadline || !e.hollowLocked(id, en) || e.mu.promotions[id] != nil {
		e.mu.Unlock()
		return deadline, false
	}
	s := e.firstTier(en)
	idle := s.IdleLocked()
	if late = lateLocked(s, en.Size, deadline); late {
		e.mu.counters.DeadlinePredicted++
		e.verdicts.verdictLocked(id, fate.Deadline, s.opts.Name, fate.Cause{Reason: fate.ReasonPredicted})
	}
	e.mu.Unlock()
	if late && idle {
		e.loads.promote(e.ctx, nil, id, true)
	}
	return deadline, late
}
