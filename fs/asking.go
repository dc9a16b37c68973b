package fs

import (
	"sync"
	"sync/atomic"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/index"
)

// An engine with several kernels tells all of them of each change of a name (Mounts.Invalidate). The
// one that has asked for it knows when it is answered: a notice would have it forget the name, which it
// then has to look up again, and takes the lock on the directory, which its clients need next. The
// engine tells before it returns, on the thread of the request, by which the request is known.

// entryName is a name in a directory.
type entryName struct {
	dir  index.ID
	name string
}

// asking is what the kernel of one of several mounts has asked for and not been answered.
type asking struct {
	n  atomic.Int32 // of threads
	mu struct {
		sync.Mutex // leaf
		threads    map[int]*asked
	}
}

// asked is one request, for a change of at most two names.
type asked struct {
	names [2]entryName
	held  []notice // not sent unless it fails
}

// asks notes that this thread changes the names because the kernel has asked for that. What it
// returns ends that, and returns the status that it is given.
func (s *Server) asks(names ...entryName) (done func(fuse.Status) fuse.Status) {
	if s.mounts == nil {
		return func(st fuse.Status) fuse.Status { return st }
	}
	a, tid := &asked{}, unix.Gettid() // which is this goroutine's as long as it answers, see work
	copy(a.names[:], names)
	q := &s.asking
	q.mu.Lock()
	if q.mu.threads == nil {
		q.mu.threads = map[int]*asked{}
	}
	q.mu.threads[tid] = a
	q.mu.Unlock()
	q.n.Add(1)
	return func(st fuse.Status) fuse.Status {
		q.n.Add(-1)
		q.mu.Lock()
		delete(q.mu.threads, tid)
		q.mu.Unlock()
		if st != fuse.OK {
			for _, n := range a.held {
				s.notices.add(n)
			}
		}
		return st
	}
}

// hold reports whether n is of what this thread is asked to do, so that it need not be told.
func (q *asking) hold(dir index.ID, n notice) bool {
	if q.n.Load() == 0 {
		return false
	}
	tid := unix.Gettid()
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.mu.threads[tid]
	if a == nil || a.names[0] != (entryName{dir, n.name}) && a.names[1] != (entryName{dir, n.name}) {
		return false
	}
	a.held = append(a.held, n)
	return true
}
