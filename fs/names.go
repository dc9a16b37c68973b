package fs

import (
	"errors"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
)

// Lookup implements LOOKUP.
func (s *Server) Lookup(_ <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	s.ops.add(opLookup)
	if isControl(in.NodeId) || in.NodeId == fuse.FUSE_ROOT_ID && name == block.Reserved {
		return s.control.lookup(in.NodeId, name, out)
	}
	if len(name) > block.MaxName {
		return fuse.Status(syscall.ENAMETOOLONG)
	}
	a, err := s.engine.Lookup(index.ID(in.NodeId), name, s.reader(in.Pid))
	if err == nil {
		s.fillEntry(out, &a)
		return fuse.OK
	}
	if errors.Is(err, tiers.ErrStale) {
		s.stale.note(in.Pid, stalePath)
	}
	if a.Stable {
		// An absence may be kept as long as a presence: only this mount makes
		// names, and the kernel sees each of them being made.
		out.SetEntryTimeout(s.opts.EntryTimeout)
		return fuse.OK
	}
	return status(err)
}

// Forget implements FORGET and BATCH_FORGET.
func (s *Server) Forget(nodeid, nlookup uint64) {
	s.ops.add(opForget)
	if isControl(nodeid) {
		return
	}
	if s.refs != nil {
		nlookup = s.refs.forgot(index.ID(nodeid), nlookup)
	}
	if nlookup > 0 {
		s.engine.Forget(index.ID(nodeid), nlookup)
	}
}

// Mkdir implements MKDIR.
func (s *Server) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	s.ops.add(opMkdir)
	if isControl(in.NodeId) {
		return fuse.EPERM
	}
	a, err := s.engine.Mkdir(index.ID(in.NodeId), name, in.Mode, in.Uid, in.Gid)
	if err != nil {
		return status(err)
	}
	s.fillEntry(out, &a)
	return fuse.OK
}

// Mknod implements MKNOD for regular files; devices, pipes and sockets are not
// blocks.
func (s *Server) Mknod(_ <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	s.ops.add(opMknod)
	if isControl(in.NodeId) || in.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return fuse.EPERM
	}
	a, h, err := s.engine.Create(s.ctx, tiers.CreateOptions{
		Parent: index.ID(in.NodeId), Name: name, Mode: in.Mode, UID: in.Uid, GID: in.Gid, By: s.caller(in.Pid), Exclusive: true,
	})
	if err != nil {
		return status(err)
	}
	s.engine.Release(h)
	a = s.engine.Attr(a.ID)
	s.fillEntry(out, &a)
	return fuse.OK
}

// Unlink implements UNLINK.
func (s *Server) Unlink(_ <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	s.ops.add(opUnlink)
	if isControl(in.NodeId) || in.NodeId == fuse.FUSE_ROOT_ID && name == block.Reserved {
		return fuse.EPERM
	}
	return status(s.engine.Unlink(index.ID(in.NodeId), name, s.caller(in.Pid)))
}

// Rmdir implements RMDIR.
func (s *Server) Rmdir(_ <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	s.ops.add(opRmdir)
	if isControl(in.NodeId) || in.NodeId == fuse.FUSE_ROOT_ID && name == block.Reserved {
		return fuse.EPERM
	}
	return status(s.engine.Rmdir(s.ctx, index.ID(in.NodeId), name, s.caller(in.Pid)))
}

// Rename implements RENAME and RENAME2 with RENAME_NOREPLACE.
func (s *Server) Rename(_ <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	s.ops.add(opRename)
	root := func(dir uint64, name string) bool {
		return isControl(dir) || dir == fuse.FUSE_ROOT_ID && name == block.Reserved
	}
	switch {
	case root(in.NodeId, oldName), root(in.Newdir, newName):
		return fuse.EPERM
	case in.Flags&^unix.RENAME_NOREPLACE != 0:
		return fuse.EINVAL
	}
	by := s.caller(in.Pid)
	by.Waits = waiter{s, in.Unique}
	return syncStatus(s.engine.Rename(s.ctx, tiers.RenameOptions{
		Parent: index.ID(in.NodeId), Name: oldName, NewParent: index.ID(in.Newdir), NewName: newName,
		By: by, NoReplace: in.Flags&unix.RENAME_NOREPLACE != 0,
	}))
}

// Symlink implements SYMLINK: there are none, because a block has one name.
func (s *Server) Symlink(<-chan struct{}, *fuse.InHeader, string, string, *fuse.EntryOut) fuse.Status {
	s.ops.add(opOther)
	return fuse.Status(syscall.EOPNOTSUPP)
}

// Link implements LINK: see Symlink.
func (s *Server) Link(<-chan struct{}, *fuse.LinkIn, string, *fuse.EntryOut) fuse.Status {
	s.ops.add(opOther)
	return fuse.Status(syscall.EOPNOTSUPP)
}

// Tmpfile implements O_TMPFILE: a file that never has a name is no block.
func (s *Server) Tmpfile(<-chan struct{}, *fuse.CreateIn, *fuse.CreateOut) fuse.Status {
	s.ops.add(opOther)
	return fuse.Status(syscall.EOPNOTSUPP)
}

// Access implements ACCESS, which the kernel sends only where it does not check
// modes and owners by itself.
func (s *Server) Access(_ <-chan struct{}, _ *fuse.AccessIn) fuse.Status {
	s.ops.add(opAccess)
	return fuse.OK
}

// StatFs implements statfs(2): what can be evicted counts as free, because
// clients that see a full disk begin to delete.
func (s *Server) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	s.ops.add(opStatfs)
	const blockBytes = 4096
	st := s.engine.Stats()
	capacity := st.CapacityBytes
	for _, s := range st.Secondaries {
		capacity += s.CapacityBytes
	}
	free := uint64(max(capacity-st.PinnedBytes, 0)) / blockBytes
	*out = fuse.StatfsOut{
		Blocks: uint64(capacity) / blockBytes, Bfree: free, Bavail: free,
		Files: 1 << 31, Ffree: 1<<31 - uint64(st.Names),
		Bsize: blockBytes, Frsize: blockBytes, NameLen: block.MaxName,
	}
	return fuse.OK
}
