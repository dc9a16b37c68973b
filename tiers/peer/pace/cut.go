package pace

import (
	"context"
	"sync"
	"time"
)

// Cut is a context that ends with its parent, or when it is cut off with an error that the
// caller chooses. A stalled request ends with DeadlineExceeded, which the peer's breaker notes. An
// unwanted request ends with Canceled.
type Cut struct {
	context.Context
	deadline time.Time // its latest end
	done     chan struct{}
	stop     func() bool // ends following the parent
	mu       struct {
		sync.Mutex
		err   error
		after map[*func()]struct{} // functions to call at the end
	}
}

// NewCut returns a context below parent. deadline is for callees that look for one: nothing ends the context then.
func NewCut(parent context.Context, deadline time.Time) *Cut {
	c := &Cut{Context: parent, deadline: deadline, done: make(chan struct{})}
	c.stop = context.AfterFunc(parent, func() { c.end(parent.Err()) })
	return c
}

// Deadline implements context.Context.
func (c *Cut) Deadline() (time.Time, bool) { return c.deadline, true }

// Done implements context.Context.
func (c *Cut) Done() <-chan struct{} { return c.done }

// Err implements context.Context.
func (c *Cut) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.err
}

// AfterFunc calls f in its own goroutine when the context ends, unless stop is called before; stop
// returns whether it was. Package context looks for this method: without it, every context that
// follows this one would have a waiting goroutine.
func (c *Cut) AfterFunc(f func()) (stop func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.err != nil {
		go f() // the caller ends it, as in package context
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

// Cut ends the context. Only the first end counts.
func (c *Cut) Cut(err error) {
	c.stop()
	c.end(err)
}

func (c *Cut) end(err error) {
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
