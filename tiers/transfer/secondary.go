package transfer

import (
	"errors"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/state"
)

// AddSecondaries makes the engine's side of the tiers.
func (tr *Transfer) AddSecondaries() {
	for i, o := range tr.Opts.Secondaries {
		s := &state.Secondary{Opts: o, Tier: o.Tier, N: i, Bit: 1 << i}
		s.Lane = lane.New(lane.Options{
			Name: o.Name, Tier: o.Tier, Bit: s.Bit, QueueBytes: o.QueueBytes, CatchUpRate: tr.Opts.CatchUpRate, SecondHit: o.SecondHit,
			BatchKeys: tr.Opts.PromoteBatchKeys, BatchBytes: tr.Opts.PromoteBatchBytes, Window: tr.Opts.PromoteWindow, Predict: &s.Predict,
			Lock: &tr.Mu, Owner: &owner{s, tr}, NextJob: func() driver.JobID { return driver.JobID(tr.Jobs.Add(1)) }, Now: func() time.Time { return tr.Opts.Now() }, Logger: tr.Log,
		})
		s.Syncer, _ = o.Tier.(driver.Syncer)
		_, s.KeepsUser = o.Tier.(driver.UserKeeper)
		s.StatsLocked().Durable = s.Syncer != nil
		if far, ok := o.Tier.(driver.Remote); ok {
			tr.Remote, tr.Far, tr.Mu.Remote = s, far, s.Bit
			tr.Asker, _ = o.Tier.(driver.Asker)
		} else if _, ok := o.Tier.(driver.Recorder); !ok {
			tr.Anew |= s.Bit
		}
		if s.Finder, _ = o.Tier.(driver.Finder); s.Finder != nil {
			tr.Finders = append(tr.Finders, s)
		}
		if o.Cascade == state.CascadeOnEvict {
			tr.Lazy |= s.Bit
		}
		if h, ok := o.Tier.(driver.Hosted); ok {
			h.SetHost(&host{e: tr, s: s})
		}
		tr.Tiers = append(tr.Tiers, s)
	}
}

// host is the engine as one tier sees it.
type host struct {
	e *Transfer
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

func (tr *Transfer) mayEvictLocked(s *state.Secondary, key block.Key, g *state.Gone) bool {
	if s.NamingLocked(key) {
		return false // a rename of the copy is under way: whether it was promised is not known
	}
	if s.StoringLocked(key) {
		return false // when the store has ended, the engine counts on the copy
	}
	id := tr.Mu.Ix.Walk(key.Path())
	if id == 0 {
		return true
	}
	en := tr.Mu.Ix.At(id)
	if en.Tiers()&s.Bit == 0 {
		return true
	}
	if tr.NonresidentLocked(id, en) && (en.Tiers() == s.Bit || tr.OwnTiers(en) == s.Bit) {
		if en.Lease() > tr.Now() || en.Opens() > 0 || en.Pinned() || tr.promotions[id] != nil {
			return false
		}
	}
	tr.ForgetCopyLocked(s, id, en, outcome.ReasonCapacity, g)
	return true
}

// ForgetCopyLocked notes that a tier has lost its copy of a block. If no other tier has one, the name goes.
func (tr *Transfer) ForgetCopyLocked(s *state.Secondary, id index.ID, en *index.Entry, reason outcome.Reason, g *state.Gone) {
	nonresident := tr.NonresidentLocked(id, en)
	tr.ClearTiersLocked(id, en, s.Bit, reason)
	if nonresident && en.Tiers() == 0 {
		tr.names.DropNameLocked(id, en, outcome.Cause{Reason: reason}, g)
	} else if nonresident {
		tr.names.SettleRemoteLocked(id, en, g)
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
			e.names.LostDirLocked(id, en, &g)
		} else if e.BegunLocked(id, en)&h.s.Bit != 0 || en.Tiers()&h.s.Bit != 0 && h.s.NamingLocked(key) {
			// The tier lost the copy of this block or of one before. It answers when it is told the present
			// attributes, which follows a store that is under way.
			attrs := e.AttrsLocked(id, en)
			h.s.UpdateLocked(lane.Update{From: key, To: key, Attrs: &attrs, ID: id})
		} else if en.Tiers()&h.s.Bit != 0 {
			reason := outcome.ReasonUnavailable
			switch {
			case errors.Is(err, block.ErrCorrupt):
				reason = outcome.ReasonCorrupt
			case errors.Is(err, block.ErrNotFound):
				reason = outcome.ReasonSuperseded
			}
			e.ForgetCopyLocked(h.s, id, en, reason, &g)
			if e.Mu.Ix.Valid(id) && e.Mu.Ix.Linked(id) && reason == outcome.ReasonCorrupt {
				e.CascadeToLocked(h.s, id, en) // memory still has it
			}
		}
		if h.s == e.Remote {
			e.names.SettleParentLocked(parent, &g)
		}
	}
	e.Mu.Unlock()
	e.Finish(&g)
}

