package fs

import (
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kvfs/kvfs/tiers"
)

// calls ends an open of thread tid with err, as Open and Create do.
func (t *staleThreads) calls(tid uint32, err error, last fuse.Status) fuse.Status {
	by := tiers.Caller{Thread: tid, Told: t.told(tid)}
	return t.answer(&by, err, last)
}

// TestStaleThreads: a thread is told ESTALE once in a call; where that did not help, one that reads that
// there is no such block, and one that writes to open once more. Then another call begins, as after any
// other answer. Threads do not disturb one another.
func TestStaleThreads(t *testing.T) {
	const stale = fuse.Status(syscall.ESTALE)
	var s staleThreads
	for i, c := range []struct {
		tid  uint32
		err  error
		last fuse.Status
		want fuse.Status
	}{
		{1, tiers.ErrStale, fuse.ENOENT, stale}, {2, tiers.ErrStale, fuse.EINTR, stale},
		{1, tiers.ErrStale, fuse.ENOENT, fuse.ENOENT}, {1, tiers.ErrStale, fuse.ENOENT, stale},
		{1, nil, fuse.ENOENT, fuse.OK}, {1, tiers.ErrStale, fuse.ENOENT, stale},
		{1, io.EOF, fuse.ENOENT, fuse.EIO}, {1, tiers.ErrStale, fuse.EINTR, stale},
		{2, tiers.ErrStale, fuse.EINTR, fuse.EINTR}, {2, tiers.ErrStale, fuse.EINTR, stale},
	} {
		if got := s.calls(c.tid, c.err, c.last); got != c.want {
			t.Errorf("step %d: told %v, want %v", i, got, c.want)
		}
	}
	if !s.told(1) || !s.told(2) || s.told(3) {
		t.Error("1 and 2 are told ESTALE, 3 is not")
	}
	s.forget(1)
	s.forget(2)
	if n := s.n.Load(); n != 0 || s.told(1) {
		t.Errorf("%d threads are remembered", n)
	}
	for tid := range uint32(2*maxStale + 1) {
		s.note(tid, staleOpen)
	}
	if n := len(s.mu.tids); n == 0 || n > maxStale {
		t.Errorf("%d threads are remembered, want %d at most", n, maxStale)
	}
}

// TestStaleAbsent: a look-up that finds nothing ends the open of a thread that got ESTALE, unless a CREATE follows. So
// the next open of that thread is told ESTALE too, and the kernel gives up a name that is gone.
func TestStaleAbsent(t *testing.T) {
	const stale = fuse.Status(syscall.ESTALE)
	var s staleThreads
	s.looked(1, false)
	if s.told(1) || s.toldCreate(1) {
		t.Error("a thread counts as told that never got ESTALE")
	}
	s.note(1, staleOpen)
	if s.looked(1, false); s.told(1) || !s.toldCreate(1) {
		t.Errorf("after the look-up: an open counts as told: %t, a CREATE: %t", s.told(1), s.toldCreate(1))
	}
	if got := s.calls(1, tiers.ErrStale, fuse.ENOENT); got != stale {
		t.Errorf("the next open: told %v, want ESTALE", got)
	}
	if s.looked(1, false); s.told(1) {
		t.Error("the look-up after that ESTALE found nothing either")
	}
	// The kernel looks a name up that it knows, and again if it is absent: another thread may have made it in between.
	if s.looked(1, true); !s.told(1) {
		t.Error("an open whose second look-up finds the name may be told ESTALE twice")
	}
	s.note(2, staleBefore)
	if s.looked(2, false); !s.told(2) {
		t.Error("the path of an earlier owner is looked up in several steps")
	}
}

// TestStaleLife shows for how long a thread counts as told, and that one that does not come back is
// forgotten by the answer to another.
func TestStaleLife(t *testing.T) {
	for _, c := range []struct {
		name string
		what staleKind
		age  time.Duration
		told bool
	}{
		{"open", staleOpen, -time.Minute, true}, // for as long as the test may take
		{"open long ago", staleOpen, staleLife, false},
		{"path", stalePath, -time.Minute, true},
		{"path, on a machine where each step of a call waits", stalePath, time.Second, true},
		{"path of a call before", stalePath, pathLife, false},
		{"by the owner before", staleBefore, -time.Minute, true},
		{"by the owner before, long ago", staleBefore, staleLife, false},
	} {
		var s staleThreads
		s.note(7, c.what)
		s.mu.tids[7] = staleThread{time.Now().Add(-c.age), c.what, 0}
		if got := s.told(7); got != c.told {
			t.Errorf("%s: told %t, want %t", c.name, got, c.told)
		}
		if s.forget(8); len(s.mu.tids) > 0 != c.told {
			t.Errorf("%s: %d threads after another's answer", c.name, len(s.mu.tids))
		}
	}
}

// TestStalePath shows what a path is told that leads by what an earlier owner told: ESTALE, which an open
// at its end must not be told again; or, if the earlier owner had told the thread so, EINTR, after which a
// new call begins. Only opens are handed over to the next owner.
func TestStalePath(t *testing.T) {
	const stale = fuse.Status(syscall.ESTALE)
	var s staleThreads
	if got := s.path(1); got != stale || !s.told(1) {
		t.Errorf("a path: told %v, known %t", got, s.told(1))
	}
	if got := s.calls(1, tiers.ErrStale, fuse.EINTR); got != fuse.EINTR {
		t.Errorf("the open at its end: told %v, want EINTR", got)
	}
	s.note(1, stalePath)
	s.note(2, staleOpen)
	handed := s.underway()
	if len(handed) != 1 || handed[0] != 2 {
		t.Fatalf("handed over: %v, want [2]", handed)
	}
	var next staleThreads
	next.resume(handed)
	if !next.told(2) {
		t.Error("the next owner does not know that the thread was told")
	}
	if got := next.underway(); len(got) != 1 {
		t.Errorf("handed over by the next owner: %v, want [2], which has not come back", got)
	}
	if got := next.path(2); got != fuse.EINTR {
		t.Errorf("a path of a thread that the owner before told so: %v, want EINTR", got)
	}
	if next.told(2) {
		t.Error("EINTR has ended the call")
	}
	if got := next.path(2); got != stale {
		t.Errorf("the next call: told %v, want ESTALE", got)
	}
	next.resume(handed)
	if got := next.calls(2, tiers.ErrStale, fuse.EINTR); got != fuse.EINTR {
		t.Errorf("an open of a thread that the owner before told so: %v, want EINTR", got)
	}
}
