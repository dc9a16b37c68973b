package fs

import (
	"context"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kvfs/kvfs/tiers/index"
)

// newControlServer returns a Server with a control directory and nothing else.
func newControlServer(text string) *Server {
	s := &Server{ctx: context.Background(), opts: Options{EntryTimeout: time.Minute, AttrTimeout: time.Hour, Status: func() []byte { return []byte(text) }}}
	s.handles.init()
	s.control.init(s)
	return s
}

// TestControlAttributes shows what stat says of the control directory and its
// files: of the daemon's user, for others at most to read, and of a type each.
func TestControlAttributes(t *testing.T) {
	s := newControlServer("{}")
	for _, c := range []struct {
		parent uint64
		name   string
		mode   uint32
		nlink  uint32
	}{
		{fuse.FUSE_ROOT_ID, ".kvfs", syscall.S_IFDIR | 0o555, 2},
		{controlDir, "status", syscall.S_IFREG | 0o444, 1},
		{controlDir, "evict", syscall.S_IFREG | 0o600, 1},
	} {
		var entry fuse.EntryOut
		if st := s.control.lookup(c.parent, c.name, &entry); st != fuse.OK {
			t.Fatalf("look up %s: %v", c.name, st)
		}
		if !isControl(entry.NodeId) || entry.Ino != entry.NodeId || entry.Generation == 0 {
			t.Errorf("%s: node %d, inode %d", c.name, entry.NodeId, entry.Ino)
		}
		if entry.NodeId <= uint64(^index.ID(0)) {
			t.Errorf("%s: node %d may be a block's", c.name, entry.NodeId)
		}
		if entry.Mode != c.mode || entry.Nlink != c.nlink || entry.Uid != uint32(os.Geteuid()) || entry.Gid != uint32(os.Getegid()) {
			t.Errorf("%s: mode %#o, %d links, owner %d:%d", c.name, entry.Mode, entry.Nlink, entry.Uid, entry.Gid)
		}
		if entry.EntryTimeout() != time.Minute || entry.AttrTimeout() != time.Hour {
			t.Errorf("%s: timeouts %v, %v", c.name, entry.EntryTimeout(), entry.AttrTimeout())
		}
		var attr fuse.AttrOut
		if st := s.control.getattr(entry.NodeId, &attr); st != fuse.OK || attr.Attr != entry.Attr {
			t.Errorf("%s: getattr says %v, %+v", c.name, st, attr.Attr)
		}
		if mtime := time.Unix(int64(attr.Mtime), int64(attr.Mtimensec)); !mtime.Equal(s.control.born) {
			t.Errorf("%s: mtime %v, want %v", c.name, mtime, s.control.born)
		}
	}
	var entry fuse.EntryOut
	for parent, name := range map[uint64]string{controlDir: "absent", controlDir + 1: "status"} {
		if st := s.control.lookup(parent, name, &entry); st != fuse.ENOENT {
			t.Errorf("%s in %d: got %v", name, parent, st)
		}
	}
}

