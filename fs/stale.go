package fs

import (
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kvfs/kvfs/tiers"
)

// staleThreads remembers which threads were told ESTALE. Their kernel looks the path up and asks once
// more, but only once in a system call. An engine does not know ESTALE: where the second try fails as
// well, one that reads is told ENOENT, a miss, and one that writes EINTR, upon which the libraries of
// Python, Go and Rust open once more. The zero value is ready.
type staleThreads struct {
	n  atomic.Int64 // of tids: who asks looks no further than this while it is 0
	mu struct {
		sync.Mutex // leaf
		tids       map[uint32]staleThread
		swept      time.Time // when those were last taken out that have not come back
	}
}

// staleThread is when a thread was told ESTALE, and in place of what.
type staleThread struct {
	at    time.Time
	what  staleKind
	tries int // how often it was told EINTR
}

type staleKind uint8

const (
	staleOpen   staleKind = iota // an open
	stalePath                    // a name on the way to what it asks for, which may be no open
	staleBefore                  // either, by an earlier owner of the mount
	staleTried                   // an open, and then EINTR: it begins anew
)

const (
	// maxStale bounds the threads that are remembered. Beyond it all are forgotten.
	maxStale = 4096
	// maxTries bounds how often one open is told EINTR.
	maxTries = 64
	// staleLife is when a thread that was told so and has not come back counts as a new one:
	// it found something else, or nothing, and did not ask for it.
	staleLife = 10 * time.Second
	// pathLife is that of one that was told so on a path: most such calls open nothing, and the
	// kernel goes on at once.
	pathLife = 100 * time.Millisecond
)

func (s staleThread) lives() bool {
	if s.what == stalePath {
		return time.Since(s.at) < pathLife
	}
	return time.Since(s.at) < staleLife
}

// told reports whether thread tid has been told ESTALE in the call that it is in.
func (t *staleThreads) told(tid uint32) bool {
	if t.n.Load() == 0 {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	had, ok := t.mu.tids[tid]
	return ok && had.what != staleTried && had.lives()
}

// note takes note that thread tid is told ESTALE.
func (t *staleThreads) note(tid uint32, what staleKind) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.tids == nil || len(t.mu.tids) >= maxStale {
		t.mu.tids = map[uint32]staleThread{}
	}
	t.mu.tids[tid] = staleThread{time.Now(), what, t.mu.tids[tid].tries}
	t.n.Store(int64(len(t.mu.tids)))
}

// forget takes note that the call of thread tid has got its answer.
func (t *staleThreads) forget(tid uint32) {
	if t.n.Load() == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.tids, tid)
	if time.Since(t.mu.swept) > staleLife {
		t.mu.swept = time.Now()
		maps.DeleteFunc(t.mu.tids, func(_ uint32, had staleThread) bool { return !had.lives() })
	}
	t.n.Store(int64(len(t.mu.tids)))
}

// answer returns what to tell a caller whose open ended with err: in place of a second ESTALE, last.
func (t *staleThreads) answer(by *tiers.Caller, err error, last fuse.Status) fuse.Status {
	if !errors.Is(err, tiers.ErrStale) || by.Told {
		if errors.Is(err, tiers.ErrStale) && last == fuse.EINTR && t.tried(by.Thread) {
			return last
		}
		t.forget(by.Thread)
		if errors.Is(err, tiers.ErrStale) {
			return fuse.ENOENT
		}
		return status(err)
	}
	t.note(by.Thread, staleOpen)
	return fuse.Status(syscall.ESTALE)
}

// tried takes note that thread tid is told EINTR, unless it was often enough.
func (t *staleThreads) tried(tid uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	had := t.mu.tids[tid]
	if had.tries == maxTries {
		return false
	}
	t.mu.tids[tid] = staleThread{time.Now(), staleTried, had.tries + 1}
	return true
}

// path returns what to tell thread tid whose path leads by what an earlier owner has told: EINTR if
// that owner had told the thread ESTALE already.
func (t *staleThreads) path(tid uint32) fuse.Status {
	t.mu.Lock()
	had, ok := t.mu.tids[tid]
	t.mu.Unlock()
	if ok && had.what == staleBefore && had.lives() {
		t.forget(tid)
		return fuse.EINTR
	}
	t.note(tid, stalePath)
	return fuse.Status(syscall.ESTALE)
}

// Earlier implements device.Files.
func (f *files) Earlier(tid uint32) fuse.Status { return f.stale.path(tid) }

// underway returns the threads that were told ESTALE in place of what they open, and have not come
// back: for the next owner.
func (t *staleThreads) underway() (tids []uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for tid, had := range t.mu.tids {
		if had.what != stalePath && had.what != staleTried && time.Since(had.at) < time.Second {
			tids = append(tids, tid)
		}
	}
	return tids
}

// resume takes note of what underway returned in another process.
func (t *staleThreads) resume(tids []uint32) {
	for _, tid := range tids {
		t.note(tid, staleBefore)
	}
}
