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

// staleThreads remembers which threads got ESTALE. On ESTALE the kernel looks the path up and
// asks once more, but only once per system call. Engines do not know ESTALE. So if the second
// try fails as well, a reader gets ENOENT, a miss, and a writer gets EINTR, on which the
// libraries of Python, Go and Rust open once more. The zero value is ready.
type staleThreads struct {
	n  atomic.Int64 // len(tids): at 0 a caller takes no lock
	mu struct {
		sync.Mutex // leaf
		tids       map[uint32]staleThread
		swept      time.Time // when expired threads were last removed
	}
}

// staleThread is when a thread got ESTALE, and for what.
type staleThread struct {
	at    time.Time
	what  staleKind
	tries int // how often it got EINTR
}

type staleKind uint8

const (
	staleOpen   staleKind = iota // an open
	stalePath                    // a directory on the path of any call
	staleBefore                  // either, from an earlier owner of the mount
	staleTried                   // an open that then got EINTR: it starts again
	staleAbsent                  // an open whose name is then absent: it ends, unless it creates or looks again
)

const (
	// maxStale bounds the remembered threads. Beyond it, all are forgotten.
	maxStale = 4096
	// maxTries bounds how often one open gets EINTR.
	maxTries = 64
	// staleLife is when a thread that has not come back counts as a new one: it found something
	// else, or nothing, and did not ask for it.
	staleLife = 10 * time.Second
	// pathLife is staleLife for ESTALE on a path: most such calls open nothing. The kernel repeats them at
	// once, but on a busy machine a thread waits tenths of a second before each step.
	pathLife = 2 * time.Second
)

func (s staleThread) lives() bool {
	if s.what == stalePath {
		return time.Since(s.at) < pathLife
	}
	return time.Since(s.at) < staleLife
}

// told reports whether thread tid got ESTALE in its current system call.
func (t *staleThreads) told(tid uint32) bool {
	what, ok := t.had(tid)
	return ok && what != staleTried && what != staleAbsent
}

// toldCreate is told for a CREATE.
func (t *staleThreads) toldCreate(tid uint32) bool {
	what, ok := t.had(tid)
	return ok && what != staleTried
}

// had returns what thread tid got ESTALE for.
func (t *staleThreads) had(tid uint32) (what staleKind, ok bool) {
	if t.n.Load() == 0 {
		return 0, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	had, ok := t.mu.tids[tid]
	return had.what, ok && had.lives()
}

// looked records whether a look-up of thread tid found something. If the thread got ESTALE for an open before, and what
// it looks up is absent, only a CREATE or another look-up can follow in the same system call.
func (t *staleThreads) looked(tid uint32, found bool) {
	if t.n.Load() == 0 {
		return
	}
	was, is := staleOpen, staleAbsent
	if found {
		was, is = is, was
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if had, ok := t.mu.tids[tid]; ok && had.what == was {
		had.what = is
		t.mu.tids[tid] = had
	}
}

// note records that thread tid gets ESTALE.
func (t *staleThreads) note(tid uint32, what staleKind) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.tids == nil || len(t.mu.tids) >= maxStale {
		t.mu.tids = map[uint32]staleThread{}
	}
	t.mu.tids[tid] = staleThread{time.Now(), what, t.mu.tids[tid].tries}
	t.n.Store(int64(len(t.mu.tids)))
}

// forget records that the system call of thread tid got its answer.
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

// answer returns the answer to an open that ended with err. In place of a second ESTALE it
// returns last.
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

// tried records that thread tid gets EINTR. It reports false after maxTries.
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

// path returns the answer to thread tid whose path leads through a node of an earlier owner:
// ESTALE, or EINTR if that owner has already told the thread ESTALE.
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

// underway returns the threads that got ESTALE for an open and have not come back. The next
// owner resumes with them.
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

// resume records what underway returned in another process.
func (t *staleThreads) resume(tids []uint32) {
	for _, tid := range tids {
		t.note(tid, staleBefore)
	}
}
