package lower

import (
	"errors"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/state"
)

// AddSecondaries makes the engine's side of the tiers.
func (cp *copies) AddSecondaries() {
	for i, o := range cp.Opts.Secondaries {
		s := &state.Secondary{Opts: o, Tier: o.Tier, N: i, Bit: 1 << i}
		s.Lane = lane.New(lane.Options{
			Name: o.Name, Tier: o.Tier, Bit: s.Bit, QueueBytes: o.QueueBytes, SecondHit: o.SecondHit,
			BatchKeys: cp.Opts.PromoteBatchKeys, BatchBytes: cp.Opts.PromoteBatchBytes, Window: cp.Opts.PromoteWindow, Predict: &s.Predict,
			Lock: &cp.Mu, Owner: &owner{s, cp.core}, NextJob: cp.nextJob, Now: func() time.Time { return cp.Opts.Now() }, Logger: cp.Log,
		})
		s.Syncer, _ = o.Tier.(driver.Syncer)
		s.StatsLocked().Durable = s.Syncer != nil
		if far, ok := o.Tier.(driver.Remote); ok {
			cp.Remote, cp.Far = s, far
			cp.Asker, _ = o.Tier.(driver.Asker)
		} else if _, ok := o.Tier.(driver.Recorder); !ok {
			cp.Anew |= s.Bit
		}
		if s.Finder, _ = o.Tier.(driver.Finder); s.Finder != nil {
			cp.Finders = append(cp.Finders, s)
		}
		if o.Cascade == state.CascadeOnEvict {
			cp.Lazy |= s.Bit
		}
		if h, ok := o.Tier.(driver.Hosted); ok {
			h.SetHost(&host{e: cp.core, s: s})
		}
		cp.Tiers = append(cp.Tiers, s)
	}
}

// host is the engine as one tier sees it.
type host struct {
	e *core
	s *state.Secondary

	sweeping, again bool // see Sweep. Guarded by State.Mu.
}

var _ driver.Host = (*host)(nil)

// MayEvict implements Host.
func (h *host) MayEvict(key block.Key) bool {
	e := h.e
	var g state.Gone
	e.Mu.Lock()
	ok := e.mayEvictLocked(h.s, key, &g)
	e.Mu.Unlock()
	e.Finish(&g)
	return ok
}

func (c *core) mayEvictLocked(s *state.Secondary, key block.Key, g *state.Gone) bool {
	if s.NamingLocked(key) {
		return false // a rename of the copy is under way: whether it was promised is not known
	}
	if s.StoringLocked(key) {
		return false // when the store has ended, the engine counts on the copy
	}
	id := c.Mu.Ix.Walk(key.Path())
	if id == 0 {
		return true
	}
	en := c.Mu.Ix.At(id)
	if en.Tiers&s.Bit == 0 {
		return true
	}
	if c.HollowLocked(id, en) && (en.Tiers == s.Bit || c.OwnTiers(en) == s.Bit) {
		if en.Lease > c.Now() || en.Opens > 0 || en.Pinned() || c.loads.promotions[id] != nil {
			return false
		}
	}
	c.copies.ForgetCopyLocked(s, id, en, fate.ReasonCapacity, g)
	return true
}

// ForgetCopyLocked notes that a tier has lost its copy of a block. If no other tier has one, the name goes.
func (cp *copies) ForgetCopyLocked(s *state.Secondary, id index.ID, en *index.Entry, reason fate.Reason, g *state.Gone) {
	hollow := cp.HollowLocked(id, en)
	cp.ClearTiersLocked(id, en, s.Bit)
	cp.TierEventLocked(event.Evicted, s.Opts.Name, id, fate.Cause{Reason: reason})
	if hollow && en.Tiers == 0 {
		cp.names.DropNameLocked(id, en, event.Removed, fate.Cause{Reason: reason}, g)
	} else if hollow {
		cp.elsewhere.SettleRemoteLocked(id, en, g)
	}
}

