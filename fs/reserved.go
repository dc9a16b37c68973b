package fs

import (
	"context"
	"os"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kvfs/kvfs/fs/control"
	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers/state"
)

// The control directory has inode numbers that no entry of the index can have.
const (
	controlBase = device.ServiceNodes
	controlDir  = controlBase
)

func isControl(nodeid uint64) bool { return nodeid >= controlBase }

// reserved is the directory .kvfs as the kernel sees it. It resolves, but no listing shows it.
type reserved struct {
	f    *files
	dir  *control.Dir // inode controlBase + 1 + position
	born time.Time
}

func (c *reserved) init(f *files) {
	c.f, c.born = f, time.Now()
	c.dir = control.New(f.ctx, append([]control.File{
		{Name: "status", Text: f.opts.Status},
		control.Evict(f.engine, func(ctx context.Context) { f.kernel.Flush(ctx) }, f.opts.Audit),
		f.access.file(),
	}, f.opts.Control...))
}

func (c *reserved) lookup(parent uint64, name string, out *fuse.EntryOut) fuse.Status {
	ino := uint64(0)
	if parent == fuse.FUSE_ROOT_ID {
		ino = controlDir
	} else if parent == controlDir && name == probeName {
		ino = probeIno
	} else if parent == controlDir {
		for i := range c.dir.Files {
			if c.dir.Files[i].Name == name {
				ino = controlBase + 1 + uint64(i)
			}
		}
	}
	if ino == 0 {
		return fuse.ENOENT
	}
	out.NodeId, out.Generation = c.f.epoch.Node(ino), 1
	c.fill(ino, &out.Attr)
	out.SetEntryTimeout(c.f.opts.EntryTimeout)
	out.SetAttrTimeout(c.f.opts.AttrTimeout)
	return fuse.OK
}

// file returns the control file with an inode number, or nil for the directory and for unknown
// numbers.
func (c *reserved) file(ino uint64) *control.File {
	if ino == probeIno {
		return probeFile
	}
	if n := ino - controlBase; n >= 1 && n <= uint64(len(c.dir.Files)) {
		return &c.dir.Files[n-1]
	}
	return nil
}

// fill describes an inode. Control files belong to the owner of the daemon.
func (c *reserved) fill(ino uint64, out *fuse.Attr) {
	out.Ino, out.Nlink, out.Blksize = c.f.epoch.Node(ino), 1, 4096
	out.Uid, out.Gid = uint32(os.Geteuid()), uint32(os.Getegid())
	if f := c.file(ino); f != nil {
		out.Mode = f.Mode()
	} else {
		out.Mode, out.Nlink = syscall.S_IFDIR|0o555, 2
	}
	out.Mtime, out.Mtimensec = splitTime(c.born.UnixNano())
	out.Atime, out.Atimensec = out.Mtime, out.Mtimensec
	out.Ctime, out.Ctimensec = out.Mtime, out.Mtimensec
}

func (c *reserved) getattr(ino uint64, out *fuse.AttrOut) fuse.Status {
	c.fill(ino, &out.Attr)
	out.SetTimeout(c.f.opts.AttrTimeout)
	return fuse.OK
}

func (c *reserved) setattr(in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	if in.Valid&(fuse.FATTR_MODE|fuse.FATTR_UID|fuse.FATTR_GID|fuse.FATTR_SIZE) != 0 {
		return fuse.EPERM
	}
	return c.getattr(in.NodeId, out)
}

func (c *reserved) open(in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	f := c.file(in.NodeId)
	if f == nil {
		return fuse.EINVAL
	}
	by := control.Opener{UID: in.Uid, GID: in.Gid, User: state.Process{Kernel: c.f.mount, PID: c.f.procs.last(in.Pid)}, Groups: func() []uint32 { return c.f.procs.groups(in.Pid) },
		Process: func() (uint32, string) { return c.f.program(in.Pid) }}
	if f == probeFile {
		if _, may := f.Admit(by); !may || in.Flags&syscall.O_ACCMODE != syscall.O_RDONLY {
			return fuse.EACCES
		}
		return c.f.openProbe(out)
	}
	h, err := c.dir.Open(f, in.Flags, by)
	if err != nil {
		return status(err)
	}
	out.OpenFlags = fuse.FOPEN_DIRECT_IO | fuse.FOPEN_NOFLUSH
	if h.Dialogue() {
		out.OpenFlags |= fuse.FOPEN_NONSEEKABLE | fuse.FOPEN_STREAM
	}
	out.Fh = c.f.handles.add(&handle{control: h}, fhControl)
	return fuse.OK
}

func (c *reserved) opendir(in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if in.NodeId != controlDir {
		return fuse.ENOTDIR
	}
	out.Fh = c.f.handles.add(&handle{dir: &dirHandle{}, control: &control.Handle{}}, fhControl)
	return fuse.OK
}

func (c *reserved) readdir(in *fuse.ReadIn, add addEntry) fuse.Status {
	list := []fuse.DirEntry{
		{Name: ".", Ino: c.f.epoch.Node(controlDir), Mode: syscall.S_IFDIR},
		{Name: "..", Ino: fuse.FUSE_ROOT_ID, Mode: syscall.S_IFDIR},
	}
	for i := range c.dir.Files {
		list = append(list, fuse.DirEntry{Name: c.dir.Files[i].Name, Ino: c.f.epoch.Node(controlBase + 1 + uint64(i)), Mode: syscall.S_IFREG})
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
