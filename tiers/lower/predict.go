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
func (ld *loads) OpenDeadline(id index.ID) (deadline time.Duration, late bool) {
	ld.Mu.Lock()
	en := ld.Mu.Ix.At(id)
	deadline = ld.DeadlineOfLocked(ld.Mu.Room.Group(en.Group), 0)
	if deadline == state.NoDeadline || !ld.HollowLocked(id, en) || ld.promotions[id] != nil {
		ld.Mu.Unlock()
		return deadline, false
	}
	s := ld.FirstTier(en)
	idle := s.IdleLocked()
	if late = state.LateLocked(s, en.Size, deadline); late {
		ld.Mu.Counters.DeadlinePredicted++
		ld.VerdictLocked(id, fate.Deadline, s.Opts.Name, fate.Cause{Reason: fate.ReasonPredicted})
	}
	ld.Mu.Unlock()
	if late && idle {
		ld.Promote(ld.Ctx, nil, id, true)
	}
	return deadline, late
}
