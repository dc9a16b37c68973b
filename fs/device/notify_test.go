package device

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
)

// TestNotifierBound shows that the queue drops what is beyond its bound, counts
// it, keeps the order, and never blocks its caller.
func TestNotifierBound(t *testing.T) {
	q := newNotifier()
	const more = 7
	for i := range maxNotices + more {
		q.add(notice{node: uint64(i)}) // nobody runs the queue
	}
	if got := len(q.mu.queue); got != maxNotices {
		t.Errorf("%d queued, want %d", got, maxNotices)
	}
	if q.mu.dropped != more {
		t.Errorf("%d dropped, want %d", q.mu.dropped, more)
	}
	for i, n := range q.mu.queue {
		if n.node != uint64(i) {
			t.Fatalf("position %d holds notice %d", i, n.node)
		}
	}
}

// TestNotifierClose shows that run ends with close, before it or after, and that
// nothing is sent from then on: there is no server to send to.
func TestNotifierClose(t *testing.T) {
	for _, queued := range []int{0, 3} {
		t.Run(fmt.Sprintf("queued=%d", queued), func(t *testing.T) {
			q := newNotifier()
			for range queued {
				q.add(notice{})
			}
			q.close()
			q.close()
			q.run(nil)
			q.add(notice{}) // an engine that still works
		})
	}
	q := newNotifier()
	ended := make(chan struct{})
	go func() { // ends with close
		q.run(nil)
		close(ended)
	}()
	q.close()
	<-ended
}

// TestNotifierFlush: a flush returns after the last of the notices so far, and also if nothing
// sends them any more.
func TestNotifierFlush(t *testing.T) {
	q := newNotifier()
	c := &countingChannel{}
	ended := make(chan struct{})
	q.add(notice{node: 1, name: "a"})
	q.add(notice{node: 1, name: "b"})
	go func() { defer close(ended); q.run(c) }()
	q.flush(t.Context())
	if n := c.names.Load(); n != 2 {
		t.Errorf("%d names sent before flush returned, want 2", n)
	}
	q.close()
	<-ended
	q.flush(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	newNotifier().flush(ctx)
}

// countingChannel counts names.
type countingChannel struct {
	channel
	names atomic.Int64
}

func (c *countingChannel) beginNotices()             {}
func (c *countingChannel) endNotices()               {}
func (c *countingChannel) invalEntry(uint64, string) { c.names.Add(1) }
func (c *countingChannel) invalInode(uint64)         { c.names.Add(1) }
