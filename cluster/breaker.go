package cluster

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// breakerThreshold is how many failures in a row open a breaker.
const breakerThreshold = 3

// breaker keeps readers from waiting for a peer that does not answer.
//
//	closed     calls go through; breakerThreshold failures in a row open it, or one to which
//	           nothing came: then the first probe is made at once
//	open       none does; after a back-off it is half-open
//	half-open  one probe is under way, by nobody who waits for a block
//
// A probe that fails opens it again with the double back-off. One that succeeds closes
// it, but on probation: the next failure opens it at once, and the back-off begins small
// again only after a success of a reader's own call. So a peer that answers probes and
// nothing else costs one deadline in a while, not three.
type breaker struct {
	min, max time.Duration // of the back-off

	closed atomic.Bool   // what readers look at
	open   chan struct{} // has one element after it opened
	kicked chan struct{} // has one element if a probe is due at once

	mu struct {
		sync.Mutex
		failures int           // in a row
		backoff  time.Duration // the last one; 0 after a success
		probing  bool
		atOnce   bool // the next probe does not wait
	}
}

func newBreaker(min, max time.Duration) *breaker {
	b := &breaker{min: min, max: max, open: make(chan struct{}, 1), kicked: make(chan struct{}, 1)}
	b.closed.Store(true)
	return b
}

// ok tells of a call that the peer answered. While the breaker is open that changes
// nothing: the call may have begun long ago.
func (b *breaker) ok() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed.Load() {
		b.mu.failures, b.mu.backoff = 0, 0
	}
}

// failed tells of a call that the peer did not answer, or with nonsense. It reports
// whether that opened the breaker.
func (b *breaker) failed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.failures++
	if b.mu.failures < breakerThreshold || !b.closed.Load() {
		return false
	}
	b.closed.Store(false)
	notify(b.open)
	return true
}

// silent is failed for a call to which nothing came: whoever makes the next one would wait as long.
func (b *breaker) silent() bool {
	b.mu.Lock()
	if b.closed.Load() {
		b.mu.failures, b.mu.atOnce = breakerThreshold, true
	}
	b.mu.Unlock()
	return b.failed()
}

// kick has the peer probed at once if the breaker is open.
func (b *breaker) kick() { notify(b.kicked) }

// reset closes it: the peer is another one than that which failed.
func (b *breaker) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.failures, b.mu.backoff = 0, 0
	b.closed.Store(true)
}

// state returns its name for Member.Breaker.
func (b *breaker) state() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed.Load():
		return "closed"
	case b.mu.probing:
		return "half-open"
	}
	return "open"
}

// worseState is the state of the one of two that is in the worse.
func worseState(a, b *breaker) string {
	x, y := a.state(), b.state()
	if x == "closed" || x == "half-open" && y == "open" {
		return y
	}
	return x
}

// run probes whenever the breaker is open, until ctx ends.
func (b *breaker) run(ctx context.Context, probe func(context.Context) error) {
	for {
		select {
		case <-b.open:
		case <-ctx.Done():
			return
		}
		for !b.closed.Load() {
			if !b.wait(ctx) {
				return
			}
			if b.closed.Load() {
				break // by reset
			}
			b.setProbing(true)
			err := probe(ctx)
			b.setProbing(false)
			if err == nil {
				b.probation()
			}
		}
	}
}

// wait waits for the back-off, or a kick. It returns false if ctx has ended.
func (b *breaker) wait(ctx context.Context) bool {
	select {
	case <-b.kicked: // from before
	default:
	}
	if b.takeAtOnce() {
		return ctx.Err() == nil
	}
	t := time.NewTimer(jitter(b.next()))
	defer t.Stop()
	select {
	case <-t.C:
	case <-b.kicked:
	case <-ctx.Done():
		return false
	}
	return true
}

func (b *breaker) takeAtOnce() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.mu.atOnce
	b.mu.atOnce = false
	return was
}

// next returns the back-off, and doubles it for the next time.
func (b *breaker) next() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.backoff = min(max(2*b.mu.backoff, b.min), b.max)
	return b.mu.backoff
}

func (b *breaker) setProbing(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.probing = on
}

// probation closes the breaker so that one failure opens it again.
func (b *breaker) probation() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.failures = breakerThreshold - 1
	b.closed.Store(true)
}

// jitter returns a time between three and five quarters of d, so that many nodes do not
// all come at once.
func jitter(d time.Duration) time.Duration {
	return d*3/4 + rand.N(d/2+1)
}

// notify puts an element into a channel of capacity one, if there is none.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
