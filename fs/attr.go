package fs

import (
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// preferredIO is st_blksize of files: Python and stdio size their buffers by it,
// and with 4096 read a block in two pieces.
const preferredIO = 1 << 20

// fillEntry answers a look-up. The kernel may keep a committed file, but not one that is being written: so the
// first look-up after the commit reaches the engine, and gets the lease that a positive answer promises.
func (f *files) fillEntry(out *fuse.EntryOut, a *state.Attr) {
	if f.refs != nil {
		f.refs.looked(a.ID)
	}
	out.NodeId = f.epoch.Node(uint64(a.ID))
	out.Generation = 1
	f.fillAttr(&out.Attr, a)
	out.SetAttrTimeout(f.attrTimeout(a))
	if a.Stable {
		out.SetEntryTimeout(f.opts.EntryTimeout)
	}
}

// attrTimeout is how long a kernel may keep attributes. The kernel sees each change of them, except
// writes through another kernel, and stores through a mapping, which change only the file below.
func (f *files) attrTimeout(a *state.Attr) time.Duration {
	if a.Changing {
		return 0
	}
	return f.opts.AttrTimeout
}

func (f *files) fillAttr(out *fuse.Attr, a *state.Attr) {
	out.Ino = f.epoch.Ino(uint64(a.ID))
	out.Mode, out.Nlink = a.Mode, a.Nlink
	out.Uid, out.Gid = a.UID, a.GID
	out.Size = uint64(a.Size)
	out.Blocks = uint64(a.Size+511) / 512
	out.Blksize = preferredIO
	out.Mtime, out.Mtimensec = splitTime(a.Mtime)
	out.Atime, out.Atimensec = splitTime(a.Atime)
	out.Ctime, out.Ctimensec = splitTime(a.Ctime)
}

func splitTime(ns int64) (sec uint64, nsec uint32) {
	t := time.Unix(0, ns)
	return uint64(t.Unix()), uint32(t.Nanosecond())
}

// GetAttr implements GETATTR.
func (f *files) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	defer f.begin(device.OpGetattr).end()
	if isControl(in.NodeId) {
		return f.control.getattr(in.NodeId, out)
	}
	a := f.engine.Attr(index.ID(in.NodeId))
	if a.Gone && !f.stale.told(in.Pid) { // else the open that follows decides: it may get only one ESTALE
		return f.stale.tell(in.Pid, pathLife) // the kernel then looks the name up
	}
	f.fillAttr(&out.Attr, &a)
	out.SetTimeout(f.attrTimeout(&a))
	return fuse.OK
}

// SetAttr implements SETATTR: chmod, chown, utimens, truncate.
func (f *files) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	defer f.begin(device.OpSetattr).end()
	if isControl(in.NodeId) {
		return f.control.setattr(in, out)
	}
	id := index.ID(in.NodeId)
	if size, ok := in.GetSize(); ok {
		if err := f.truncate(in, id, int64(size)); err != nil {
			return f.stale.answer(in.Pid, err, fuse.ENOENT)
		}
		if in.Valid&setattrKillsPrivileges != 0 { // the kernel says it is root that asks
			if err := f.dropPrivileges(id); err != nil {
				return status(err)
			}
		}
	}
	var c tiers.Change
	if mode, ok := in.GetMode(); ok {
		c.Mode = &mode
	}
	if uid, ok := in.GetUID(); ok {
		c.UID = &uid
	}
	if gid, ok := in.GetGID(); ok {
		c.GID = &gid
	}
	if t, ok := in.GetATime(); ok {
		ns := t.UnixNano()
		c.Atime = &ns
	}
	if t, ok := in.GetMTime(); ok {
		ns := t.UnixNano()
		c.Mtime = &ns
	}
	a := f.engine.Attr(id)
	if c != (tiers.Change{}) {
		var err error
		if a, err = f.engine.SetAttr(id, c); err != nil {
			return status(err)
		}
	}
	f.fillAttr(&out.Attr, &a)
	out.SetTimeout(f.attrTimeout(&a))
	return fuse.OK
}

// Flags of FUSE_HANDLE_KILLPRIV_V2, which go-fuse does not name: the caller may not keep the bits setuid and setgid.
const (
	setattrKillsPrivileges = 1 << 11 // FATTR_KILL_SUIDGID
	writeKillsPrivileges   = 1 << 2  // FUSE_WRITE_KILL_SUIDGID
)

// setIDs are the bits setuid and setgid of a mode.
const setIDs = syscall.S_ISUID | syscall.S_ISGID

// dropPrivileges takes the bits setuid and setgid of a file away because another user than root changes its bytes, or may.
// With passthrough the daemon sees the open, but no write.
func (f *files) dropPrivileges(id index.ID) error {
	had, err := f.engine.DropPrivileges(id)
	if had {
		f.forget(0, id, "")
	}
	return err
}

func (f *files) truncate(in *fuse.SetAttrIn, id index.ID, size int64) error {
	if fh, ok := in.GetFh(); ok {
		h := f.handles.get(fh)
		if h == nil || h.write == nil {
			return syscall.EBADF
		}
		return h.write.Truncate(f.ctx, size)
	}
	return f.engine.TruncateName(f.ctx, id, f.maker(in.Pid), size)
}
