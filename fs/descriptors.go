package fs

import (
	"context"
	"time"
)

// Descriptors bounds how many descriptors of this process clients hold by open files, so that the process keeps some for
// itself. Mounts of one process share one. Nil is without a bound.
type Descriptors struct {
	taken chan struct{}
	wait  time.Duration
}

// NewDescriptors returns a bound of n. An open for writing waits for one that is closed, at most for wait.
func NewDescriptors(n int, wait time.Duration) *Descriptors {
	return &Descriptors{make(chan struct{}, n), wait}
}

// tryTake takes a descriptor if there is one.
func (d *Descriptors) tryTake() bool {
	if d == nil {
		return true
	}
	select {
	case d.taken <- struct{}{}:
		return true
	default:
		return false
	}
}

// take takes a descriptor, and waits for one if need be, until ctx ends. blocks is called before it waits.
func (d *Descriptors) take(ctx context.Context, blocks func()) bool {
	if d.tryTake() {
		return true
	}
	blocks()
	t := time.NewTimer(d.wait)
	defer t.Stop()
	select {
	case d.taken <- struct{}{}:
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	return false
}

// give gives a descriptor back.
func (d *Descriptors) give() {
	if d != nil {
		<-d.taken
	}
}
