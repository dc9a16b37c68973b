package object

import (
	"sync"
	"time"

	"github.com/kvfs/kvfs/tiers/object/pack"
)

// queue has the blocks that wait to be written, in the order in which they came.
type queue struct {
	below  int64         // blocks of fewer bytes go into packs together
	linger time.Duration // longest wait for a pack to fill
	wake   chan struct{} // has one element when next may have something new to say

	mu struct {
		sync.Mutex
		small      []*flight
		smallBytes int64
		since      time.Time // when the first of small came
		last       time.Time // when the last of small came
		urgent     bool      // somebody waits for one of small
		large      []*flight
		closed     bool
	}
}

// restShare is the part of linger after which a pack goes when no further block has come. The engine stores some jobs at a
// time and waits for them: more may not come before these are done.
const restShare = 16

// add appends blocks.
func (q *queue) add(list []*flight) {
	q.mu.Lock()
	for _, f := range list {
		if f.block().Size >= q.below {
			q.mu.large = append(q.mu.large, f)
			continue
		}
		q.mu.last = time.Now()
		if len(q.mu.small) == 0 {
			q.mu.since = q.mu.last
		}
		q.mu.small = append(q.mu.small, f)
		q.mu.smallBytes += f.frame()
		q.mu.urgent = q.mu.urgent || f.job.Force
	}
	q.mu.Unlock()
	q.wakeUp()
}

// close has next return what waits without lingering, and then end.
func (q *queue) close() {
	q.mu.Lock()
	q.mu.closed = true
	q.mu.Unlock()
	q.wakeUp()
}

func (q *queue) wakeUp() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// wait removes the blocks of the next pack, once there is one. It returns nil when the queue is closed and empty.
func (q *queue) wait() []*flight {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		list, wait, end := q.next()
		switch {
		case len(list) > 0 || end:
			return list
		case wait >= 0:
			timer.Reset(wait)
		}
		select {
		case <-q.wake:
		case <-timer.C:
		}
	}
}

// next removes the blocks of the next pack. If there is none yet, wait is how long until there may be, or negative for
// until wake. end: the queue is closed and empty.
func (q *queue) next() (list []*flight, wait time.Duration, end bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.mu.large) > 0 {
		list, q.mu.large = q.mu.large[:1:1], q.mu.large[1:]
		return list, 0, false
	}
	if len(q.mu.small) == 0 {
		return nil, -1, q.mu.closed
	}
	wait = min(q.linger-time.Since(q.mu.since), q.linger/restShare-time.Since(q.mu.last))
	if wait > 0 && q.mu.smallBytes < pack.MaxFrames && !q.mu.urgent && !q.mu.closed {
		return nil, wait, false
	}
	bytes := int64(0)
	n := 0
	for ; n < len(q.mu.small) && (n == 0 || bytes+q.mu.small[n].frame() <= pack.MaxFrames); n++ {
		bytes += q.mu.small[n].frame()
	}
	list, q.mu.small = q.mu.small[:n:n], q.mu.small[n:]
	q.mu.smallBytes -= bytes
	if len(q.mu.small) == 0 {
		q.mu.urgent = false
	}
	q.mu.since = time.Now()
	return list, 0, false
}
