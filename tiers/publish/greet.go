package publish

import (
	"context"
	"time"
)

// This file greets new subscribers. From the number of a message a subscriber sees that it has
// missed messages, or that the daemon has restarted. While nothing happens it would get no message,
// and would keep its old knowledge.

// toGreet reports whether there is a subscriber to greet. If not, wake is called when that changes.
func (p *Publisher) toGreet(wake func()) bool {
	return p.pub.expectant(wake) > 0 || p.unheard && p.opts.Snapshot != nil && p.pub.subscribers() > 0
}

// greet sends a message to all subscribers if one has come and got none since, soon but not too
// often. For the first subscriber the message has all blocks, because nobody heard the start. For
// later ones it has no events.
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
