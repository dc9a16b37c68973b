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
		err   error
		after map[*func()]struct{} // to be called at the end
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

// AfterFunc has f called on a goroutine of its own when the context ends, unless stop
// comes before; stop returns whether it did. Package context looks for it: without it,
// everything that follows this context would have a goroutine that waits.
func (c *cutContext) AfterFunc(f func()) (stop func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.err != nil {
		go f() // the caller's to end, as in package context
		return func() bool { return false }
	}
	if c.mu.after == nil {
		c.mu.after = make(map[*func()]struct{})
	}
	c.mu.after[&f] = struct{}{}
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		_, waits := c.mu.after[&f]
		delete(c.mu.after, &f)
		return waits
	}
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
		for f := range c.mu.after {
			go (*f)() // likewise
		}
		c.mu.after = nil
	}
}
