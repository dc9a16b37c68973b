package fs

import (
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// staleThreads knows which threads were last told ESTALE when they opened a block. The
// kernel then looks the name up and opens it once more, but only once; where others
// replace the block all the time, or where the machine is so busy that what the look-up found
// was given up, the second open may be as late as the first. An engine does not know ESTALE.
// An open for reading is told ENOENT then, a miss, and one for writing EINTR, upon which the
// libraries of Python, Go and Rust repeat it by themselves. There is one for each of the two,
// as a thread that was told ESTALE once need not come back. The zero value is ready.
type staleThreads struct {
	n  atomic.Int64 // of tids: opens that succeed look no further than this while it is 0
	mu struct {
		sync.Mutex
		tids map[uint32]struct{}
	}
}

// maxStale bounds the threads that are remembered. Beyond it some are forgotten.
const maxStale = 4096

// answer returns what to tell thread tid: st, but second in place of a second ESTALE.
func (t *staleThreads) answer(tid uint32, st, second fuse.Status) fuse.Status {
	if st != fuse.Status(syscall.ESTALE) {
		t.forget(tid)
		return st
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, again := t.mu.tids[tid]; again {
		delete(t.mu.tids, tid)
		t.n.Store(int64(len(t.mu.tids)))
		return second
	}
	if t.mu.tids == nil {
		t.mu.tids = map[uint32]struct{}{}
	}
	if len(t.mu.tids) >= maxStale {
		for old := range t.mu.tids {
			delete(t.mu.tids, old)
			break
		}
	}
	t.mu.tids[tid] = struct{}{}
	t.n.Store(int64(len(t.mu.tids)))
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
