package peer

import (
	"context"
	"sync"
	"time"
)

// cutContext is a context that ends with its parent, or when it is cut off with an error
// of the caller's choice: a request that stood still for too long ends with
// DeadlineExceeded, of which the peer's breaker takes note, and one that is not wanted any
// more with Canceled.
type cutContext struct {
	context.Context
	deadline time.Time // that it has at the latest
	done     chan struct{}
	stop     func() bool // of following the parent
	mu       struct {
		sync.Mutex
		err error
	}
}

func newCutContext(parent context.Context, deadline time.Time) *cutContext {
	c := &cutContext{Context: parent, deadline: deadline, done: make(chan struct{})}
	c.stop = context.AfterFunc(parent, func() { c.end(parent.Err()) })
	return c
}

// Deadline implements context.Context.
func (c *cutContext) Deadline() (time.Time, bool) { return c.deadline, true }

// Done implements context.Context.
func (c *cutContext) Done() <-chan struct{} { return c.done }

// Err implements context.Context.
func (c *cutContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.err
}

// cut ends it. Only the first end counts.
func (c *cutContext) cut(err error) {
	c.stop()
	c.end(err)
}

func (c *cutContext) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.err == nil {
		c.mu.err = err
		close(c.done)
	}
}
