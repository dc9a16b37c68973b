package space

import (
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/state"
)

func (e *space) ExpireLocked(g *state.Gone) {
	now := e.Now()
	for at, id, ok := e.Mu.Expiries.Due(now); ok; at, id, ok = e.Mu.Expiries.Due(now) {
		if !e.Mu.Ix.Valid(id) {
			continue
		}
		en := e.Mu.Ix.At(id)
		if en.Expires != at || !e.Mu.Ix.Linked(id) || en.Flags&state.FlagUncommitted != 0 {
			continue
		}
		e.Mu.Counters.Expired++
		e.names.DropNameLocked(id, en, event.Removed, fate.Cause{Reason: fate.ReasonExpired}, g)
	}
}
