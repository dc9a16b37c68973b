package tiers

import (
	"context"
	"slices"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/fate"
)

// expirePromotions ends the waits for promotions that took longer than PromoteTimeout, or than their deadline.
func (e *loads) expirePromotions() {
	var all []*promotion
	e.mu.Lock()
	for _, p := range e.mu.promotions {
		all = append(all, p)
	}
	for p := range e.mu.orphans {
		all = append(all, p)
	}
	e.mu.Unlock()
	e.turnAway(all, e.now())
}

// turnAway ends the waits for some promotions that are over at now (nanoseconds since the epoch). They are misses.
func (e *loads) turnAway(list []*promotion, now int64) {
	var late []laterOpen
	e.mu.Lock()
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
			e.waitedLocked(p, l.deadline)
			return true
		})
	}
	e.mu.Unlock()
	for _, l := range late {
		l.then(nil, block.ErrNotFound)
	}
}

// waitedLocked counts a wait for a promotion that has come to its end. deadline: that end was an
// open deadline, not PromoteTimeout.
func (e *loads) waitedLocked(p *promotion, deadline bool) {
	if deadline {
		e.mu.counters.DeadlineExceeded++
		e.verdicts.judgeLocked(p, fate.Deadline, fate.ReasonExceeded)
	} else {
		p.tier.StatsLocked().PromoteTimeouts++
		e.verdicts.judgeLocked(p, fate.Unreachable, fate.ReasonTimeout)
	}
}

// awaitPromotion waits for the end of a promotion, and at most for PromoteTimeout or deadline. It
// fails with ErrNotFound after that, or when away is closed; or with ctx's error.
func (e *loads) awaitPromotion(ctx context.Context, p *promotion, away <-chan struct{}, deadline time.Duration) error {
	t := time.NewTimer(min(e.opts.PromoteTimeout, deadline))
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
	e.mu.Lock()
	if p.finished {
		e.mu.Unlock()
		<-p.done
		return p.err
	}
	p.waiters--
	err, key := ctx.Err(), p.Key
	if err == nil && late {
		e.waitedLocked(p, deadline < e.opts.PromoteTimeout)
	}
	e.mu.Unlock()
	if err != nil {
		return err
	}
	return &block.Error{Op: "promote", Key: key, Err: block.ErrNotFound}
}
