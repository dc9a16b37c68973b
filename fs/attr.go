package fs

import (
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/index"
)

// preferredIO is st_blksize of files: Python and stdio size their buffers by it,
// and with 4096 read a block in two pieces.
const preferredIO = 1 << 20

// fillEntry answers a look-up. The kernel may keep what is committed. What is
// being written it may not: the first look-up after the commit then comes to the
// engine, and gets the lease that a positive answer promises.
func (s *Server) fillEntry(out *fuse.EntryOut, a *tiers.Attr) {
	if s.refs != nil {
		s.refs.looked(a.ID)
	}
	out.NodeId = s.node(uint64(a.ID))
	out.Generation = 1
	s.fillAttr(&out.Attr, a)
	// Attributes belong to the inode, and the kernel sees each change of them.
	out.SetAttrTimeout(s.opts.AttrTimeout)
	if a.Stable {
		out.SetEntryTimeout(s.opts.EntryTimeout)
	}
}

func (s *Server) fillAttr(out *fuse.Attr, a *tiers.Attr) {
	out.Ino = s.node(uint64(a.ID))
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
func (s *Server) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	s.ops.add(opGetattr)
	if isControl(in.NodeId) {
		return s.control.getattr(in.NodeId, out)
	}
	a := s.engine.Attr(index.ID(in.NodeId))
	if a.Gone {
		return fuse.Status(syscall.ESTALE) // upon which the kernel looks the name up
	}
	s.fillAttr(&out.Attr, &a)
	out.SetTimeout(s.opts.AttrTimeout)
	return fuse.OK
}

// SetAttr implements SETATTR: chmod, chown, utimens, truncate.
func (s *Server) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	s.ops.add(opSetattr)
	if isControl(in.NodeId) {
		return s.control.setattr(in, out)
	}
	id := index.ID(in.NodeId)
	if size, ok := in.GetSize(); ok {
		if err := s.truncate(in, id, int64(size)); err != nil {
			return status(err)
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
	a := s.engine.Attr(id)
	if c != (tiers.Change{}) {
		var err error
		if a, err = s.engine.SetAttr(id, c); err != nil {
			return status(err)
		}
	}
	s.fillAttr(&out.Attr, &a)
	out.SetTimeout(s.opts.AttrTimeout)
	return fuse.OK
}

func (s *Server) truncate(in *fuse.SetAttrIn, id index.ID, size int64) error {
	ctx := s.waiting(in.Unique)
	if fh, ok := in.GetFh(); ok {
		h := s.handles.get(fh)
		if h == nil || h.write == nil || h.readOnly {
			return syscall.EBADF
		}
		return h.write.Truncate(ctx, size)
	}
	return s.engine.TruncateName(ctx, id, size)
}
