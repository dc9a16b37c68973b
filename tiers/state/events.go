package state

import (
	"errors"

	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
)

// EventLocked logs an event about a block that has a name.
func (e *State) EventLocked(kind event.Kind, id index.ID, why fate.Cause) {
	tier := "memory"
	if kind == event.Removed && len(e.Tiers) > 0 {
		tier = ""
	}
	e.TierEventLocked(kind, tier, id, why)
}

// TierEventLocked logs an event about a block and one of its tiers, "" for none in particular.
func (e *State) TierEventLocked(kind event.Kind, tier string, id index.ID, why fate.Cause) {
	e.noteLocked(kind, tier, id, why)
	e.Mu.Reuse.eventLocked(kind, tier, id, why)
	e.EventLog.Add(event.Event{
		Time: e.Opts.Now(), Kind: kind, Tier: tier, Key: e.KeyLocked(id), Size: e.Mu.Ix.At(id).Size, Reason: why.Reason,
		Guard: e.GuardLocked(nil, id),
	})
}

// VerdictLocked notes what happened to the block of an entry. The entry still has its name.
func (e *State) VerdictLocked(id index.ID, kind fate.Kind, tier string, why fate.Cause) {
	e.Mu.Fates.Add(e.PathHashLocked(id), fate.Fate{
		Time: e.Now(), Event: e.EventLog.Next(), Kind: kind, Tier: tier, Reason: why.Reason, By: why.By,
	})
}

// noteLocked notes an event that says why a block is not where it was.
func (e *State) noteLocked(ev event.Kind, tier string, id index.ID, why fate.Cause) {
	if ev != event.Evicted && ev != event.Removed {
		return
	}
	kind := why.Reason.Kind()
	if ev == event.Evicted {
		en := e.Mu.Ix.At(id)
		switch {
		case e.OwnTiers(en) != 0, tier != "memory" && e.ResidentLocked(id, en):
			return // reads still find it
		case en.Tiers != 0: // reads find it while other nodes have it
			kind, tier, why.Reason = fate.PeerGone, e.Remote.Opts.Name, 0
		}
	}
	if kind == fate.Unreachable && e.Remote != nil && tier == e.Remote.Opts.Name {
		kind = fate.PeerGone
	}
	if ev == event.Removed && tier == "" {
		// The last tier just lost its copy. The verdict on that says more.
		if e.Mu.Fates.Is(e.PathHashLocked(id), e.EventLog.Next()-1, why.Reason) {
			return
		}
	}
	e.VerdictLocked(id, kind, tier, why)
}

// RenamedVerdictLocked notes that the block at the path from was renamed to id.
func (e *State) RenamedVerdictLocked(from string, id index.ID, by fate.Actor) {
	e.Mu.Fates.Add(e.Mu.Fates.Hash(from), fate.Fate{Time: e.Now(), Kind: fate.Renamed, By: by, To: e.Mu.Ix.Path(id)})
}

// JudgeLocked notes that a promotion did not give the block, in time or at all.
func (e *State) JudgeLocked(path, tier string, kind fate.Kind, rule fate.Reason) {
	e.Mu.Fates.Add(e.Mu.Fates.Hash(path), fate.Fate{Time: e.Now(), Kind: kind, Tier: tier, Reason: rule})
}

// FailedVerdictLocked notes why a promotion failed, if the error tells.
func (e *State) FailedVerdictLocked(path, tier string, err error) {
	if kind, rule := fate.OfLoad(err); kind != "" && !errors.Is(err, ErrStale) {
		e.JudgeLocked(path, tier, kind, rule)
	}
}

// DirEventLocked adds an event of a directory, if there is a Remote tier.
func (e *State) DirEventLocked(kind event.Kind, id index.ID) {
	if e.Remote == nil {
		return
	}
	e.EventLog.Add(event.Event{Time: e.Opts.Now(), Kind: kind, Key: e.KeyLocked(id)})
}
