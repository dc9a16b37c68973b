package state

import (
	"errors"
	"slices"

	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
)

// followLocked follows blocks for the event log, the outcomes that explain a miss, and the samples of reuse.
func (st *State) followLocked(f catalog.Fact) {
	kind, tier := event.Removed, "memory"
	switch f.What {
	case catalog.Kept:
		kind = event.Stored
	case catalog.Dropped:
		kind = event.Evicted
	case catalog.Gone:
		if len(st.Tiers) > 0 {
			tier = ""
		}
	}
	if f.Tier != 0 {
		tier = st.Tiers[slices.IndexFunc(st.Tiers, func(s *Secondary) bool { return s.Bit == f.Tier })].Opts.Name
	}
	st.EventLocked(kind, tier, f.ID, f.Why)
}

// EventLocked logs an event about a block and one of its tiers, "" for none in particular.
func (st *State) EventLocked(kind event.Kind, tier string, id index.ID, why outcome.Cause) {
	st.noteLocked(kind, tier, id, why)
	st.Mu.Reuse.eventLocked(kind, tier, id, why)
	st.EventLog.Add(event.Event{
		Time: st.Opts.Now(), Kind: kind, Tier: tier, Key: st.KeyLocked(id), Size: st.Mu.Ix.At(id).Size(), Reason: why.Reason,
		Guard: st.GuardLocked(nil, id),
	})
}

// VerdictLocked notes what happened to the block of an entry. The entry still has its name.
func (st *State) VerdictLocked(id index.ID, kind outcome.Kind, tier string, why outcome.Cause) {
	st.Mu.Outcomes.Add(st.Mu.PathHash(id), outcome.Outcome{
		Time: st.Now(), Event: st.EventLog.Next(), Kind: kind, Tier: tier, Reason: why.Reason, By: why.By,
	})
}

// noteLocked notes an event that says why a block is not where it was.
func (st *State) noteLocked(ev event.Kind, tier string, id index.ID, why outcome.Cause) {
	if ev != event.Evicted && ev != event.Removed {
		return
	}
	kind := why.Reason.Kind()
	if ev == event.Evicted {
		en := st.Mu.Ix.At(id)
		switch {
		case st.OwnTiers(en) != 0, tier != "memory" && st.Mu.Resident(id, en):
			return // reads still find it
		case en.Tiers() != 0: // reads find it while other nodes have it
			kind, tier, why.Reason = outcome.PeerGone, st.Remote.Opts.Name, 0
		}
	}
	if kind == outcome.Unreachable && st.Remote != nil && tier == st.Remote.Opts.Name {
		kind = outcome.PeerGone
	}
	if ev == event.Removed && tier == "" {
		// The last tier just lost its copy. The verdict on that says more.
		if st.Mu.Outcomes.Is(st.Mu.PathHash(id), st.EventLog.Next()-1, why.Reason) {
			return
		}
	}
	st.VerdictLocked(id, kind, tier, why)
}

// RenamedVerdictLocked notes that the block at the path from was renamed to id.
func (st *State) RenamedVerdictLocked(from string, id index.ID, by outcome.Actor) {
	st.Mu.Outcomes.Add(st.Mu.Outcomes.Hash(from), outcome.Outcome{Time: st.Now(), Kind: outcome.Renamed, By: by, To: st.Mu.Ix.Path(id)})
}

// JudgeLocked notes that a promotion did not give the block, in time or at all.
func (st *State) JudgeLocked(path, tier string, kind outcome.Kind, rule outcome.Reason) {
	st.Mu.Outcomes.Add(st.Mu.Outcomes.Hash(path), outcome.Outcome{Time: st.Now(), Kind: kind, Tier: tier, Reason: rule})
}

// FailedVerdictLocked notes why a promotion failed, if the error tells.
func (st *State) FailedVerdictLocked(path, tier string, err error) {
	if kind, rule := outcome.OfLoad(err); kind != "" && !errors.Is(err, ErrStale) {
		st.JudgeLocked(path, tier, kind, rule)
	}
}

// DirEventLocked adds an event of a directory, if there is a Remote tier.
func (st *State) DirEventLocked(kind event.Kind, id index.ID) {
	if st.Remote == nil {
		return
	}
	st.EventLog.Add(event.Event{Time: st.Opts.Now(), Kind: kind, Key: st.KeyLocked(id)})
}
