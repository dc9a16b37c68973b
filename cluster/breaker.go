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
//	closed     calls go through. breakerThreshold failures in a row open the breaker. One
//	           call to which nothing came opens it too; the first probe then follows at once.
//	open       no call goes through. After a back-off the breaker is half-open.
//	half-open  one probe is under way, made by a goroutine that no reader waits for
//
// A failed probe opens the breaker again and doubles the back-off. A successful probe closes
// it on probation: the next failure opens it at once. The back-off becomes short again only
// after a reader's own call succeeds. So a peer that answers only probes costs one deadline
// now and then, not three.
type breaker struct {
	min, max time.Duration // of the back-off

	closed atomic.Bool   // readers look at this
	open   chan struct{} // has one element after the breaker opened
	kicked chan struct{} // has one element if a probe is due at once

	mu struct {
		sync.Mutex
		failures int           // in a row
		backoff  time.Duration // the last one; 0 after a success
		probing  bool
		atOnce   bool // the next probe does not wait for the back-off
	}
}

func newBreaker(min, max time.Duration) *breaker {
	b := &breaker{min: min, max: max, open: make(chan struct{}, 1), kicked: make(chan struct{}, 1)}
	b.closed.Store(true)
	return b
}

// ok records that the peer answered a call. An open breaker ignores that: the call may have
// begun long ago.
func (b *breaker) ok() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed.Load() {
		b.mu.failures, b.mu.backoff = 0, 0
	}
}

// failed records that the peer did not answer a call, or answered nonsense. It reports whether
// that opened the breaker.
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

// silent is failed for a call to which nothing came. The next caller would wait just as long.
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

// reset closes the breaker: another process has taken the place of the peer that failed.
func (b *breaker) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.failures, b.mu.backoff = 0, 0
	b.closed.Store(true)
}

// state returns the breaker's state for Member.Breaker.
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

// worseState returns the worse state of two breakers.
func worseState(a, b *breaker) string {
	x, y := a.state(), b.state()
	if x == "closed" || x == "half-open" && y == "open" {
		return y
	}
	return x
}

// run makes probes while the breaker is open, until ctx ends.
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
				break // reset has closed the breaker
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

// wait waits for the back-off or for a kick. It returns false if ctx has ended.
func (b *breaker) wait(ctx context.Context) bool {
	select {
	case <-b.kicked: // left over from an earlier state
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

// jitter returns a random time between 0.75 d and 1.25 d. Nodes that fail together then do not
// retry together.
func jitter(d time.Duration) time.Duration {
	return d*3/4 + rand.N(d/2+1)
}

// notify puts an element into a channel of capacity one, unless the channel is full.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
