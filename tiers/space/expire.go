package space

import (
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/state"
)

func (sp *space) ExpireLocked(g *state.Gone) {
	now := sp.Now()
	for id := sp.Mu.Ix.Due(now); id != 0; id = sp.Mu.Ix.Due(now) {
		en := sp.Mu.Ix.At(id)
		if !sp.Mu.Ix.Linked(id) || !en.Committed() {
			continue
		}
		sp.Mu.Counters.Expired++
		sp.names.DropNameLocked(id, en, event.Removed, fate.Cause{Reason: fate.ReasonExpired}, g)
	}
}
