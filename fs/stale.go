package fs

import (
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kvfs/kvfs/tiers/state"
)

// staleThreads remembers which threads got ESTALE. On ESTALE the kernel looks the path up and asks once more, but only
// once per system call, and engines do not know ESTALE. So if the second try fails as well, a reader gets ENOENT, a
// miss, and a writer EINTR, on which the libraries of Python, Go and Rust open once more. The zero value is ready.
type staleThreads struct {
	n  atomic.Int64 // len(tids): at 0 a caller takes no lock
	mu struct {
		sync.Mutex // leaf
		tids       map[uint32]staleThread
		swept      time.Time // when expired threads were last removed
	}
}

// staleThread is what a thread was told.
type staleThread struct {
	until  time.Time // a thread that has not come back by then counts as a new one
	told   bool      // ESTALE, in its current call
	absent bool      // its next look-up found nothing: that ends the call, unless a CREATE or a look-up that finds something follows
	before bool      // ESTALE came from an earlier owner of the mount
	tries  int       // how often its open got EINTR
}

const (
	maxStale  = 4096             // remembered threads; beyond it, all are forgotten
	maxTries  = 64               // how often one open gets EINTR; then ENOENT
	staleLife = 10 * time.Second // of ESTALE for an open
	pathLife  = 2 * time.Second  // of ESTALE on a path: most such calls open nothing. On a busy machine each step takes tenths of a second
)

// had returns what thread tid was told.
func (t *staleThreads) had(tid uint32) (had staleThread) {
	if t.n.Load() == 0 {
		return had
	}
	t.mu.Lock()
	had = t.mu.tids[tid]
	t.mu.Unlock()
	if time.Now().After(had.until) {
		return staleThread{}
	}
	return had
}

// told reports whether thread tid got ESTALE in its current system call.
func (t *staleThreads) told(tid uint32) bool {
	had := t.had(tid)
	return had.told && !had.absent
}

// looked records whether a look-up of thread tid found something.
func (t *staleThreads) looked(tid uint32, found bool) {
	if had := t.had(tid); had.told && !had.before && had.absent == found {
		had.absent = !found
		t.set(tid, had)
	}
}

// set records what thread tid was told.
func (t *staleThreads) set(tid uint32, had staleThread) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.tids == nil || len(t.mu.tids) >= maxStale {
		t.mu.tids = map[uint32]staleThread{}
	}
	t.mu.tids[tid] = had
	t.n.Store(int64(len(t.mu.tids)))
}

// tell records that thread tid gets ESTALE, and returns that.
func (t *staleThreads) tell(tid uint32, life time.Duration) fuse.Status {
	t.set(tid, staleThread{until: time.Now().Add(life), told: true, tries: t.had(tid).tries})
	return fuse.Status(syscall.ESTALE)
}

// forget records that the system call of thread tid got its answer.
func (t *staleThreads) forget(tid uint32) {
	if t.n.Load() == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.tids, tid)
	if now := time.Now(); now.Sub(t.mu.swept) > staleLife {
		t.mu.swept = now
		maps.DeleteFunc(t.mu.tids, func(_ uint32, had staleThread) bool { return now.After(had.until) })
	}
	t.n.Store(int64(len(t.mu.tids)))
}

// answer returns the answer to an open of thread tid that ended with err. In place of a second ESTALE it returns last.
func (t *staleThreads) answer(tid uint32, err error, last fuse.Status) fuse.Status {
	return t.answerTold(tid, t.told(tid), err, last)
}

// answerCreate returns the answer to a CREATE of thread tid. The look-up before it that found nothing has not ended the
// system call.
func (t *staleThreads) answerCreate(tid uint32, err error) fuse.Status {
	return t.answerTold(tid, t.had(tid).told, err, fuse.EINTR)
}

func (t *staleThreads) answerTold(tid uint32, told bool, err error, last fuse.Status) fuse.Status {
	tries := t.had(tid).tries + 1
	switch {
	case !errors.Is(err, state.ErrStale):
		t.forget(tid)
		return status(err)
	case !told:
		return t.tell(tid, staleLife)
	case last == fuse.EINTR && tries <= maxTries:
		t.set(tid, staleThread{until: time.Now().Add(staleLife), tries: tries})
		return last
	}
	t.forget(tid)
	return fuse.ENOENT
}

// Earlier implements device.Files: the path of thread tid leads through a node of an earlier owner. If that owner has
// told the thread ESTALE, the answer is EINTR.
func (f *files) Earlier(tid uint32) fuse.Status {
	if f.stale.had(tid).before {
		f.stale.forget(tid)
		return fuse.EINTR
	}
	return f.stale.tell(tid, pathLife)
}

// underway returns the threads that got ESTALE for an open and have not come back. The next owner resumes with them.
func (t *staleThreads) underway() (tids []uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for tid, had := range t.mu.tids {
		if had.told && time.Until(had.until) > staleLife-time.Second {
			tids = append(tids, tid)
		}
	}
	return tids
}

// resume records what underway returned in another process.
func (t *staleThreads) resume(tids []uint32) {
	for _, tid := range tids {
		t.set(tid, staleThread{until: time.Now().Add(staleLife), told: true, before: true})
	}
}
