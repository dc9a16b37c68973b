// Package breaker keeps callers from waiting for a peer that does not answer.
//
// A Breaker is told how calls end. After some failures it lets no call through until a probe
// succeeds; its own goroutine makes the probes, so no caller waits for one.
package breaker

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Threshold is how many failures in a row open a breaker.
const Threshold = 3

// Breaker counts the failures of one kind of call to one peer. Its methods may be called in
// parallel and do not block, other than Run and Wait.
//
//	closed     calls go through. Threshold failures in a row open the breaker. One
//	           call to which nothing came opens it too; the first probe then follows at once.
//	open       no call goes through. After a back-off the breaker is half-open.
//	half-open  one probe is under way, made by a goroutine that no reader waits for
//
// A failed probe opens the breaker again and doubles the back-off. A successful probe closes
// it on probation: the next failure opens it at once. The back-off becomes short again only
// after a reader's own call succeeds. So a peer that answers only probes costs one deadline
// now and then, not three.
type Breaker struct {
	Min, Max time.Duration // of the back-off

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

// New returns a closed breaker whose back-off is between min and max.
func New(min, max time.Duration) *Breaker {
	b := &Breaker{Min: min, Max: max, open: make(chan struct{}, 1), kicked: make(chan struct{}, 1)}
	b.closed.Store(true)
	return b
}

// Closed reports whether calls go through now.
func (b *Breaker) Closed() bool { return b.closed.Load() }

// OK records that the peer answered a call. An open breaker ignores that: the call may have
// begun long ago.
func (b *Breaker) OK() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed.Load() {
		b.mu.failures, b.mu.backoff = 0, 0
	}
}

// Failed records that the peer did not answer a call, or answered nonsense. It reports whether
// that opened the breaker.
func (b *Breaker) Failed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.failures++
	if b.mu.failures < Threshold || !b.closed.Load() {
		return false
	}
	b.closed.Store(false)
	notify(b.open)
	return true
}

// Silent is Failed for a call to which nothing came. The next caller would wait just as long.
func (b *Breaker) Silent() bool {
	b.mu.Lock()
	if b.closed.Load() {
		b.mu.failures, b.mu.atOnce = Threshold, true
	}
	b.mu.Unlock()
	return b.Failed()
}

// Kick has the peer probed at once if the breaker is open.
func (b *Breaker) Kick() { notify(b.kicked) }

// Reset closes the breaker: another process has taken the place of the peer that failed.
func (b *Breaker) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.failures, b.mu.backoff = 0, 0
	b.closed.Store(true)
}

// State returns "closed", "open" or "half-open".
func (b *Breaker) State() string {
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

// Worse returns the worse state of two breakers.
func Worse(a, b *Breaker) string {
	x, y := a.State(), b.State()
	if x == "closed" || x == "half-open" && y == "open" {
		return y
	}
	return x
}

// Run makes probes while the breaker is open, until ctx ends.
func (b *Breaker) Run(ctx context.Context, probe func(context.Context) error) {
	for {
		select {
		case <-b.open:
		case <-ctx.Done():
			return
		}
		for !b.closed.Load() {
			if !b.Wait(ctx) {
				return
			}
			if b.closed.Load() {
				break // Reset has closed the breaker
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

// Wait waits for the back-off or for a kick. It returns false if ctx has ended.
func (b *Breaker) Wait(ctx context.Context) bool {
	select {
	case <-b.kicked: // left over from an earlier state
	default:
	}
	if b.takeAtOnce() {
		return ctx.Err() == nil
	}
	t := time.NewTimer(Jitter(b.next()))
	defer t.Stop()
	select {
	case <-t.C:
	case <-b.kicked:
	case <-ctx.Done():
		return false
	}
	return true
}

func (b *Breaker) takeAtOnce() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.mu.atOnce
	b.mu.atOnce = false
	return was
}

// next returns the back-off, and doubles it for the next time.
func (b *Breaker) next() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.backoff = min(max(2*b.mu.backoff, b.Min), b.Max)
	return b.mu.backoff
}

func (b *Breaker) setProbing(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.probing = on
}

// probation closes the breaker so that one failure opens it again.
func (b *Breaker) probation() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.failures = Threshold - 1
	b.closed.Store(true)
}

// Jitter returns a random time between 0.75 d and 1.25 d. Nodes that fail together then do not
// retry together.
func Jitter(d time.Duration) time.Duration {
	return d*3/4 + rand.N(d/2+1)
}

// notify puts an element into a channel of capacity one, unless the channel is full.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
