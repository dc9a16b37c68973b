package fs

import (
	"sync"
)

// notice is one name that the kernel should forget.
type notice struct {
	parent, child uint64
	name          string
}

// maxNotices bounds the queue of notices. Beyond it they are dropped: the kernel
// then keeps a name until its timeout, and learns at the open that it is gone.
const maxNotices = 1 << 16

// notifier tells the kernel about names that went away. It has a goroutine of
// its own because a notice takes the kernel's lock on the directory, which the
// request that caused it may hold.
type notifier struct {
	mu struct {
		sync.Mutex
		queue   []notice
		dropped uint64
		closed  bool
	}
	news chan struct{} // capacity 1
}

func newNotifier() *notifier { return &notifier{news: make(chan struct{}, 1)} }

// add queues n. It never blocks.
func (q *notifier) add(n notice) {
	q.mu.Lock()
	if len(q.mu.queue) < maxNotices {
		q.mu.queue = append(q.mu.queue, n)
	} else {
		q.mu.dropped++
	}
	q.mu.Unlock()
	q.wake()
}

func (q *notifier) wake() {
	select {
	case q.news <- struct{}{}:
	default:
	}
}

// run sends what is queued until close.
func (q *notifier) run(c channel) {
	for range q.news {
		q.mu.Lock()
		batch, closed := q.mu.queue, q.mu.closed
		q.mu.queue = nil
		q.mu.Unlock()
		if closed {
			return
		}
		for _, n := range batch {
			c.invalEntry(n.parent, n.name)
		}
	}
}

func (q *notifier) close() {
	q.mu.Lock()
	q.mu.closed = true
	q.mu.Unlock()
	q.wake()
}
