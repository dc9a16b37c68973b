package publish

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
)

// tellAll has everybody forget everything, and tells of all blocks. Events that come meanwhile are
// read from the log, so that it does not run away, but are sent after the snapshot: it may tell
// of a block what was so before them. To apply an event to a later state changes nothing in the
// end, as the log goes on to the latest one. What came before p.next is in the snapshot.
func (p *Publisher) tellAll(ctx context.Context) {
	p.stale = false
	p.stats.snapshots.Add(1) // before subscribers can know of it
	p.batch.cleared()
	p.unheard = p.post(p.batch.take(p.opts.Topic)) == 0
	if p.opts.Snapshot != nil {
		if err := p.opts.Snapshot(ctx, func(path string, _ int64, names []string) error {
			if p.batch.hashes >= snapshotSize {
				p.send()
				p.hold(ctx)
				if p.pub.behind() { // a little slower, or they lose part of what is large
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

// hold makes messages of the events that there are by now, to be sent later.
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
