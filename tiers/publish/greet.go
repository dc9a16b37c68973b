package publish

import (
	"context"
	"time"
)

// This file lets those who come see where they are. A subscriber notices by the number of a message that it
// has missed some, or that the daemon is another one. While nothing happens it would get none, and go on
// with what it knew before.

// toGreet reports whether somebody shall be greeted. If not, wake is called when that changes.
func (p *Publisher) toGreet(wake func()) bool {
	return p.pub.expectant(wake) > 0 || p.unheard && p.opts.Snapshot != nil && p.pub.subscribers() > 0
}

// greet sends a message to all if somebody has come and got none since, soon but not too often. For the first one to
// come that is all that there is: the start was told to nobody. For others it is a message of no events.
func (p *Publisher) greet(ctx context.Context) {
	if time.Since(p.greeted) < greetPause || !p.toGreet(nil) {
		return
	}
	p.greeted = time.Now()
	if p.unheard && p.opts.Snapshot != nil {
		p.log.Info("the first subscriber has connected: announcing all blocks again")
		p.next = p.opts.Log.Next()
		p.tellAll(ctx)
		return
	}
	p.batch.empty = true
	p.post(p.batch.take(p.opts.Topic))
}
