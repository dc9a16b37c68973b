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

// newControlFiles returns files of a control directory and nothing else.
func newControlFiles(text string) *files {
	return newFiles(context.Background(), nil, &Options{EntryTimeout: time.Minute, AttrTimeout: time.Hour, Status: func() []byte { return []byte(text) }})
}

// TestControlAttributes shows what stat says of the control directory and its
// files: of the daemon's user, for others at most to read, and of a type each.
func TestControlAttributes(t *testing.T) {
	f := newControlFiles("{}")
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
		if st := f.control.lookup(c.parent, c.name, &entry); st != fuse.OK {
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
		if st := f.control.getattr(entry.NodeId, &attr); st != fuse.OK || attr.Attr != entry.Attr {
			t.Errorf("%s: getattr says %v, %+v", c.name, st, attr.Attr)
		}
		if mtime := time.Unix(int64(attr.Mtime), int64(attr.Mtimensec)); !mtime.Equal(f.control.born) {
			t.Errorf("%s: mtime %v, want %v", c.name, mtime, f.control.born)
		}
	}
	var entry fuse.EntryOut
	for parent, name := range map[uint64]string{controlDir: "absent", controlDir + 1: "status"} {
		if st := f.control.lookup(parent, name, &entry); st != fuse.ENOENT {
			t.Errorf("%s in %d: got %v", name, parent, st)
		}
	}
}

// TestControlRefuses shows that nobody changes the control files: no chmod,
// chown, truncate or open for writing, while a touch changes nothing.
func TestControlRefuses(t *testing.T) {
	f := newControlFiles("{}")
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
		if got := f.control.setattr(in, &fuse.AttrOut{}); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
	for name, c := range map[string]struct {
		node, flags uint64
		uid         uint32
		want        fuse.Status
	}{
		"the directory":        {controlDir, syscall.O_RDONLY, 0, fuse.EINVAL},
		"what is not":          {controlDir + 99, syscall.O_RDONLY, 0, fuse.EINVAL},
		"a text":               {controlDir + 1, syscall.O_RDONLY, uint32(os.Geteuid()) + 1, fuse.OK},
		"a text for writing":   {controlDir + 1, syscall.O_WRONLY, 0, fuse.EACCES},
		"requests":             {controlDir + 2, syscall.O_RDWR, 0, fuse.OK},
		"requests, as another": {controlDir + 2, syscall.O_RDWR, uint32(os.Geteuid()) + 1, fuse.EACCES},
		"probe, as another":    {probeIno, syscall.O_RDONLY, uint32(os.Geteuid()) + 1, fuse.EACCES},
		"probe for writing":    {probeIno, syscall.O_WRONLY, 0, fuse.EACCES},
	} {
		in := &fuse.OpenIn{InHeader: fuse.InHeader{NodeId: c.node}, Flags: uint32(c.flags)}
		in.Uid = c.uid
		var out fuse.OpenOut
		if got := f.control.open(in, &out); got != c.want {
			t.Errorf("open %s: got %v, want %v", name, got, c.want)
		} else if got == fuse.OK && out.OpenFlags&fuse.FOPEN_DIRECT_IO == 0 {
			t.Errorf("%s: the kernel may keep it", name)
		}
	}
}

// TestControlReadDir shows that a listing is complete from any position on, and
// stops where the buffer is full.
func TestControlReadDir(t *testing.T) {
	f := newControlFiles("{}")
	want := []string{".", "..", "status", "evict", "accesslog"}
	for room := 1; room <= len(want); room++ {
		var got []string
		for off := uint64(0); ; {
			var page []fuse.DirEntry
			f.control.readdir(&fuse.ReadIn{Offset: off}, func(e fuse.DirEntry, _ index.ID) bool {
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
