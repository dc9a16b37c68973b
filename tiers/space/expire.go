package space

import (
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/state"
)

func (e *space) ExpireLocked(g *state.Gone) {
	now := e.Now()
	for id := e.Mu.Ix.Due(now); id != 0; id = e.Mu.Ix.Due(now) {
		en := e.Mu.Ix.At(id)
		if !e.Mu.Ix.Linked(id) || !en.Committed() {
			continue
		}
		e.Mu.Counters.Expired++
		e.names.DropNameLocked(id, en, event.Removed, fate.Cause{Reason: fate.ReasonExpired}, g)
	}
}