// RemoveCopiesLocked tells the tiers that a block is gone for good.
func (tr *Transfer) RemoveCopiesLocked(id index.ID, en *index.Entry) {
	bits := en.Tiers() | en.Storing()
	if en.Synced() {
		bits |= tr.Keeper().Bit
	}
	if bits == 0 || len(tr.Tiers) == 0 {
		return
	}
	key := tr.KeyLocked(id)
	for _, s := range tr.Tiers {
		if bits&s.Bit != 0 && s != tr.Remote { // the Remote gets a grave instead
			s.RemoveLocked(key)
		}
	}
	tr.ClearTiersLocked(id, en, en.Tiers(), 0)
	tr.ApplyLocked(catalog.Lost{ID: id, Storing: en.Storing(), Promise: true})
}

// DisownLocked removes what Finders have at the path of a name that a process takes away or replaces, and of which the
// engine did not know: else a look-up would find that again. known are the tiers that are told of the name anyway.
func (tr *Transfer) DisownLocked(path string, known uint16) {
	for _, s := range tr.Finders {
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
func (tr *Transfer) StaleCopiesLocked(id index.ID, en *index.Entry) {
	if len(tr.Finders) > 0 && tr.Mu.Ix.Linked(id) {
		known := en.Tiers() | en.Storing()
		if en.Synced() {
			known |= tr.Keeper().Bit
		}
		tr.DisownLocked(tr.Mu.Ix.Path(id), known)
	}
	if !en.Synced() {
		tr.RemoveCopiesLocked(id, en)
		return
	}
	s := tr.Keeper()
	tr.ApplyLocked(catalog.Lost{ID: id, Tiers: s.Bit, Storing: s.Bit, Promise: true})
	tr.RemoveCopiesLocked(id, en)
	tr.ApplyLocked(catalog.Synced{ID: id})
}

// UpdateCopiesLocked tells the tiers that a block was renamed from from, or has other attributes. A copy that has not
// begun will have them anyway, and until it begins the tier may hold another block under the name. A tier that cannot
// change a copy is told only if anew, and the block is stored there anew.
func (tr *Transfer) UpdateCopiesLocked(id index.ID, en *index.Entry, from block.Key, anew bool) {
	bits := en.Tiers() | en.Storing()
	if en.Storing() != 0 {
		bits = en.Tiers() | tr.BegunLocked(id, en)
	}
	if !anew {
		bits &^= tr.Anew
	}
	if bits == 0 {
		return
	}
	to, attrs := tr.KeyLocked(id), tr.AttrsLocked(id, en)
	for _, s := range tr.Tiers {
		if s == tr.Remote {
			if from != to {
				tr.LeaveRemoteLocked(id, en, from.Path())
			}
		} else if bits&s.Bit != 0 {
			s.UpdateLocked(lane.Update{From: from, To: to, Attrs: &attrs, ID: id})
		}
	}
}

// RevisedLocked gives a block in memory a version of its own, because its attributes of processes have changed. Others give
// up their copies of the version before; a copy that is on its way there would come with the earlier attributes.
func (tr *Transfer) RevisedLocked(id index.ID, en *index.Entry, g *state.Gone) {
	was, key := en.Seq(), tr.KeyLocked(id)
	if s := tr.Remote; s != nil {
		tr.leaveBegunLocked(s, id, en)
		tr.LeaveRemoteLocked(id, en, key.Path())
	}
	tr.ApplyLocked(catalog.Versioned{ID: id, Seq: tr.NextSeqLocked(), Own: true})
	tr.names.PublishedLocked(id, en, was, true, g)
	if tr.Remote != nil {
		tr.EventLocked(event.Changed, "", id, outcome.Cause{})
	}
	tr.RenumberedLocked(id, was)
	for _, s := range tr.Tiers {
		if !s.KeepsUser && s != tr.Remote && en.Flags()&index.FlagUser != 0 && (en.Tiers()|en.Storing())&s.Bit != 0 {
			tr.leaveBegunLocked(s, id, en)
			s.RemoveLocked(key)
			tr.ApplyLocked(catalog.Lost{ID: id, Tiers: s.Bit})
		}
	}
	tr.UpdateCopiesLocked(id, en, key, true)
	if tr.Mu.Files[id] == nil {
		tr.CascadeLocked(id, en)
	}
}

// leaveBegunLocked parts a copy that is on its way to a tier from the entry.
func (tr *Transfer) leaveBegunLocked(s *state.Secondary, id index.ID, en *index.Entry) {
	if tr.BegunLocked(id, en)&s.Bit != 0 {
		s.VoidLocked(id, en.Seq())
		tr.ApplyLocked(catalog.Lost{ID: id, Storing: s.Bit})
	}
}

var _ driver.Sweeper = (*host)(nil)

// Sweep implements driver.Sweeper. One sweep runs at a time. A call during a sweep makes it begin again.
func (h *host) Sweep() {
	h.e.Mu.Lock()
	defer h.e.Mu.Unlock()
	if h.again = true; h.sweeping || h.e.Mu.Closed {
		return
	}
	h.sweeping = true
	h.e.Work.Go(h.sweep) // ends when no call has come meanwhile, or with the engine
}

func (h *host) sweep() {
	e := h.e
	for {
		var ids []index.ID
		e.Mu.Lock()
		if h.sweeping = h.again && !e.Mu.Closed; !h.sweeping {
			e.Mu.Unlock()
			return
		}
		h.again = false
		e.Mu.Ix.Descend(index.Root, func(id index.ID, en *index.Entry) bool {
			if en.Tiers()&h.s.Bit != 0 && !en.IsDir() {
				ids = append(ids, id)
			}
			return true
		})
		e.Mu.Unlock()
		for len(ids) > 0 && h.sweepSome(ids[:min(len(ids), state.RecordBatch)]) {
			ids = ids[min(len(ids), state.RecordBatch):]
		}
	}
}

// sweepSome asks the tier for some of its entries again. It returns false if the tier does not answer.
func (h *host) sweepSome(ids []index.ID) bool {
	e := h.e
	var keys []block.Key
	e.Mu.Lock()
	for _, id := range ids {
		if e.Mu.Ix.Valid(id) && e.Mu.Ix.Linked(id) && e.Mu.Ix.At(id).Tiers()&h.s.Bit != 0 {
			keys = append(keys, e.KeyLocked(id))
		}
	}
	e.Mu.Unlock()
	has := make([]driver.Presence, len(keys))
	if h.s.Tier.Lookup(e.Ctx, keys, has) != nil {
		return false
	}
	for i, key := range keys {
		if has[i] == driver.Miss {
			h.Lost(key, &block.Error{Op: "lookup", Tier: h.s.Opts.Name, Key: key, Err: block.ErrNotFound})
		}
	}
	return true
}
