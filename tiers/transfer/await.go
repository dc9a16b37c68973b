package transfer

import (
	"context"
	"slices"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/state"
)

// ExpirePromotions ends the waits for promotions that took longer than PromoteTimeout, or than their deadline.
func (tr *Transfer) ExpirePromotions() {
	var all []*promotion
	tr.Mu.Lock()
	for _, p := range tr.promotions {
		all = append(all, p)
	}
	for p := range tr.orphans {
		all = append(all, p)
	}
	tr.Mu.Unlock()
	tr.turnAway(all, tr.Now())
}

// turnAway ends the waits for some promotions that are over at now (nanoseconds since the epoch). They are misses.
func (tr *Transfer) turnAway(list []*promotion, now int64) {
	var late []laterOpen
	tr.Mu.Lock()
	for _, p := range list {
		if p.finished {
			continue
		}
		p.later = slices.DeleteFunc(p.later, func(l laterOpen) bool {
			if l.until > now {
				return false
			}
			late = append(late, l)
			p.waiters--
			tr.waitedLocked(p, l.deadline)
			return true
		})
	}
	tr.Mu.Unlock()
	for _, l := range late {
		l.then(nil, block.ErrNotFound)
	}
}

// waitedLocked counts a wait for a promotion that has come to its end. deadline: that end was an
// open deadline, not PromoteTimeout.
func (tr *Transfer) waitedLocked(p *promotion, deadline bool) {
	if deadline {
		tr.Mu.Counters.DeadlineExceeded++
		tr.JudgeLocked(p.Key.Path(), p.tier.Opts.Name, outcome.Deadline, outcome.ReasonExceeded)
	} else {
		p.tier.StatsLocked().PromoteTimeouts++
		tr.JudgeLocked(p.Key.Path(), p.tier.Opts.Name, outcome.Unreachable, outcome.ReasonTimeout)
	}
}

// awaitPromotion waits for the end of a promotion, and at most for PromoteTimeout or deadline. It
// fails with ErrNotFound after that, or when away is closed; or with ctx's error.
func (tr *Transfer) awaitPromotion(ctx context.Context, p *promotion, away <-chan struct{}, deadline time.Duration) error {
	t := time.NewTimer(min(tr.Opts.PromoteTimeout, deadline))
	defer t.Stop()
	late := false
	select {
	case <-p.done:
		return p.err
	case <-t.C:
		late = true
	case <-away:
	case <-ctx.Done():
	}
	tr.Mu.Lock()
	if p.finished {
		tr.Mu.Unlock()
		<-p.done
		return p.err
	}
	p.waiters--
	err, key := ctx.Err(), p.Key
	if err == nil && late {
		tr.waitedLocked(p, deadline < tr.Opts.PromoteTimeout)
	}
	tr.Mu.Unlock()
	if err != nil {
		return err
	}
	return &block.Error{Op: "promote", Key: key, Err: block.ErrNotFound}
}

// OpenDeadline returns how long the open of a nonresident block may wait, and whether the block would probably come too
// late. If the tier is idle, OpenDeadline then starts a load for which no caller waits: otherwise a tier could never
// show that it has become faster.
func (tr *Transfer) OpenDeadline(id index.ID) (deadline time.Duration, late bool) {
	tr.Mu.Lock()
	en := tr.Mu.Ix.At(id)
	deadline = tr.DeadlineOfLocked(tr.Mu.Room.Group(en.Group()), 0)
	if deadline == state.NoDeadline || !tr.NonresidentLocked(id, en) || tr.promotions[id] != nil {
		tr.Mu.Unlock()
		return deadline, false
	}
	s := tr.FirstTier(en)
	idle := s.IdleLocked()
	if late = state.LateLocked(s, en.Size(), deadline); late {
		tr.Mu.Counters.DeadlinePredicted++
		tr.VerdictLocked(id, outcome.Deadline, s.Opts.Name, outcome.Cause{Reason: outcome.ReasonPredicted})
	}
	tr.Mu.Unlock()
	if late && idle {
		tr.Promote(tr.Ctx, id, Want{Hint: true})
	}
	return deadline, late
}
