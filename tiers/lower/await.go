package lower

import (
	"context"
	"slices"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/fate"
)

// ExpirePromotions ends the waits for promotions that took longer than PromoteTimeout, or than their deadline.
func (ld *loads) ExpirePromotions() {
	var all []*promotion
	ld.Mu.Lock()
	for _, p := range ld.promotions {
		all = append(all, p)
	}
	for p := range ld.orphans {
		all = append(all, p)
	}
	ld.Mu.Unlock()
	ld.turnAway(all, ld.Now())
}

// turnAway ends the waits for some promotions that are over at now (nanoseconds since the epoch). They are misses.
func (ld *loads) turnAway(list []*promotion, now int64) {
	var late []laterOpen
	ld.Mu.Lock()
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
			ld.waitedLocked(p, l.deadline)
			return true
		})
	}
	ld.Mu.Unlock()
	for _, l := range late {
		l.then(nil, block.ErrNotFound)
	}
}

// waitedLocked counts a wait for a promotion that has come to its end. deadline: that end was an
// open deadline, not PromoteTimeout.
func (ld *loads) waitedLocked(p *promotion, deadline bool) {
	if deadline {
		ld.Mu.Counters.DeadlineExceeded++
		ld.JudgeLocked(p.Key.Path(), p.tier.Opts.Name, fate.Deadline, fate.ReasonExceeded)
	} else {
		p.tier.StatsLocked().PromoteTimeouts++
		ld.JudgeLocked(p.Key.Path(), p.tier.Opts.Name, fate.Unreachable, fate.ReasonTimeout)
	}
}

// awaitPromotion waits for the end of a promotion, and at most for PromoteTimeout or deadline. It
// fails with ErrNotFound after that, or when away is closed; or with ctx's error.
func (ld *loads) awaitPromotion(ctx context.Context, p *promotion, away <-chan struct{}, deadline time.Duration) error {
	t := time.NewTimer(min(ld.Opts.PromoteTimeout, deadline))
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
	ld.Mu.Lock()
	if p.finished {
		ld.Mu.Unlock()
		<-p.done
		return p.err
	}
	p.waiters--
	err, key := ctx.Err(), p.Key
	if err == nil && late {
		ld.waitedLocked(p, deadline < ld.Opts.PromoteTimeout)
	}
	ld.Mu.Unlock()
	if err != nil {
		return err
	}
	return &block.Error{Op: "promote", Key: key, Err: block.ErrNotFound}
}
