package writing

import (
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// Unlink removes the file that name means to the caller: the name at once, the bytes when the last handle is closed.
// It fails with ErrNotFound or ErrIsDir.
func (e *drafts) Unlink(parent index.ID, name string, by state.Caller) error {
	var g state.Gone
	e.Mu.Lock()
	e.HearNameLocked(parent, name, by)
	err := e.removeLocked(parent, name, &by, &g)
	e.elsewhere.TellOutdatedLocked(&g)
	e.Mu.Unlock()
	e.Finish(&g)
	return err
}

func (e *drafts) removeLocked(parent index.ID, name string, by *state.Caller, g *state.Gone) error {
	k := state.NameKey{Parent: parent, Name: name}
	e.renounceLocked(k, by, g)
	id, _ := e.names.ResolveLocked(parent, name, *by)
	if id == 0 {
		return block.ErrNotFound
	}
	en := e.Mu.Ix.At(id)
	if en.Mode&state.ModeType == state.ModeDir {
		return block.ErrIsDir
	}
	holder := e.Mu.Ix.Lookup(parent, name)
	own := e.fileLocked(id)
	// Of several versions of a temporary name a process removes only its own. A process without one removes all.
	shares := e.KindLocked(en) == draft.Temp && own != nil && own.MineLocked(*by)
	if id != holder {
		e.dropLocked(own, fate.Cause{}, g)
	}
	takes := id == holder || !shares && e.Mu.Ix.At(holder).Flags&state.FlagUncommitted == 0
	if holder != 0 && (takes || shares && e.renames.replacedLocked(holder, draft.Temp)) {
		e.Mu.Counters.Removed++
		e.names.UnlinkLocked(holder, fate.Cause{Reason: fate.ReasonUnlink, By: by.Actor()}, by.Proc(), g)
	}
	if !shares {
		e.overtakeLocked(k, g)
	}
	e.seatNextLocked(k, g)
	e.ChangedLocked(parent)
	return nil
}