// TestControlRefuses shows that nobody changes the control files: no chmod,
// chown, truncate or open for writing, while a touch changes nothing.
func TestControlRefuses(t *testing.T) {
	s := newControlServer("{}")
	for name, c := range map[string]struct {
		valid uint32
		want  fuse.Status
	}{
		"chmod":    {fuse.FATTR_MODE, fuse.EPERM},
		"chown":    {fuse.FATTR_UID | fuse.FATTR_GID, fuse.EPERM},
		"truncate": {fuse.FATTR_SIZE, fuse.EPERM},
		"touch":    {fuse.FATTR_MTIME, fuse.OK},
	} {
		in := &fuse.SetAttrIn{SetAttrInCommon: fuse.SetAttrInCommon{InHeader: fuse.InHeader{NodeId: controlDir + 1}, Valid: c.valid}}
		if got := s.control.setattr(in, &fuse.AttrOut{}); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
	const status, evict = controlDir + 1, controlDir + 2
	me, other := uint32(os.Geteuid()), uint32(os.Geteuid())+1
	for name, c := range map[string]struct {
		node  uint64
		flags uint32
		uid   uint32
		want  fuse.Status
	}{
		"for writing":              {status, syscall.O_WRONLY, 0, fuse.EACCES},
		"for both":                 {status, syscall.O_RDWR, 0, fuse.EACCES},
		"the directory":            {controlDir, syscall.O_RDONLY, 0, fuse.EINVAL},
		"what is not":              {controlDir + 99, syscall.O_RDONLY, 0, fuse.EINVAL},
		"to read is right":         {status, syscall.O_RDONLY, other, fuse.OK},
		"requests without answer":  {evict, syscall.O_WRONLY, me, fuse.EINVAL},
		"answers without request":  {evict, syscall.O_RDONLY, me, fuse.EINVAL},
		"requests of another user": {evict, syscall.O_RDWR, other, fuse.EACCES},
		"requests of the owner":    {evict, syscall.O_RDWR, me, fuse.OK},
		"requests of root":         {evict, syscall.O_RDWR | syscall.O_TRUNC, 0, fuse.OK},
	} {
		in := &fuse.OpenIn{InHeader: fuse.InHeader{NodeId: c.node}, Flags: c.flags}
		in.Uid = c.uid
		if got := s.control.open(in, &fuse.OpenOut{}); got != c.want {
			t.Errorf("open %s: got %v, want %v", name, got, c.want)
		}
	}
}

// TestControlRead shows that a reader gets the text of the moment of its open,
// in pieces of any size, and nothing behind the end.
func TestControlRead(t *testing.T) {
	text := "first"
	s := newControlServer("")
	s.control.files[0].Text = func() []byte { return []byte(text) }
	var out fuse.OpenOut
	if st := s.control.open(&fuse.OpenIn{InHeader: fuse.InHeader{NodeId: controlDir + 1}}, &out); st != fuse.OK {
		t.Fatal(st)
	}
	if out.OpenFlags&fuse.FOPEN_DIRECT_IO == 0 {
		t.Error("the kernel may keep the text")
	}
	text = "second"
	h := s.handles.get(out.Fh).control
	for _, c := range []struct {
		off  uint64
		n    int
		want string
	}{{0, 100, "first"}, {0, 2, "fi"}, {2, 2, "rs"}, {4, 9, "t"}, {5, 9, ""}, {1 << 40, 9, ""}} {
		r, st := h.read(nil, &fuse.ReadIn{Offset: c.off}, make([]byte, c.n))
		if st != fuse.OK {
			t.Fatal(st)
		}
		got, _ := r.Bytes(nil)
		if string(got) != c.want {
			t.Errorf("%d bytes at %d: got %q, want %q", c.n, c.off, got, c.want)
		}
	}
	if n, st := h.write(nil, []byte("x")); n != 0 || st.Ok() {
		t.Errorf("write: got %d, %v", n, st)
	}
}

// TestControlReadDir shows that a listing is complete from any position on, and
// stops where the buffer is full.
func TestControlReadDir(t *testing.T) {
	s := newControlServer("{}")
	want := []string{".", "..", "status", "evict"}
	for room := 1; room <= len(want); room++ {
		var got []string
		for off := uint64(0); ; {
			var page []fuse.DirEntry
			s.control.readdir(&fuse.ReadIn{Offset: off}, nil, func(e fuse.DirEntry, _ index.ID) bool {
				if len(page) == room {
					return false
				}
				page = append(page, e)
				return true
			})
			if len(page) == 0 {
				break
			}
			for _, e := range page {
				got, off = append(got, e.Name), e.Off
				if dir := e.Name[0] == '.'; dir != (e.Mode == syscall.S_IFDIR) {
					t.Errorf("%s has type %#o", e.Name, e.Mode)
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d entries at a time: got %q, want %q", room, got, want)
		}
	}
}
