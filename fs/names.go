package fs

import (
	"context"
	"errors"
	"path"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/openfile"
	"github.com/kvfs/kvfs/tiers/state"
)

// Lookup implements LOOKUP.
func (f *files) Lookup(_ <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	defer f.begin(device.OpLookup).end()
	if isControl(in.NodeId) || in.NodeId == fuse.FUSE_ROOT_ID && name == block.Reserved {
		return f.control.lookup(in.NodeId, name, out)
	}
	if len(name) > block.MaxName {
		return fuse.Status(syscall.ENAMETOOLONG)
	}
	w, _ := f.waiters.Get().(*waiter)
	if w == nil {
		w = &waiter{f: f}
	}
	w.unique = in.Unique
	by := f.reader(in.Pid)
	by.Waits = w
	a, err := f.engine.Lookup(index.ID(in.NodeId), name, by)
	f.waiters.Put(w)
	if err == nil {
		f.stale.looked(in.Pid, true)
		f.fillEntry(out, &a)
		return fuse.OK
	}
	if errors.Is(err, state.ErrStale) {
		if !f.stale.told(in.Pid) {
			return f.stale.tell(in.Pid, pathLife)
		}
		err = block.ErrNotFound
	}
	if errors.Is(err, block.ErrNotFound) {
		f.stale.looked(in.Pid, false)
	}
	if a.Stable {
		// The kernel may keep an absence as long as a presence: only this mount makes names,
		// and the kernel sees each one being made.
		out.SetEntryTimeout(f.opts.EntryTimeout)
		return fuse.OK
	}
	return status(err)
}

// Forget implements FORGET and BATCH_FORGET.
func (f *files) Forget(nodeid, nlookup uint64) {
	defer f.begin(device.OpForget).end()
	if isControl(nodeid) {
		return
	}
	if f.refs != nil {
		nlookup = f.refs.forgot(index.ID(nodeid), nlookup)
	}
	if nlookup > 0 {
		f.engine.Forget(index.ID(nodeid), nlookup)
	}
}

// Mkdir implements MKDIR.
func (f *files) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	defer f.begin(device.OpMkdir).end()
	if isControl(in.NodeId) {
		return fuse.EPERM
	}
	a, err := f.engine.Mkdir(index.ID(in.NodeId), name, in.Mode, in.Uid, in.Gid, f.caller(in.Pid).Proc())
	if err != nil {
		return status(err)
	}
	f.fillEntry(out, &a)
	return fuse.OK
}

// Mknod implements MKNOD for regular files. Devices, pipes and sockets are not blocks.
func (f *files) Mknod(_ <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	defer f.begin(device.OpMknod).end()
	if isControl(in.NodeId) || in.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return fuse.EPERM
	}
	a, h, err := f.engine.Create(f.ctx, openfile.CreateOptions{
		Parent: index.ID(in.NodeId), Name: name, Mode: in.Mode, UID: in.Uid, GID: in.Gid, By: f.maker(in.Pid), Exclusive: true,
	})
	if err != nil {
		return status(err)
	}
	f.engine.Release(h)
	a = f.engine.Attr(a.ID)
	f.fillEntry(out, &a)
	return fuse.OK
}

// Unlink implements UNLINK.
func (f *files) Unlink(_ <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	defer f.begin(device.OpUnlink).end()
	if isControl(in.NodeId) || in.NodeId == fuse.FUSE_ROOT_ID && name == block.Reserved {
		return fuse.EPERM
	}
	return status(f.engine.Unlink(index.ID(in.NodeId), name, f.caller(in.Pid)))
}

// Rmdir implements RMDIR.
func (f *files) Rmdir(_ <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	defer f.begin(device.OpRmdir).end()
	if isControl(in.NodeId) || in.NodeId == fuse.FUSE_ROOT_ID && name == block.Reserved {
		return fuse.EPERM
	}
	return status(f.engine.Rmdir(f.ctx, index.ID(in.NodeId), name, f.caller(in.Pid)))
}

// Rename implements RENAME and RENAME2 with RENAME_NOREPLACE.
func (f *files) Rename(_ <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	defer f.begin(device.OpRename).end()
	root := func(dir uint64, name string) bool {
		return isControl(dir) || dir == fuse.FUSE_ROOT_ID && name == block.Reserved
	}
	switch {
	case root(in.NodeId, oldName), root(in.Newdir, newName):
		return fuse.EPERM
	case in.Flags&^unix.RENAME_NOREPLACE != 0:
		return fuse.EINVAL
	}
	by := f.caller(in.Pid)
	by.Waits = waiter{f, in.Unique}
	err := f.engine.Rename(f.ctx, openfile.RenameOptions{
		Parent: index.ID(in.NodeId), Name: oldName, NewParent: index.ID(in.Newdir), NewName: newName,
		By: by, NoReplace: in.Flags&unix.RENAME_NOREPLACE != 0,
	})
	if err == nil && f.others != nil {
		f.movedDir(path.Join(f.engine.PathOf(index.ID(in.Newdir)), newName))
	}
	return syncStatus(err)
}

// moveTime bounds how long the rename of a directory waits for other kernels: of two mounts that rename in each other's
// directories, each may wait for the other.
const moveTime = time.Second

// movedDir has the other kernels forget the old name of a directory that was renamed to a path. Else their clients could
// go on making files by the old name, which would land in the directory under its new name.
func (f *files) movedDir(to string) {
	h, ok := f.engine.Holding(to)
	if !ok || h.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return
	}
	ctx, cancel := context.WithTimeout(f.ctx, moveTime)
	defer cancel()
	f.others.settle(ctx, f)
}

// Symlink implements SYMLINK. It is refused, because a block has one name.
func (f *files) Symlink(<-chan struct{}, *fuse.InHeader, string, string, *fuse.EntryOut) fuse.Status {
	defer f.begin(device.OpOther).end()
	return fuse.Status(syscall.EOPNOTSUPP)
}

// Link implements LINK for a temporary file that becomes a block. Other links are refused: see Symlink.
func (f *files) Link(_ <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	defer f.begin(device.OpOther).end()
	if isControl(in.NodeId) || isControl(in.Oldnodeid) {
		return fuse.EPERM
	}
	by := f.caller(in.Pid)
	by.Waits = waiter{f, in.Unique}
	a, err := f.engine.Link(f.ctx, index.ID(in.Oldnodeid), index.ID(in.NodeId), name, by)
	if err == nil {
		f.fillEntry(out, &a)
	}
	return syncStatus(err)
}

// Tmpfile implements O_TMPFILE. It is refused: a file that never gets a name is no block.
func (f *files) Tmpfile(<-chan struct{}, *fuse.CreateIn, *fuse.CreateOut) fuse.Status {
	defer f.begin(device.OpOther).end()
	return fuse.Status(syscall.EOPNOTSUPP)
}

// Access implements ACCESS. The kernel sends it only if it does not check modes and owners
// itself.
func (f *files) Access(_ <-chan struct{}, _ *fuse.AccessIn) fuse.Status {
	defer f.begin(device.OpAccess).end()
	return fuse.OK
}

// StatFs implements statfs(2). Evictable blocks count as free, because clients that see a full
// disk begin to delete.
func (f *files) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	defer f.begin(device.OpStatfs).end()
	const blockBytes = 4096
	st := f.engine.Stats()
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
