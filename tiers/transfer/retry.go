package transfer

import (
	"errors"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/state"
)

// maxAsked bounds how often a tier is asked for a block whose name changes all the time.
const maxAsked = 16

// retryPromotion decides what follows when a tier did not give a block. If a rename was on its way it asks the same
// tier again under the new name. Else it asks the next tier, or ends the promotion.
func (tr *Transfer) retryPromotion(s *state.Secondary, p *promotion, o *driver.Outcome) {
	var g state.Gone
	tr.Mu.Lock()
	en := tr.promotedEntryLocked(p)
	bad, later := isBad(o), isLater(o)
	if en != nil && s != tr.Remote && !tr.Mu.Closed && tr.sameTierLocked(s, p, o, later) {
		tr.Mu.Unlock()
		return
	}
	countFailureLocked(s, o, en != nil)
	again, stale := false, en == nil
	if en != nil {
		again, stale = tr.nextTierLocked(s, p, en, o, &g)
	}
	tr.Mu.Unlock()
	tr.Finish(&g)
	switch {
	case again && (errors.Is(o.Err, block.ErrUnavailable) || errors.Is(o.Err, block.ErrClosed)):
		tr.Discard(p.blob, p.File) // its device may still write to it
		p.blob, p.File = 0, nil
		tr.fillPromotion(p)
	case again:
		tr.requestLoad(p)
	case stale:
		tr.failPromotion(p, state.ErrStale)
	case o.Err == nil || bad || later:
		tr.failPromotion(p, &block.Error{Op: "promote", Tier: s.Opts.Name, Key: p.Key, Err: block.ErrNotFound})
	default:
		tr.failPromotion(p, o.Err)
	}
}

// isBad reports whether a tier that did not give a block never will, because it has no copy or a damaged one.
func isBad(o *driver.Outcome) bool {
	return o.Status == driver.Absent || errors.Is(o.Err, block.ErrCorrupt)
}

// isLater reports whether a tier that did not give a block may have it under another name, or later.
func isLater(o *driver.Outcome) bool {
	return o.Status == driver.Absent || errors.Is(o.Err, block.ErrPending)
}

// sameTierLocked asks a tier of this node again for a block that it did not give, and returns true, if the name may
// have changed on the way or there was no room for the file.
func (tr *Transfer) sameTierLocked(s *state.Secondary, p *promotion, o *driver.Outcome, later bool) bool {
	switch {
	case later && (p.asked == 1 || p.asked < maxAsked && p.Key != tr.KeyLocked(p.id)):
		s.AgainLocked(&p.Load)
	case errors.Is(o.Err, block.ErrNoSpace) && p.asked < maxAsked: // for its file
		tr.Work.Go(func() { tr.loadAgain(p) }) // ends with the engine's context at the latest
	default:
		return false
	}
	return true
}

// countFailureLocked counts a load that brought no block. wanted: the block still has its name.
func countFailureLocked(s *state.Secondary, o *driver.Outcome, wanted bool) {
	switch {
	case o.Status == driver.Absent && !wanted: // the name is gone, so the tier is not to blame
	case o.Status == driver.Absent:
		s.StatsLocked().PromoteAbsent++
	case errors.Is(o.Err, block.ErrCorrupt):
		s.StatsLocked().PromoteCorrupt++
	default:
		s.StatsLocked().PromoteFailed++
	}
}

// nextTierLocked follows a tier that did not give a block. again says that another tier is left to ask. stale says that
// the name must be looked up again, because other nodes or a Finder have another version by now.
func (tr *Transfer) nextTierLocked(s *state.Secondary, p *promotion, en *index.Entry, o *driver.Outcome, g *state.Gone) (again, stale bool) {
	bad := isBad(o)
	p.tried |= s.Bit
	again = tr.chooseLocked(p, en)
	other := !again && tr.otherVersionLocked(s, p, en, o)
	if !again && (bad && en.Tiers() == s.Bit || other || p.own) {
		tr.orphanLocked(p) // the next look-up begins a new promotion
	}
	switch {
	case bad && en.Tiers()&s.Bit != 0:
		reason := outcome.ReasonCorrupt
		if o.Status == driver.Absent {
			reason = outcome.ReasonAbsent
		}
		tr.ForgetCopyLocked(s, p.id, en, reason, g)
	case other:
		tr.names.ForgetOnlyLocked(p.id, en, g) // else a look-up would find this version again
	}
	return again, other && !(tr.Mu.Ix.Valid(p.id) && tr.Mu.Ix.Linked(p.id))
}

// otherVersionLocked reports whether other nodes or Finders have another version of a block that the Remote tier or a
// Finder did not give.
func (tr *Transfer) otherVersionLocked(s *state.Secondary, p *promotion, en *index.Entry, o *driver.Outcome) bool {
	return (s == tr.Remote || s.Finder != nil) && (isBad(o) || isLater(o)) && tr.names.OtherElsewhereLocked(p.id, en)
}

// orphanLocked parts a promotion from its entry, which may get another one.
func (tr *Transfer) orphanLocked(p *promotion) {
	delete(tr.promotions, p.id)
	tr.orphans[p] = struct{}{}
}

// PromotingLocked returns the name of the tier that is asked for the block of an entry, "" if the block is not on its
// way into memory.
func (tr *Transfer) PromotingLocked(id index.ID) (tier string) {
	if p := tr.promotions[id]; p != nil {
		tier = p.tier.Opts.Name
	}
	return tier
}

// RenumberedLocked follows a change of an entry's version number from was: its bytes are the same. It points the stores
// and the load that are queued or under way to the new number.
func (tr *Transfer) RenumberedLocked(id index.ID, was uint64) {
	en := tr.Mu.Ix.At(id)
	if en.Storing() != 0 {
		for _, s := range tr.Tiers {
			s.RetargetLocked(id, was, en.Seq())
		}
	}
	if p := tr.promotions[id]; p != nil && p.seq == was {
		p.seq = en.Seq()
	}
}

// failPromotion ends a promotion that brought no block.
func (tr *Transfer) failPromotion(p *promotion, err error) {
	var g state.Gone
	if p.File != nil {
		p.File.Close()
		g.Blobs = append(g.Blobs, p.blob)
	}
	tr.Mu.Lock()
	if p.charge > 0 {
		tr.Mu.Room.Charge(p.bill, -p.charge, true)
		tr.Mu.Room.Signal()
	}
	if tr.promotions[p.id] == p {
		delete(tr.promotions, p.id)
	}
	delete(tr.orphans, p)
	if tr.Mu.Ix.Valid(p.id) {
		tr.names.SettleRemoteLocked(p.id, tr.Mu.Ix.At(p.id), &g)
	}
	tr.Mu.Tally.Failed()
	tr.FailedVerdictLocked(p.Key.Path(), p.tier.Opts.Name, err)
	p.err, p.finished = err, true
	later := p.later
	tr.Mu.Unlock()
	tr.Finish(&g)
	close(p.done)
	for _, l := range later {
		l.then(nil, err)
	}
	if !errors.Is(err, state.ErrStale) {
		tr.Log.Debug("promotion", zap.Stringer("key", p.Key), zap.Error(err))
	}
}

// loadAgain asks a tier once more for a block whose file had no room. It waits before, so long that maxAsked tries
// take as long as a writer would wait.
func (tr *Transfer) loadAgain(p *promotion) {
	tr.memory.Relieve(false)
	if state.WaitSpace(tr.Ctx, nil, tr.Opts.WriteTimeout/maxAsked) == nil {
		tr.requestLoad(p)
		return
	}
	tr.failPromotion(p, block.ErrClosed)
}
