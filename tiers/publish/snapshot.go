package publish

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
)

// tellAll tells all subscribers to forget everything, and publishes all blocks. It reads events
// meanwhile, so that the log does not overtake it, but sends them after the snapshot, which may
// have older states of their blocks. Applying an event to a later state changes nothing in the end,
// because the log goes on to the latest one. Events before p.next are in the snapshot.
func (p *Publisher) tellAll(ctx context.Context) {
	p.stale = false
	p.stats.snapshots.Add(1) // before subscribers can see it
	p.batch.cleared()
	p.unheard = p.post(p.batch.take(p.opts.Topic)) == 0
	if p.opts.Snapshot != nil {
		if err := p.opts.Snapshot(ctx, func(path string, _ int64, names []string) error {
			if p.batch.hashes >= snapshotSize {
				p.send()
				p.hold(ctx)
				if p.pub.behind() { // slow down, or they lose part of a large snapshot
					(&pacer{last: time.Now()}).wait(ctx)
				}
			}
			group := block.GroupOf(path)
			hash := path
			if group != "" {
				hash = path[len(group)+1:]
			}
			p.store(group, block.Hash(hash), names...)
			return ctx.Err()
		}); err != nil && ctx.Err() == nil {
			p.log.Warn("not all blocks were announced", zap.Error(err))
		}
	}
	p.send()
	for _, m := range p.held {
		p.post(m)
	}
	p.held, p.heldSize = nil, 0
	p.snapshot = time.Now()
}

// hold makes messages of the present events, to be sent later.
func (p *Publisher) hold(ctx context.Context) {
	p.holding = true
	defer func() { p.holding = false }()
	for p.heldSize < heldBytes && p.next < p.opts.Log.Next() {
		n, missed, err := p.opts.Log.Read(ctx, p.next, p.events)
		if err != nil || missed > 0 {
			return // the next read finds the same, and deals with it
		}
		for i := range p.events[:n] {
			p.tell(&p.events[i])
		}
		p.next += uint64(n)
		p.send()
	}
}
