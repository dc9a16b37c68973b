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
// up, the second open may be as late as the first. An engine does not know ESTALE. One that
// reads is told ENOENT then, a miss. One that writes is told EINTR, upon which the libraries
// of Python, Go and Rust open once more, by themselves, and others take the block for one that
// could not be stored; that goes on until maxTries. There is one of these for opens to read
// and one for opens to write. The zero value is ready.
type staleThreads struct {
	repeat bool // tell EINTR

	n  atomic.Int64 // of tids: opens that succeed look no further than this while it is 0
	mu struct {
		sync.Mutex
		tids  map[uint32]staleThread
		swept time.Time // when those were last taken out that have not come back
	}
}

// staleThread is how often a thread was told one or the other, and when last.
type staleThread struct {
	times int
	last  time.Time
	// Of what comes next the kernel may be unable to repeat it, and the one is not about an open:
	onPath bool // it was told ESTALE on the way there, see told
	before bool // an earlier owner told it something
}

const (
	// maxStale bounds the threads that are remembered. Beyond it some are forgotten.
	maxStale = 4096
	// maxTries bounds how often one open is told to try again.
	maxTries = 64
	// staleLife is when a thread that was told so and has not come back counts as a new one:
	// it found something else, or nothing, and did not ask for it.
	staleLife = 10 * time.Second
	// pathLife is that of one that was told so on a path: most such calls open nothing, and the
	// kernel goes on at once.
	pathLife = 100 * time.Millisecond
)

// lives reports whether what a thread was told may be of the call that it is in.
func (s staleThread) lives(now time.Time) bool {
	life := staleLife
	if s.onPath {
		life = pathLife
	}
	return now.Sub(s.last) <= life
}

// answer returns what to tell thread tid: st, but in place of a second ESTALE last, or EINTR
// where it is to be repeated, and last in the end.
func (t *staleThreads) answer(tid uint32, st, last fuse.Status) fuse.Status {
	if st != fuse.Status(syscall.ESTALE) {
		t.forget(tid)
		return st
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	had, known := t.mu.tids[tid]
	if !had.lives(now) {
		had.times = 0
	}
	if had.times == maxTries-1 || had.times%2 == 1 && !t.repeat {
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
	t.mu.tids[tid] = staleThread{times: had.times + 1, last: now}
	t.n.Store(int64(len(t.mu.tids)))
	if had.times%2 == 1 {
		return fuse.EINTR
	}
	return st
}

// told takes note that a path of thread tid was told ESTALE, because it leads by what an earlier
// owner has told. The kernel then begins anew, once. It returns what to tell: EINTR if the earlier owner
// had told the thread ESTALE already.
func (t *staleThreads) told(tid uint32) fuse.Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	if had := t.mu.tids[tid]; had.before && had.lives(time.Now()) {
		t.mu.tids[tid] = staleThread{times: 2, last: time.Now()}
		return fuse.EINTR
	}
	t.noteLocked(tid, staleThread{times: 1, last: time.Now(), onPath: true})
	return fuse.Status(syscall.ESTALE)
}

func (t *staleThreads) noteLocked(tid uint32, how staleThread) {
	if t.mu.tids == nil {
		t.mu.tids = map[uint32]staleThread{}
	}
	if len(t.mu.tids) < maxStale {
		t.mu.tids[tid] = how
		t.n.Store(int64(len(t.mu.tids)))
	}
}

// spent reports, once, whether thread tid may have been told ESTALE on the way to what it opens for
// writing: if the open needs that, too, it comes too late, and must do nothing but be repeated.
func (t *staleThreads) spent(tid uint32) bool {
	if t.n.Load() == 0 {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	had := t.mu.tids[tid]
	if !had.onPath && !had.before || !had.lives(time.Now()) {
		return false
	}
	t.mu.tids[tid] = staleThread{times: 2, last: time.Now()}
	return true
}

// underway returns the threads that were told ESTALE in place of what they open, and have not come
// back: for the next owner.
func (t *staleThreads) underway() (tids []uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for tid, had := range t.mu.tids {
		if !had.onPath && had.times%2 == 1 && time.Since(had.last) < time.Second {
			tids = append(tids, tid)
		}
	}
	return tids
}

// resume takes note of what underway returned in another process.
func (t *staleThreads) resume(tids []uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, tid := range tids {
		t.noteLocked(tid, staleThread{times: 1, last: time.Now(), before: true})
	}
}

// forget takes note that the open of thread tid got another answer.
func (t *staleThreads) forget(tid uint32) {
	if t.n.Load() == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.tids, tid)
	if now := time.Now(); now.Sub(t.mu.swept) > staleLife {
		t.mu.swept = now
		for tid, had := range t.mu.tids {
			if !had.lives(now) {
				delete(t.mu.tids, tid)
			}
		}
	}
	t.n.Store(int64(len(t.mu.tids)))
}