// Lost implements Host.
func (h *host) Lost(key block.Key, err error) {
	e := h.e
	var g state.Gone
	e.Mu.Lock()
	if id := e.Mu.Ix.Walk(key.Path()); id != 0 {
		parent := e.Mu.Ix.Parent(id)
		if en := e.Mu.Ix.At(id); en.IsDir() {
			e.elsewhere.LostDirLocked(id, en, &g)
		} else if e.copies.BegunLocked(id, en)&h.s.Bit != 0 || en.Tiers&h.s.Bit != 0 && h.s.NamingLocked(key) {
			// The tier lost the copy of this block or of one before. It answers when it is told the present
			// attributes, which follows a store that is under way.
			attrs := e.AttrsLocked(id, en)
			h.s.UpdateLocked(lane.Update{From: key, To: key, Attrs: &attrs, ID: id})
		} else if en.Tiers&h.s.Bit != 0 {
			reason := fate.ReasonUnavailable
			switch {
			case errors.Is(err, block.ErrCorrupt):
				reason = fate.ReasonCorrupt
			case errors.Is(err, block.ErrNotFound):
				reason = fate.ReasonSuperseded
			}
			e.copies.ForgetCopyLocked(h.s, id, en, reason, &g)
			if e.Mu.Ix.Valid(id) && e.Mu.Ix.Linked(id) && reason == fate.ReasonCorrupt {
				e.copies.CascadeToLocked(h.s, id, en) // memory still has it
			}
		}
		if h.s == e.Remote {
			e.elsewhere.SettleParentLocked(parent, &g)
		}
	}
	e.Mu.Unlock()
	e.Finish(&g)
}

// RemoveCopiesLocked tells the tiers that a block is gone for good.
func (cp *copies) RemoveCopiesLocked(id index.ID, en *index.Entry) {
	bits := en.Tiers | en.Storing
	if en.Synced() {
		bits |= cp.Keeper().Bit
	}
	if bits == 0 || len(cp.Tiers) == 0 {
		return
	}
	key := cp.KeyLocked(id)
	for _, s := range cp.Tiers {
		if bits&s.Bit != 0 && s != cp.Remote { // the Remote gets a grave instead
			s.RemoveLocked(key)
		}
	}
	cp.ClearTiersLocked(id, en, en.Tiers)
	en.Storing = 0
	en.Flags &^= index.FlagSynced
}

// DisownLocked removes what Finders have at the path of a name that a process takes away or replaces, and of which the
// engine did not know: else a look-up would find that again. known are the tiers that are told of the name anyway.
func (cp *copies) DisownLocked(path string, known uint16) {
	for _, s := range cp.Finders {
		if known&s.Bit != 0 {
			continue
		}
		if l, ok := s.Finder.Find(path); ok && l.IsRegular() {
			key, _ := block.ParseKey(path)
			s.RemoveLocked(key)
		}
	}
}

// StaleCopiesLocked removes the copies of a block that has a new version under the same name. A copy that fsync
// promised stays until the copy of the new version takes its place.
func (cp *copies) StaleCopiesLocked(id index.ID, en *index.Entry) {
	if len(cp.Finders) > 0 && cp.Mu.Ix.Linked(id) {
		known := en.Tiers | en.Storing
		if en.Synced() {
			known |= cp.Keeper().Bit
		}
		cp.DisownLocked(cp.Mu.Ix.Path(id), known)
	}
	if !en.Synced() {
		cp.RemoveCopiesLocked(id, en)
		return
	}
	s := cp.Keeper()
	en.Tiers &^= s.Bit
	en.Storing &^= s.Bit
	en.Flags &^= index.FlagSynced
	cp.RemoveCopiesLocked(id, en)
	en.Flags |= index.FlagSynced
}

// UpdateCopiesLocked tells the tiers that a block was renamed from from, or has other attributes. A copy that has not
// begun will have them anyway, and until it begins the tier may hold another block under the name. A tier that cannot
// change a copy is told only if anew, and the block is stored there anew.
func (cp *copies) UpdateCopiesLocked(id index.ID, en *index.Entry, from block.Key, anew bool) {
	bits := en.Tiers | en.Storing
	if en.Storing != 0 {
		bits = en.Tiers | cp.BegunLocked(id, en)
	}
	if !anew {
		bits &^= cp.Anew
	}
	if bits == 0 {
		return
	}
	to, attrs := cp.KeyLocked(id), cp.AttrsLocked(id, en)
	for _, s := range cp.Tiers {
		if s == cp.Remote {
			if from != to {
				cp.LeaveRemoteLocked(en, from.Path())
			}
		} else if bits&s.Bit != 0 {
			s.UpdateLocked(lane.Update{From: from, To: to, Attrs: &attrs, ID: id})
		}
	}
}

func (cp *copies) nextJob() driver.JobID { return driver.JobID(cp.Jobs.Add(1)) }
