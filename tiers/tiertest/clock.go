package tiertest

import (
	"context"
	"sync"
	"time"
)

// Clock is the source of injected latency, so that no test has to sleep.
type Clock interface {
	// After returns a channel that receives once d has passed.
	After(d time.Duration) <-chan time.Time
}

// realClock is the Clock of the process.
type realClock struct{}

func (realClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// ManualClock is a Clock that stands still until Advance. Its methods may be
// called in parallel.
type ManualClock struct {
	mu struct {
		sync.Mutex
		now     time.Time
		timers  []manualTimer
		changed chan struct{} // closed and replaced whenever timers grows
	}
}

// manualTimer is one call of After that has not fired yet.
type manualTimer struct {
	at   time.Time
	fire chan time.Time // room for one, so that firing never blocks
}

var _ Clock = (*ManualClock)(nil)

// NewManualClock returns a clock that shows the Unix epoch.
func NewManualClock() *ManualClock {
	c := &ManualClock{}
	c.mu.now = time.Unix(0, 0)
	c.mu.changed = make(chan struct{})
	return c
}

// After returns a channel that receives when Advance has moved the clock by d or more. If d is not
// positive it receives at once.
func (c *ManualClock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := manualTimer{at: c.mu.now.Add(d), fire: make(chan time.Time, 1)}
	if d <= 0 {
		t.fire <- c.mu.now
		return t.fire
	}
	c.mu.timers = append(c.mu.timers, t)
	close(c.mu.changed)
	c.mu.changed = make(chan struct{})
	return t.fire
}

// Advance moves the clock by d and fires the timers that are due.
func (c *ManualClock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.now = c.mu.now.Add(d)
	waiting := c.mu.timers[:0]
	for _, t := range c.mu.timers {
		if t.at.After(c.mu.now) {
			waiting = append(waiting, t)
			continue
		}
		t.fire <- c.mu.now
	}
	c.mu.timers = waiting
}

// AwaitTimers returns once n timers or more have not fired yet, or with the error of ctx. A test
// calls it before Advance, to know that the tier has reached its latency. A timer whose owner has
// given up still counts.
func (c *ManualClock) AwaitTimers(ctx context.Context, n int) error {
	for {
		c.mu.Lock()
		waiting, changed := len(c.mu.timers), c.mu.changed
		c.mu.Unlock()
		if waiting >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
