package peer

import (
	"context"
	"errors"
	"math/bits"
	"slices"
	"sync"
	"time"
)

const (
	speedSamples = 64                   // kept for each size class
	minSamples   = 20                   // fewer are not enough
	minHedge     = 5 * time.Millisecond // a second fetch costs more than waiting for less
)

// speeds has the times of recent fetches, by size class: a class is one power of two. Its lock is a
// leaf.
type speeds struct {
	mu struct {
		sync.Mutex
		classes [65]*speedClass
	}
}

type speedClass struct {
	ring [speedSamples]time.Duration
	n    int // samples ever
}

// add records that a block of that size took d to come.
func (s *speeds) add(size int64, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.mu.classes[bits.Len64(uint64(size))]
	if c == nil {
		c = &speedClass{}
		s.mu.classes[bits.Len64(uint64(size))] = c
	}
	c.ring[c.n%speedSamples] = d
	c.n++
}

// quantile returns the time in which the part q of the recent fetches of that size ended. False:
// there were too few.
func (s *speeds) quantile(size int64, q float64) (time.Duration, bool) {
	s.mu.Lock()
	c := s.mu.classes[bits.Len64(uint64(size))]
	if c == nil || c.n < minSamples {
		s.mu.Unlock()
		return 0, false
	}
	sorted := slices.Clone(c.ring[:min(c.n, speedSamples)])
	s.mu.Unlock()
	slices.Sort(sorted)
	return max(minHedge, sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]), true
}

const (
	// minSilence is the default of Options.Silence. silenceFactor multiplies the median of the
	// recent fetches of that size.
	minSilence    = 300 * time.Millisecond
	silenceFactor = 4
	maxSilences   = 8                // that count
	silenceLife   = 10 * time.Second // of one silence
)

// silence returns the time in which a holder must send something of a block. It doubles with each
// time that this holder did not, although it answers probes: the holder may be slow rather than
// gone.
func (t *Tier) silence(peer string, size int64) time.Duration {
	d := t.opts.Silence
	if slow, ok := t.speed.quantile(size, 0.5); ok {
		d = max(d, silenceFactor*slow)
	}
	return min(d<<t.silent.count(peer, t.now()), t.opts.Timeout)
}

// silences counts in how many fetches in a row nothing came from a peer. Fetches under way at the
// same time count as one. Its lock is a leaf.
type silences struct {
	mu struct {
		sync.Mutex
		byPeer map[string]silentPeer
	}
}

type silentPeer struct {
	count int
	at    time.Time // of the latest
}

// add counts a fetch that began then.
func (s *silences) add(peer string, began, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.byPeer == nil {
		s.mu.byPeer = map[string]silentPeer{}
	}
	last := s.mu.byPeer[peer]
	switch {
	case now.Sub(last.at) > silenceLife:
		last.count = 0
	case began.Before(last.at):
		return
	}
	s.mu.byPeer[peer] = silentPeer{min(last.count+1, maxSilences), now}
}

func (s *silences) clear(peer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.byPeer, peer)
}

func (s *silences) count(peer string, now time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.mu.byPeer[peer]
	if now.Sub(last.at) > silenceLife {
		return 0
	}
	return last.count
}

// byteRoom bounds bytes in use. Waiters are served in order, so large ones do not starve.
type byteRoom struct {
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

func newByteRoom(limit int64) *byteRoom { return &byteRoom{limit: limit} }

// errNoRoom says that there was no room for too long.
var errNoRoom = errors.New("too much is being fetched")

// acquire waits for room and returns how much it took, for release: a request larger than the limit
// takes all of it. limit makes the timer that bounds the wait.
func (r *byteRoom) acquire(ctx context.Context, n int64, limit func() (<-chan time.Time, func())) (int64, error) {
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
	err := errNoRoom
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
		r.release(n) // it came at the same time
	}
	return 0, err
}

// try takes room if there is some now.
func (r *byteRoom) try(n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.mu.waiting) > 0 || r.mu.used+n > r.limit {
		return false
	}
	r.mu.used += n
	return true
}

func (r *byteRoom) release(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.used -= n
	r.admitLocked()
}

func (r *byteRoom) admitLocked() {
	for len(r.mu.waiting) > 0 && r.mu.used+r.mu.waiting[0].n <= r.limit {
		w := r.mu.waiting[0]
		r.mu.waiting = slices.Delete(r.mu.waiting, 0, 1)
		r.mu.used += w.n
		close(w.ready)
	}
}
