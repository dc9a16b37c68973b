package fs

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/index"
)

// TestNotifierBound shows that the queue drops what is beyond its bound, counts
// it, keeps the order, and never blocks its caller.
func TestNotifierBound(t *testing.T) {
	q := newNotifier()
	const more = 7
	for i := range maxNotices + more {
		q.add(notice{parent: 1, child: uint64(i)}) // nobody runs the queue
	}
	if got := len(q.mu.queue); got != maxNotices {
		t.Errorf("%d queued, want %d", got, maxNotices)
	}
	if q.mu.dropped != more {
		t.Errorf("%d dropped, want %d", q.mu.dropped, more)
	}
	for i, n := range q.mu.queue {
		if n.child != uint64(i) {
			t.Fatalf("position %d holds notice %d", i, n.child)
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

// TestHooksBeforeMount shows that the callbacks do nothing before there is a
// mount.
func TestHooksBeforeMount(t *testing.T) {
	var h Hooks
	h.Invalidate(tiers.Process{}, 1, 2, "x")
	h.Dropped(3)
	if !h.Alive(tiers.Process{PID: 4}) {
		t.Error("a process is taken for dead though nobody knows")
	}
}

// TestMountsInvalidate: all mounts but the one whose kernel has asked are told of a name.
func TestMountsInvalidate(t *testing.T) {
	m := &Mounts{}
	var all []*Server
	for range 3 {
		s := &Server{notices: newNotifier(), shared: shared{refs: newRefs()}}
		if err := m.number(s); err != nil {
			t.Fatal(err)
		}
		m.add(s)
		all = append(all, s)
	}
	m.Invalidate(tiers.Process{Kernel: all[1].mount, PID: 7}, index.Root, 2, "by one")
	m.Invalidate(tiers.Process{}, index.Root, 2, "by none")
	for i, want := range [][]string{{"by one", "by none"}, {"by none"}, {"by one", "by none"}} {
		var got []string
		for _, n := range all[i].notices.mu.queue {
			got = append(got, n.name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("mount %d is told %q, want %q", i, got, want)
		}
	}
}

// TestNotifierFlush: who waits for the notices so far is told after the last of them,
// and not for ever where nobody sends them.
func TestNotifierFlush(t *testing.T) {
	q := newNotifier()
	c := &countingChannel{}
	ended := make(chan struct{})
	q.add(notice{parent: 1, name: "a"})
	q.add(notice{parent: 1, name: "b"})
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
