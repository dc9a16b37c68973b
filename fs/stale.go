package fs

import (
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// staleThreads knows which threads were told ESTALE when they opened a block. The kernel
// then looks the name up and opens it once more, but only once; where others replace the
// block all the time, or where the machine is so busy that what the look-up found was given
// up, the second open may be as late as the first. An engine does not know ESTALE: it is told
// EINTR then, upon which the libraries of Python, Go and Rust open once more, by themselves,
// and others take the block for one that could not be had. That goes on until maxTries.
// There is one of these for opens to read and one for opens to write. The zero value is ready.
type staleThreads struct {
	n  atomic.Int64 // of tids: opens that succeed look no further than this while it is 0
	mu struct {
		sync.Mutex
		tids map[uint32]staleThread
	}
}

// staleThread is how often a thread was told one or the other, and when last.
type staleThread struct {
	times int
	last  time.Time
}

const (
	// maxStale bounds the threads that are remembered. Beyond it some are forgotten.
	maxStale = 4096
	// maxTries bounds how often one open is told to try again.
	maxTries = 64
	// staleLife is when a thread that was told so and has not come back counts as a new one:
	// it found something else, or nothing, and did not ask for it.
	staleLife = 10 * time.Second
)

// answer returns what to tell thread tid: st, but EINTR in place of a second ESTALE, and in
// the end last.
func (t *staleThreads) answer(tid uint32, st, last fuse.Status) fuse.Status {
	if st != fuse.Status(syscall.ESTALE) {
		t.forget(tid)
		return st
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	had, known := t.mu.tids[tid]
	if now.Sub(had.last) > staleLife {
		had.times = 0
	}
	if had.times == maxTries-1 {
		delete(t.mu.tids, tid)
		t.n.Store(int64(len(t.mu.tids)))
		return last
	}
	if t.mu.tids == nil {
		t.mu.tids = map[uint32]staleThread{}
	}
	if !known && len(t.mu.tids) >= maxStale {
		for old := range t.mu.tids {
			delete(t.mu.tids, old)
			break
		}
	}
	t.mu.tids[tid] = staleThread{had.times + 1, now}
	t.n.Store(int64(len(t.mu.tids)))
	if had.times%2 == 1 {
		return fuse.EINTR
	}
	return st
}

// forget takes note that the open of thread tid got another answer.
func (t *staleThreads) forget(tid uint32) {
	if t.n.Load() == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.tids, tid)
	t.n.Store(int64(len(t.mu.tids)))
}
