package tiers

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
)

// maxAsked bounds how often a tier is asked for a block whose name changes all the time.
const maxAsked = 16

// retryPromotion decides what follows when a tier did not give a block. If a rename was on its way it asks the same
// tier again under the new name. Else it asks the next tier, or ends the promotion.
func (e *loads) retryPromotion(s *secondary, p *promotion, o *driver.Outcome) {
	var g gone
	e.mu.Lock()
	en := e.promotedEntryLocked(p)
	bad, later := isBad(o), isLater(o)
	if en != nil && s != e.remote && !e.mu.closed && e.sameTierLocked(s, p, o, later) {
		e.mu.Unlock()
		return
	}
	s.countFailureLocked(o, en != nil)
	again, stale := false, en == nil
	if en != nil {
		again, stale = e.nextTierLocked(s, p, en, o, &g)
	}
	e.mu.Unlock()
	e.finish(&g)
	switch {
	case again && (errors.Is(o.Err, block.ErrUnavailable) || errors.Is(o.Err, block.ErrClosed)):
		e.discard(p.blob, p.File) // its device may still write to it
		p.blob, p.File = 0, nil
		e.fillPromotion(p)
	case again:
		e.requestLoad(p)
	case stale:
		e.failPromotion(p, ErrStale)
	case o.Err == nil || bad || later:
		e.failPromotion(p, &block.Error{Op: "promote", Tier: s.opts.Name, Key: p.Key, Err: block.ErrNotFound})
	default:
		e.failPromotion(p, o.Err)
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
func (e *loads) sameTierLocked(s *secondary, p *promotion, o *driver.Outcome, later bool) bool {
	switch {
	case later && (p.asked == 1 || p.asked < maxAsked && p.Key != e.keyLocked(p.id)):
		s.AgainLocked(&p.Load)
	case errors.Is(o.Err, block.ErrNoSpace) && p.asked < maxAsked: // for its file
		e.wg.Go(func() { e.loadAgain(p) }) // ends with the engine's context at the latest
	default:
		return false
	}
	return true
}

// countFailureLocked counts a load that brought no block. wanted: the block still has its name.
func (s *secondary) countFailureLocked(o *driver.Outcome, wanted bool) {
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
// the name must be looked up again, because other nodes have another version by now.
func (e *loads) nextTierLocked(s *secondary, p *promotion, en *index.Entry, o *driver.Outcome, g *gone) (again, stale bool) {
	bad := isBad(o)
	p.tried |= s.bit
	again = e.chooseLocked(p, en)
	other := !again && e.otherVersionLocked(s, p, en, o)
	if !again && (bad && en.Tiers == s.bit || other || p.own) {
		e.orphanLocked(p) // the next look-up begins a new promotion
	}
	switch {
	case bad && en.Tiers&s.bit != 0:
		reason := fate.ReasonCorrupt
		if o.Status == driver.Absent {
			reason = fate.ReasonAbsent
		}
		e.copies.forgetCopyLocked(s, p.id, en, reason, g)
	case other && e.elsewhere.remoteOnlyLocked(p.id, en):
		e.elsewhere.forgetRemoteLocked(p.id, en, g) // else a look-up would find this version again
	}
	return again, other && !(e.mu.ix.Valid(p.id) && e.mu.ix.Linked(p.id))
}

// otherVersionLocked reports whether other nodes have another version of a block that the Remote tier did not give.
func (e *loads) otherVersionLocked(s *secondary, p *promotion, en *index.Entry, o *driver.Outcome) bool {
	return s == e.remote && (isBad(o) || isLater(o)) && e.elsewhere.otherElsewhereLocked(p.id, en)
}

// orphanLocked parts a promotion from its entry, which may get another one.
func (e *loads) orphanLocked(p *promotion) {
	delete(e.mu.promotions, p.id)
	e.mu.orphans[p] = struct{}{}
}

// failPromotion ends a promotion that brought no block.
func (e *loads) failPromotion(p *promotion, err error) {
	var g gone
	if p.File != nil {
		p.File.Close()
		g.blobs = append(g.blobs, p.blob)
	}
	e.mu.Lock()
	if p.charge > 0 {
		e.chargePromotionLocked(p, -p.charge)
		e.mu.room.Signal()
	}
	if e.mu.promotions[p.id] == p {
		delete(e.mu.promotions, p.id)
	}
	delete(e.mu.orphans, p)
	if e.mu.ix.Valid(p.id) {
		e.elsewhere.settleRemoteLocked(p.id, e.mu.ix.At(p.id), &g)
	}
	e.mu.tally.sum.FailedKeys++
	e.verdicts.failedVerdictLocked(p, err)
	p.err, p.finished = err, true
	later := p.later
	e.mu.Unlock()
	e.finish(&g)
	close(p.done)
	for _, l := range later {
		l.then(nil, err)
	}
	if !errors.Is(err, ErrStale) {
		e.log.Debug("promotion", zap.Stringer("key", p.Key), zap.Error(err))
	}
}

// bringError is missError for a caller that asked for more than a read. It tells that caller that there is no room.
func bringError(op string, err error) error {
	if errors.Is(err, block.ErrNoSpace) || errors.Is(err, block.ErrTooLarge) {
		return &block.Error{Op: op, Tier: "memory", Err: block.ErrNoSpace}
	}
	return missError(err)
}

// missError turns the failure of a promotion into an error that an open may report. Engines take a miss as a miss,
// and any other error for a broken file system.
func missError(err error) error {
	switch {
	case errors.Is(err, ErrStale), errors.Is(err, block.ErrPending), errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, block.ErrNotFound):
		return err
	}
	return &block.Error{Op: "open", Err: fmt.Errorf("%w: %v", block.ErrNotFound, err)} // of no other kind
}
