package fs

import (
	"errors"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/openfile"
	"github.com/kvfs/kvfs/tiers/state"
)

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
		{1, state.ErrStale, fuse.ENOENT, stale}, {2, state.ErrStale, fuse.EINTR, stale},
		{1, state.ErrStale, fuse.ENOENT, fuse.ENOENT}, {1, state.ErrStale, fuse.ENOENT, stale},
		{1, nil, fuse.ENOENT, fuse.OK}, {1, state.ErrStale, fuse.ENOENT, stale},
		{1, io.EOF, fuse.ENOENT, fuse.EIO}, {1, state.ErrStale, fuse.EINTR, stale},
		{2, state.ErrStale, fuse.EINTR, fuse.EINTR}, {2, state.ErrStale, fuse.EINTR, stale},
	} {
		if got := s.answer(c.tid, c.err, c.last); got != c.want {
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
		s.tell(tid, staleLife)
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
	if s.told(1) || s.had(1).told {
		t.Error("a thread counts as told that never got ESTALE")
	}
	s.tell(1, staleLife)
	if s.looked(1, false); s.told(1) || !s.had(1).told {
		t.Errorf("after the look-up: an open counts as told: %t, a CREATE: %t", s.told(1), s.had(1).told)
	}
	if got := s.answer(1, state.ErrStale, fuse.ENOENT); got != stale {
		t.Errorf("the next open: told %v, want ESTALE", got)
	}
	if s.looked(1, false); s.told(1) {
		t.Error("the look-up after that ESTALE found nothing either")
	}
	// The kernel looks a name up that it knows, and again if it is absent: another thread may have made it in between.
	if s.looked(1, true); !s.told(1) {
		t.Error("an open whose second look-up finds the name may be told ESTALE twice")
	}
	s.resume([]uint32{2})
	if s.looked(2, false); !s.told(2) {
		t.Error("the path of an earlier owner is looked up in several steps")
	}
}

// TestStaleLife shows for how long a thread counts as told, and that one that does not come back is
// forgotten by the answer to another.
func TestStaleLife(t *testing.T) {
	for _, c := range []struct {
		name string
		life time.Duration
		age  time.Duration
		told bool
	}{
		{"open", staleLife, -time.Minute, true}, // for as long as the test may take
		{"open long ago", staleLife, staleLife, false},
		{"path, on a machine where each step of a call waits", pathLife, time.Second, true},
		{"path of a call before", pathLife, pathLife, false},
	} {
		var s staleThreads
		s.tell(7, c.life)
		had := s.mu.tids[7]
		had.until = had.until.Add(-c.age)
		s.set(7, had)
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
	var before, after files
	s, next := &before.stale, &after.stale
	if got := before.Earlier(1); got != stale || !s.told(1) {
		t.Errorf("a path: told %v, known %t", got, s.told(1))
	}
	if got := s.answer(1, state.ErrStale, fuse.EINTR); got != fuse.EINTR {
		t.Errorf("the open at its end: told %v, want EINTR", got)
	}
	s.tell(1, pathLife)
	s.tell(2, staleLife)
	handed := s.underway()
	if len(handed) != 1 || handed[0] != 2 {
		t.Fatalf("handed over: %v, want [2]", handed)
	}
	next.resume(handed)
	if !next.told(2) {
		t.Error("the next owner does not know that the thread was told")
	}
	if got := next.underway(); len(got) != 1 {
		t.Errorf("handed over by the next owner: %v, want [2], which has not come back", got)
	}
	if got := after.Earlier(2); got != fuse.EINTR {
		t.Errorf("a path of a thread that the owner before told so: %v, want EINTR", got)
	}
	if next.told(2) {
		t.Error("EINTR has ended the call")
	}
	if got := after.Earlier(2); got != stale {
		t.Errorf("the next call: told %v, want ESTALE", got)
	}
	next.resume(handed)
	if got := next.answer(2, state.ErrStale, fuse.EINTR); got != fuse.EINTR {
		t.Errorf("an open of a thread that the owner before told so: %v, want EINTR", got)
	}
}

// TestStaleOnce: whatever a thread asks of a directory or a file that has lost its name, it gets ESTALE once in a call,
// and then ENOENT, EINTR from an open for writing, or the attributes.
func TestStaleOnce(t *testing.T) {
	const stale, root = fuse.Status(syscall.ESTALE), index.ID(fuse.FUSE_ROOT_ID)
	mounts := &Mounts{}
	engine := sharedEngine(t, mounts, memoryIn(t))
	s := attachHere(t, engine, mounts, openSession(t))
	ctx, f := t.Context(), s.files
	dir, err := engine.Mkdir(root, "d", 0o755, 0, 0, state.Process{})
	must(t, err)
	file, h, err := engine.Create(ctx, openfile.CreateOptions{Parent: root, Name: "f", Mode: 0o644})
	must(t, err)
	engine.Release(h)
	err = errors.Join(engine.Rmdir(ctx, root, "d", state.Caller{}), engine.Unlink(root, "f", state.Caller{}))
	must(t, err)
	in := fuse.InHeader{NodeId: uint64(file.ID), Caller: fuse.Caller{Pid: 7}}
	for what, c := range map[string]struct {
		ask  func() fuse.Status
		last fuse.Status
	}{
		"look-up": {func() fuse.Status {
			return f.Lookup(nil, &fuse.InHeader{NodeId: uint64(dir.ID), Caller: in.Caller}, "x", &fuse.EntryOut{})
		}, fuse.ENOENT},
		// The kernel looks up again what it took for the file of some name.
		"attributes": {func() fuse.Status { return f.GetAttr(nil, &fuse.GetAttrIn{InHeader: in}, &fuse.AttrOut{}) }, fuse.OK},
		"open":       {func() fuse.Status { return f.Open(nil, &fuse.OpenIn{InHeader: in}, &fuse.OpenOut{}) }, fuse.ENOENT},
		"truncate":   {func() fuse.Status { return f.SetAttr(nil, shrink(in), &fuse.AttrOut{}) }, fuse.ENOENT},
		"open for writing": {func() fuse.Status {
			return f.Open(nil, &fuse.OpenIn{InHeader: in, Flags: syscall.O_WRONLY}, &fuse.OpenOut{})
		}, fuse.EINTR},
	} {
		for i, want := range []fuse.Status{stale, c.last} {
			if got := c.ask(); got != want {
				t.Errorf("%s, try %d: %v, want %v", what, i, got, want)
			}
		}
		f.stale.forget(in.Pid)
	}
	engine.Forget(dir.ID, 1)
	engine.Forget(file.ID, 1)
}

// shrink asks for a size of 0 by name.
func shrink(h fuse.InHeader) *fuse.SetAttrIn {
	return &fuse.SetAttrIn{SetAttrInCommon: fuse.SetAttrInCommon{InHeader: h, Valid: fuse.FATTR_SIZE}}
}
