package fs

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// TestOpenFlags shows which process writes: the kernel if room is reserved, and this process if
// the first byte hides the file, or the size to come is unknown. All handles of one inode have
// one backing file, for any writer.
func TestOpenFlags(t *testing.T) {
	s, dir := mountHere(t)
	if s.ReadPath() != "passthrough" {
		t.Skipf("no passthrough: %s", s.PathReason())
	}
	c := startClient(t)
	c.do("write", filepath.Join(dir, "group", "block"))
	c.do("put", " "+filepath.Join(dir, "group", "empty"))
	released(t, s)
	by := state.Caller{Thread: 1, Process: 1}
	lookup := func(parent index.ID, name string) index.ID {
		a, err := s.files.engine.Lookup(parent, name, by)
		must(t, err)
		t.Cleanup(func() { s.files.engine.Forget(a.ID, 1) })
		return a.ID
	}
	group := lookup(index.Root, "group")
	const (
		kernel = fuse.FOPEN_PASSTHROUGH
		daemon = fuse.FOPEN_PASSTHROUGH | fuse.FOPEN_DIRECT_IO
	)
	backings := map[string]int32{}
	for _, open := range []struct {
		name  string
		flags uint32
		want  uint32
	}{
		{"empty", syscall.O_RDONLY, kernel | fuse.FOPEN_NOFLUSH},
		{"empty", syscall.O_WRONLY, daemon},
		{"empty", syscall.O_RDONLY, kernel | fuse.FOPEN_NOFLUSH},
		{"block", syscall.O_RDWR, kernel},
		{"block", syscall.O_RDONLY, kernel | fuse.FOPEN_NOFLUSH},
		{"block", syscall.O_WRONLY | syscall.O_APPEND, daemon},
	} {
		in := &fuse.OpenIn{Flags: open.flags}
		in.NodeId = uint64(lookup(group, open.name))
		var out fuse.OpenOut
		if st := s.files.Open(nil, in, &out); st != fuse.OK || out.OpenFlags != open.want {
			t.Errorf("%s, flags %#x: %v, answer %#x; want %#x", open.name, open.flags, st, out.OpenFlags, open.want)
		}
		defer s.files.Release(nil, &fuse.ReleaseIn{InHeader: in.InHeader, Fh: out.Fh})
		if first, ok := backings[open.name]; ok && out.BackingID != first {
			t.Errorf("%s, flags %#x: backing file %d, want that of the others, %d", open.name, open.flags, out.BackingID, first)
		}
		backings[open.name] = out.BackingID
	}
	in := &fuse.CreateIn{Flags: syscall.O_WRONLY | unix.O_CREAT, Mode: 0o600}
	in.NodeId = uint64(group)
	var out fuse.CreateOut
	if st := s.files.Create(nil, in, "new", &out); st != fuse.OK || out.OpenFlags != kernel {
		t.Errorf("a new file of a group of which blocks have one size: %v, answer %#x", st, out.OpenFlags)
	}
	s.files.Release(nil, &fuse.ReleaseIn{InHeader: in.InHeader, Fh: out.Fh})
	s.files.engine.Forget(index.ID(out.NodeId), 1)
}

// TestInPlace: readers and writers of one inode are open at one time, and see the same. Two
// clients see each other's writes.
func TestInPlace(t *testing.T) {
	s, dir := mountHere(t)
	path := filepath.Join(dir, "group", "block")
	a, b := startClient(t), startClient(t)
	a.do("write", path)
	b.do("open", path)
	a.do("in-place", path)
	b.do("close-held", "")

	released(t, s)
	if got := s.files.engine.Stats(); got.PinnedBytes != 0 || got.Writing != 0 {
		t.Errorf("%d bytes pinned, %d files being written", got.PinnedBytes, got.Writing)
	}
}
