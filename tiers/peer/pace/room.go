package pace

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Room bounds bytes in use. Waiters are served in order, so large ones do not starve.
type Room struct {
	limit int64
	mu    struct {
		sync.Mutex
		used    int64
		waiting []*roomWaiter
	}
}

type roomWaiter struct {
	n     int64
	ready chan struct{} // closed when n is counted as used
}

// NewRoom returns room for limit bytes.
func NewRoom(limit int64) *Room { return &Room{limit: limit} }

// ErrNoRoom says that there was no room for too long.
var ErrNoRoom = errors.New("too much is being fetched")

// Acquire waits for room and returns how much it took, for Release: a request larger than the limit
// takes all of it. limit makes the timer that bounds the wait.
func (r *Room) Acquire(ctx context.Context, n int64, limit func() (<-chan time.Time, func())) (int64, error) {
	n = min(n, r.limit)
	r.mu.Lock()
	if len(r.mu.waiting) == 0 && r.mu.used+n <= r.limit {
		r.mu.used += n
		r.mu.Unlock()
		return n, nil
	}
	w := &roomWaiter{n: n, ready: make(chan struct{})}
	r.mu.waiting = append(r.mu.waiting, w)
	r.mu.Unlock()
	timer, stop := limit()
	defer stop()
	err := ErrNoRoom
	select {
	case <-w.ready:
		return n, nil
	case <-timer:
	case <-ctx.Done():
		err = ctx.Err()
	}
	r.mu.Lock()
	at := slices.Index(r.mu.waiting, w)
	if at >= 0 {
		r.mu.waiting = slices.Delete(r.mu.waiting, at, at+1)
		r.admitLocked() // the next ones may be smaller
	}
	r.mu.Unlock()
	if at < 0 {
		r.Release(n) // it came at the same time
	}
	return 0, err
}

// Try takes room if there is some now.
func (r *Room) Try(n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.mu.waiting) > 0 || r.mu.used+n > r.limit {
		return false
	}
	r.mu.used += n
	return true
}

// Release gives back what Acquire or Try took.
func (r *Room) Release(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.used -= n
	r.admitLocked()
}

func (r *Room) admitLocked() {
	for len(r.mu.waiting) > 0 && r.mu.used+r.mu.waiting[0].n <= r.limit {
		w := r.mu.waiting[0]
		r.mu.waiting = slices.Delete(r.mu.waiting, 0, 1)
		r.mu.used += w.n
		close(w.ready)
	}
}
