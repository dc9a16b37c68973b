package device

import (
	"context"
	"sync"
)

// notice asks the kernel to forget one name in the directory of node, or the attributes of
// node. With done set it is only a point in the queue, for flush.
type notice struct {
	node       uint64
	name       string
	attributes bool
	done       chan struct{}
}

// maxNotices bounds the queue of notices. Beyond it, notices are dropped: the kernel then keeps
// a name until its timeout, and learns at the open that it is gone.
const maxNotices = 1 << 16

// notifier tells the kernel which names are gone. It has a goroutine of its own because a
// notice takes the kernel's lock on the directory, which the request that caused it may hold.
type notifier struct {
	mu struct {
		sync.Mutex
		queue   []notice
		dropped uint64
		closed  bool
	}
	news  chan struct{} // capacity 1
	begun chan struct{} // closed when run is ready
	gone  chan struct{} // closed when run has ended
}

func newNotifier() *notifier {
	return &notifier{news: make(chan struct{}, 1), begun: make(chan struct{}), gone: make(chan struct{})}
}

// add queues n. It never blocks.
func (q *notifier) add(n notice) {
	q.mu.Lock()
	if len(q.mu.queue) < maxNotices || n.done != nil {
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

// flush is Conn.Flush.
func (q *notifier) flush(ctx context.Context) {
	done := make(chan struct{})
	q.add(notice{done: done})
	select {
	case <-done:
	case <-q.gone:
	case <-ctx.Done():
	}
}

// run sends the queued notices until close.
func (q *notifier) run(c channel) {
	defer close(q.gone)
	if c != nil {
		c.beginNotices()
		defer c.endNotices()
	}
	close(q.begun)
	for range q.news {
		q.mu.Lock()
		batch, closed := q.mu.queue, q.mu.closed
		q.mu.queue = nil
		q.mu.Unlock()
		if closed {
			return
		}
		for _, n := range batch {
			switch {
			case n.done != nil:
				close(n.done)
			case n.attributes:
				c.invalInode(n.node)
			default:
				c.invalEntry(n.node, n.name)
			}
		}
	}
}

func (q *notifier) close() {
	q.mu.Lock()
	q.mu.closed = true
	q.mu.Unlock()
	q.wake()
}
