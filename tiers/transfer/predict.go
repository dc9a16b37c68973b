package transfer

import (
	"time"

	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// OpenDeadline returns how long the open of a hollow block may wait, and whether the block would probably come too
// late. If the tier is idle, OpenDeadline then starts a load for which no caller waits: otherwise a tier could never
// show that it has become faster.
func (tr *Transfer) OpenDeadline(id index.ID) (deadline time.Duration, late bool) {
	tr.Mu.Lock()
	en := tr.Mu.Ix.At(id)
	deadline = tr.DeadlineOfLocked(tr.Mu.Room.Group(en.Group()), 0)
	if deadline == state.NoDeadline || !tr.HollowLocked(id, en) || tr.promotions[id] != nil {
		tr.Mu.Unlock()
		return deadline, false
	}
	s := tr.FirstTier(en)
	idle := s.IdleLocked()
	if late = state.LateLocked(s, en.Size(), deadline); late {
		tr.Mu.Counters.DeadlinePredicted++
		tr.VerdictLocked(id, fate.Deadline, s.Opts.Name, fate.Cause{Reason: fate.ReasonPredicted})
	}
	tr.Mu.Unlock()
	if late && idle {
		tr.Promote(tr.Ctx, nil, id, true)
	}
	return deadline, late
}
