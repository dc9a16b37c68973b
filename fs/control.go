package fs

import (
	"os"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kvfs/kvfs/tiers/index"
)

// The control directory has inode numbers that no entry of the index can have.
const (
	controlBase uint64 = 1 << 40
	controlDir         = controlBase
)

func isControl(nodeid uint64) bool { return nodeid >= controlBase }

// controlFile is one file of the control directory. Its text is made at open, so
// that what a reader gets is of one moment.
type controlFile struct {
	name string
	text func() []byte
}

// controlFiles is the directory .kvfs: it resolves, but is not listed.
type controlFiles struct {
	s     *Server
	files []controlFile // inode controlBase + 1 + position; constant after init
	born  time.Time
}

// controlHandle is one open control file.
type controlHandle struct{ text []byte }

func (c *controlFiles) init(s *Server) {
	c.s, c.born = s, time.Now()
	c.files = []controlFile{{"status", s.opts.Status}}
}

func (c *controlFiles) lookup(parent uint64, name string, out *fuse.EntryOut) fuse.Status {
	ino := uint64(0)
	if parent == fuse.FUSE_ROOT_ID {
		ino = controlDir
	} else if parent == controlDir {
		for i, f := range c.files {
			if f.name == name {
				ino = controlBase + 1 + uint64(i)
			}
		}
	}
	if ino == 0 {
		return fuse.ENOENT
	}
	out.NodeId, out.Generation = ino, 1
	c.fill(ino, &out.Attr)
	out.SetEntryTimeout(c.s.opts.EntryTimeout)
	out.SetAttrTimeout(c.s.opts.AttrTimeout)
	return fuse.OK
}

// fill describes an inode. Control files obey the owner of the daemon.
func (c *controlFiles) fill(ino uint64, out *fuse.Attr) {
	out.Ino, out.Nlink, out.Blksize = ino, 1, 4096
	out.Uid, out.Gid = uint32(os.Geteuid()), uint32(os.Getegid())
	out.Mode = syscall.S_IFREG | 0o444
	if ino == controlDir {
		out.Mode, out.Nlink = syscall.S_IFDIR|0o555, 2
	}
	out.Mtime, out.Mtimensec = splitTime(c.born.UnixNano())
	out.Atime, out.Atimensec = out.Mtime, out.Mtimensec
	out.Ctime, out.Ctimensec = out.Mtime, out.Mtimensec
}

func (c *controlFiles) getattr(ino uint64, out *fuse.AttrOut) fuse.Status {
	c.fill(ino, &out.Attr)
	out.SetTimeout(c.s.opts.AttrTimeout)
	return fuse.OK
}

func (c *controlFiles) setattr(in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	if in.Valid&(fuse.FATTR_MODE|fuse.FATTR_UID|fuse.FATTR_GID|fuse.FATTR_SIZE) != 0 {
		return fuse.EPERM
	}
	return c.getattr(in.NodeId, out)
}

func (c *controlFiles) open(in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	n := int(in.NodeId - controlBase - 1)
	if in.NodeId == controlDir || n >= len(c.files) {
		return fuse.EINVAL
	}
	if in.Flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		return fuse.EACCES
	}
	out.Fh = c.s.handles.add(&handle{control: &controlHandle{c.files[n].text()}}, fhControl)
	out.OpenFlags = fuse.FOPEN_DIRECT_IO | fuse.FOPEN_NOFLUSH
	return fuse.OK
}

func (h *controlHandle) read(in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	if in.Offset >= uint64(len(h.text)) {
		return fuse.ReadResultData(nil), fuse.OK
	}
	return fuse.ReadResultData(buf[:copy(buf, h.text[in.Offset:])]), fuse.OK
}

func (h *controlHandle) write(*fuse.WriteIn, []byte) (uint32, fuse.Status) { return 0, fuse.EBADF }

func (c *controlFiles) opendir(in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if in.NodeId != controlDir {
		return fuse.ENOTDIR
	}
	out.Fh = c.s.handles.add(&handle{dir: &dirHandle{}, control: &controlHandle{}}, fhControl)
	return fuse.OK
}

func (c *controlFiles) readdir(in *fuse.ReadIn, _ *fuse.DirEntryList, add func(fuse.DirEntry, index.ID) bool) fuse.Status {
	list := []fuse.DirEntry{
		{Name: ".", Ino: controlDir, Mode: syscall.S_IFDIR},
		{Name: "..", Ino: fuse.FUSE_ROOT_ID, Mode: syscall.S_IFDIR},
	}
	for i, f := range c.files {
		list = append(list, fuse.DirEntry{Name: f.name, Ino: controlBase + 1 + uint64(i), Mode: syscall.S_IFREG})
	}
	for pos := in.Offset; pos < uint64(len(list)); pos++ {
		e := list[pos]
		e.Off = pos + 1
		if !add(e, 0) {
			break
		}
	}
	return fuse.OK
}
