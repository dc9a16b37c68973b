package lower

import (
	"time"

	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// OpenDeadline returns how long the open of a hollow block may wait, and whether the block would probably come too
// late. If the tier is idle, OpenDeadline then starts a load for which no caller waits: otherwise a tier could never
// show that it has become faster.
func (e *loads) OpenDeadline(id index.ID) (deadline time.Duration, late bool) {
	e.Mu.Lock()
	en := e.Mu.Ix.At(id)
	deadline = e.DeadlineOfLocked(e.Mu.Room.Group(en.Group), 0)
	if deadline == state.NoDeadline || !e.HollowLocked(id, en) || e.promotions[id] != nil {
		e.Mu.Unlock()
		return deadline, false
	}
	s := e.FirstTier(en)
	idle := s.IdleLocked()
	if late = state.LateLocked(s, en.Size, deadline); late {
		e.Mu.Counters.DeadlinePredicted++
		e.VerdictLocked(id, fate.Deadline, s.Opts.Name, fate.Cause{Reason: fate.ReasonPredicted})
	}
	e.Mu.Unlock()
	if late && idle {
		e.Promote(e.Ctx, nil, id, true)
	}
	return deadline, late
}
