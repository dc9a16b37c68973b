package device

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Keep reports whether the load of the block may keep the thread that has called OpenLater. Where the client is alone,
// the thread has no other request to answer: then neither a goroutine has to start nor another thread to wake up for the
// load. OpenLater calls end before it returns. If another request comes all the same while the load waits, another thread
// leads (stint). A request that has announced that it waits (Conn.MayBlock) has no leader to keep: another thread leads already.
func (r Reply) Keep() (ok bool, end func()) {
	if r.d.unique.Load() != r.unique || r.d.opening.Load() != 1 || !r.d.follower.isAlone() {
		return false, func() {}
	}
	over := r.d.stint.begin(r.w, r.unique)
	r.w.unfollow()           // a bound thread is of no use to other goroutines
	runtime.UnlockOSThread() // a load that waits for the network ends on the thread that learns of it
	return true, func() {
		runtime.LockOSThread()
		over()
	}
}

// stint bounds how long a load keeps the leader. One timer serves all: each that is set wakes a thread.
type stint struct {
	turn  atomic.Pointer[turn] // nil: no load keeps the leader
	ticks atomic.Bool          // the timer runs
}

// turn is one load that keeps its worker.
type turn struct {
	w      *worker
	unique uint64 // the request
}

// longestStint is the time after which, at most twice that, another thread leads.
const longestStint = 2 * time.Millisecond

// begin returns what ends the turn.
func (s *stint) begin(w *worker, unique uint64) (end func()) {
	t := &turn{w, unique}
	s.turn.Store(t)
	if !s.ticks.Swap(true) {
		time.AfterFunc(longestStint, func() { s.tick(nil) }) // ends when no load keeps a leader
	}
	return func() { s.turn.CompareAndSwap(t, nil) }
}

// tick is the end of a period. The turn of the one before is too long. A device can keep its worker for ever, so nothing
// waits for that any more.
func (s *stint) tick(last *turn) {
	now := s.turn.Load()
	if now == nil {
		s.ticks.Store(false)
		if now = s.turn.Load(); now == nil || s.ticks.Swap(true) { // else one has begun meanwhile
			return
		}
	}
	if now == last {
		d := now.w.d
		now.w.over.Store(now.unique)
		if d.unique.CompareAndSwap(now.unique, 0) {
			d.handOver()
			d.wg.Done()
		}
		s.turn.CompareAndSwap(now, nil)
	}
	time.AfterFunc(longestStint, func() { s.tick(now) })
}
