package tiers

import (
	"context"
	"errors"
	"os"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
)

// names is the room of the tree of names: what a name means to a process, and how names come and go.
type names struct {
	*core

	dirFiles int64 // directories with a file of their own; guarded by core.mu
}

// Attr is what stat shows of an entry.
type Attr struct {
	ID    index.ID
	Mode  uint32 // type and permission bits
	UID   uint32
	GID   uint32
	Nlink uint32
	Size  int64 // bytes
	Mtime int64 // nanoseconds since the epoch, as the next two
	Atime int64
	Ctime int64
	Temp  bool // the name looks temporary
	// Stable: a kernel may cache the answer. It is the same for all callers, and it changes only by calls of that
	// kernel or with a call of Options.Invalidate.
	Stable bool
	// Gone: the file has no name, no process has it open, and its bytes were given up. A caller that asks for it by a
	// name meant another file.
	Gone bool

	// Changing: the file is open for writing in place, so writes of another kernel change size and times.
	Changing bool

	hollow, hides bool
}

// resolveLocked returns the file or directory that a name means to a caller: a version that its own process writes,
// else the one that all see, 0 if there is neither. stable is false if other callers get another answer, now or soon.
func (e *names) resolveLocked(parent index.ID, name string, by *Caller) (id index.ID, stable bool) {
	stable = true
	if len(e.mu.waiting) > 0 {
		k := nameKey{parent, name}
		stable = len(e.mu.waiting[k]) == 0
		if id = e.drafts.ownVersionLocked(k, by); id != 0 {
			return id, false
		}
	}
	id = e.elsewhere.findLocked(parent, name)
	if id == 0 {
		return 0, stable && e.remote == nil && !e.opts.Kernels // else another node or kernel can make it at any time
	}
	if e.mu.ix.At(id).Flags&flagUncommitted == 0 {
		return id, stable
	}
	if !e.mu.files[id].mineLocked(by) {
		return 0, false
	}
	return id, false
}

// Writing reports whether any file is being written. If none is, Lookup does not need to know the caller.
func (e *core) Writing() bool { return e.writing.Load() > 0 }

// Lookup returns the entry called name in the directory parent, as the caller's process sees it. It counts one
// reference by the kernel and grants the lease. It fails with ErrNotFound; Attr.Stable then says whether the kernel
// may cache the absence. With Options.Kernels it fails with ErrStale if the path to parent must be looked up again.
func (e *names) Lookup(parent index.ID, name string, by Caller) (a Attr, err error) {
	a, live, err := e.lookup(parent, name, &by)
	if err != nil {
		return a, err
	}
	if live != nil {
		empty := a.Size == 0
		live.refresh(&a)
		if empty && a.Size > 0 && a.hides { // its first bytes hide it from other processes
			live.catchUp()
			e.Forget(a.ID, 1)
			return e.lookupAgain(parent, name, &by)
		}
	}
	if a.hollow && e.opts.PromoteOnLookup {
		e.loads.promote(e.ctx, nil, a.ID, true)
	}
	return a, nil
}

func (e *names) lookupAgain(parent index.ID, name string, by *Caller) (Attr, error) {
	a, live, err := e.lookup(parent, name, by)
	if err == nil && live != nil {
		live.refresh(&a)
	}
	return a, err
}

func (e *names) lookup(parent index.ID, name string, by *Caller) (Attr, *File, error) {
	var g gone
	defer e.finish(&g)
	e.mu.Lock()
	defer e.mu.Unlock()
	defer e.elsewhere.tellOutdatedLocked(&g)
	e.drafts.hearNameLocked(parent, name, by)
	id, stable := e.resolveLocked(parent, name, by)
	if id != 0 && e.expiredLocked(id) {
		id, stable = 0, false
	}
	if id == 0 {
		e.mu.counters.LookupMisses++
		e.mu.tally.sum.UnknownKeys++
		if e.opts.Kernels && !by.Told && parent != index.Root && !e.mu.ix.Linked(parent) {
			return Attr{Stable: stable}, nil, ErrStale // another directory may have its name
		}
		return Attr{Stable: stable}, nil, block.ErrNotFound
	}
	en := e.mu.ix.At(id)
	en.Lookups++
	hollow := e.hollowLocked(id, en)
	if e.opts.LookupLease > 0 && (hollow || en.Flags&flagPolicy != 0) {
		en.Lease = e.now() + int64(e.opts.LookupLease)
	}
	e.mu.counters.LookupHit++
	a := e.attrLocked(id, en)
	a.Stable, a.hollow = a.Stable && stable, hollow
	return a, e.liveLocked(id), nil
}

// liveLocked returns the write side of an entry whose bytes may have changed since they were last accounted, else
// nil.
func (e *names) liveLocked(id index.ID) *File {
	f := e.mu.files[id]
	if f == nil || len(f.handles) == 0 {
		return nil
	}
	return f
}

// expiredLocked reports whether a file is past its time to live.
func (e *core) expiredLocked(id index.ID) bool {
	en := e.mu.ix.At(id)
	return en.Expires != 0 && en.Expires <= e.now()
}

// Forget takes back n references by the kernel.
func (e *names) Forget(id index.ID, n uint64) {
	if id == index.Root {
		return
	}
	var g gone
	e.mu.Lock()
	en := e.mu.ix.At(id)
	en.Lookups -= uint32(min(n, uint64(en.Lookups)))
	e.reapLocked(id, en, &g)
	e.mu.Unlock()
	e.finish(&g)
}

func (e *names) attrLocked(id index.ID, en *index.Entry) Attr {
	a := Attr{
		ID: id, Mode: en.Mode, UID: en.UID, GID: en.GID, Nlink: 1,
		Size: en.Size, Mtime: en.Mtime, Atime: en.Atime, Ctime: en.Ctime,
		Stable: en.Flags&(flagUncommitted|flagTemp|flagPlain) == 0,
		Temp:   en.Flags&flagTemp != 0,
	}
	f := e.mu.files[id]
	if en.Mode&modeType == modeDir {
		a.Nlink, a.Size = 1, pageBytes // 1: subdirectories are not counted
		return e.linkedAttrLocked(id, en, f, a)
	}
	a.Changing = f != nil && len(f.handles) > 0
	if e.opens.blankLocked(id, en) && en.Flags&flagPlain == 0 {
		a.Size, a.Stable, a.hides = 0, false, en.Flags&flagUncommitted == 0 && e.kindLocked(en) == draft.Block
	}
	if e.remote != nil && e.farLocked(id, en) {
		a.Stable = false // other nodes may change the attributes of their files
	}
	return e.linkedAttrLocked(id, en, f, a)
}

// linkedAttrLocked returns a, with Nlink 0 and Gone set as they must be if the name is gone.
func (e *names) linkedAttrLocked(id index.ID, en *index.Entry, f *File, a Attr) Attr {
	if !e.mu.ix.Linked(id) && id != index.Root && (f == nil || !f.waits) {
		a.Nlink = 0
		a.Gone = f == nil && en.Opens == 0 && en.Flags&flagLimbo == 0 && en.Mode&modeType != modeDir
	}
	return a
}

// Attr returns the attributes of an entry that the kernel holds a reference to.
func (e *names) Attr(id index.ID) Attr {
	e.mu.Lock()
	a, live := e.attrLocked(id, e.mu.ix.At(id)), e.liveLocked(id)
	e.mu.Unlock()
	if live != nil {
		live.refresh(&a)
	}
	return a
}

// dirLocked checks that id is a directory that still has a name.
func (e *names) dirLocked(id index.ID) error {
	switch {
	case e.mu.ix.At(id).Mode&modeType != modeDir:
		return block.ErrNotDir
	case id != index.Root && !e.mu.ix.Linked(id):
		return block.ErrNotFound
	}
	return nil
}

// checkNewLocked checks that name may be made in parent.
func (e *names) checkNewLocked(parent index.ID, name string) error {
	if err := block.CheckName(name); err != nil {
		return err
	}
	if parent == index.Root && name == block.Reserved {
		return block.ErrReserved
	}
	if err := e.dirLocked(parent); err != nil {
		return err
	}
	e.mu.scratch = e.mu.ix.AppendPath(e.mu.scratch[:0], parent)
	if len(e.mu.scratch)+1+len(name) > block.MaxPath {
		return block.ErrNameTooLong
	}
	return nil
}

// groupOfLocked returns the group that the names in parent belong to.
func (e *core) groupOfLocked(parent index.ID) uint32 {
	if parent == index.Root {
		return e.mu.room.Number("")
	}
	ix := e.mu.ix
	top := parent
	for ix.Parent(top) != index.Root {
		top = ix.Parent(top)
	}
	return e.mu.room.Number(block.GroupID(ix.Name(top)))
}

// changedLocked notes that the names in a directory changed.
func (e *names) changedLocked(dir index.ID) {
	now := e.now()
	en := e.mu.ix.At(dir)
	en.Mtime, en.Ctime = now, now
}

// A directory has a file of its own in memory, with its record, for each dirShare bytes of the capacity. Blocks need
// most of the files that a tmpfs may have, so further directories are names only.
const (
	dirShare    = 8 << 10
	minDirFiles = 1 << 14
)

// dirFile makes the file of a directory. blob is 0 if the directory must do without.
func (e *names) dirFile() (blob driver.BlobID, file *os.File, err error) {
	e.mu.Lock()
	full := e.dirFiles >= max(e.opts.CapacityBytes/dirShare, minDirFiles)
	e.mu.Unlock()
	if full {
		return 0, nil, nil
	}
	blob, file, err = e.primary.Create()
	if errors.Is(err, block.ErrNoSpace) {
		return 0, nil, nil
	}
	return blob, file, err
}

// Mkdir makes a directory and counts one reference by the kernel. It fails with ErrExist, ErrNotDir, ErrNotFound,
// ErrReserved, ErrInvalid or ErrNameTooLong.
func (e *names) Mkdir(parent index.ID, name string, mode, uid, gid uint32) (Attr, error) {
	blob, file, err := e.dirFile()
	if err != nil {
		return Attr{}, err
	}
	defer file.Close()
	var g gone
	e.mu.Lock()
	e.dropExpiredLocked(parent, name, &g)
	err = e.checkNewLocked(parent, name)
	if err == nil && (e.elsewhere.findLocked(parent, name) != 0 || len(e.mu.waiting[nameKey{parent, name}]) > 0) {
		err = block.ErrExist
	}
	e.elsewhere.tellOutdatedLocked(&g)
	if err != nil {
		e.mu.Unlock()
		if blob != 0 {
			g.blobs = append(g.blobs, blob)
		}
		e.finish(&g)
		return Attr{}, err
	}
	id := e.mu.ix.Alloc()
	en := e.mu.ix.At(id)
	now := e.now()
	en.Mode, en.UID, en.GID = modeDir|mode&0o7777, uid, gid
	en.Mtime, en.Atime, en.Ctime = now, now, now
	en.Blob, en.Lookups = uint64(blob), 1
	if blob != 0 {
		e.dirFiles++
	}
	en.Seq = e.nextSeqLocked()
	e.mu.ix.Link(id, parent, name)
	e.markDirLocked(id, en)
	e.changedLocked(parent)
	e.elsewhere.ownDirsLocked(id)
	e.elsewhere.dirEventLocked(event.DirCreated, id)
	a := e.attrLocked(id, en)
	e.mu.Unlock()
	e.finish(&g)
	return a, e.attrs.writeRecord(id, file)
}

// dropExpiredLocked removes a file that is past its time to live, so that its name can be made again.
func (e *names) dropExpiredLocked(parent index.ID, name string, g *gone) {
	id := e.mu.ix.Lookup(parent, name)
	if id == 0 || !e.expiredLocked(id) || e.mu.ix.At(id).Flags&flagUncommitted != 0 {
		return
	}
	e.mu.counters.Expired++
	e.dropNameLocked(id, e.mu.ix.At(id), event.Removed, fate.Cause{Reason: fate.ReasonExpired}, g)
}

// markDirLocked notes whether names below a directory are temporary.
func (e *names) markDirLocked(id index.ID, en *index.Entry) {
	en.Flags &^= flagTemp
	if e.mu.ix.At(e.mu.ix.Parent(id)).Flags&flagTemp != 0 || e.temp.Dir(e.mu.ix.Name(id)) {
		en.Flags |= flagTemp
	}
}

// Rmdir removes an empty directory. It fails with ErrNotFound, ErrNotDir or ErrNotEmpty.
func (e *names) Rmdir(ctx context.Context, parent index.ID, name string, by Caller) error {
	if err := e.elsewhere.emptyElsewhere(ctx, parent, name); err != nil {
		return err
	}
	var g gone
	e.mu.Lock()
	err := e.rmdirLocked(parent, name, &by, &g)
	e.elsewhere.tellOutdatedLocked(&g)
	e.mu.Unlock()
	e.finish(&g)
	return err
}

func (e *names) rmdirLocked(parent index.ID, name string, by *Caller, g *gone) error {
	id := e.elsewhere.findLocked(parent, name)
	if id == 0 {
		return block.ErrNotFound
	}
	en := e.mu.ix.At(id)
	if en.Mode&modeType != modeDir {
		return block.ErrNotDir
	}
	if !e.drafts.emptyLocked(id, by, g) {
		return block.ErrNotEmpty
	}
	if e.remote != nil {
		e.far.Bury([]driver.Grave{{Path: e.mu.ix.Path(id), Dir: true, Seq: e.nextSeqLocked()}})
	}
	e.attrs.nameLeftLocked(id, en, by.process(), g)
	e.dropDirLocked(id, en, g)
	e.changedLocked(parent)
	return nil
}

// dropDirLocked removes the name and the record of an empty directory. It does not tell the kernel, because the
// kernel asked for it.
func (e *names) dropDirLocked(id index.ID, en *index.Entry, g *gone) {
	e.elsewhere.dirEventLocked(event.DirRemoved, id)
	e.copies.clearTiersLocked(id, en, en.Tiers)
	e.mu.ix.Unlink(id)
	if en.Blob != 0 {
		g.blobs = append(g.blobs, driver.BlobID(en.Blob))
		en.Blob = 0
		e.dirFiles--
	}
	e.reapLocked(id, en, g)
}

// Unlink removes the file that name means to the caller: the name at once, the bytes when the last handle is closed.
// It fails with ErrNotFound or ErrIsDir.
func (e *names) Unlink(parent index.ID, name string, by Caller) error {
	var g gone
	e.mu.Lock()
	e.drafts.hearNameLocked(parent, name, &by)
	err := e.removeLocked(parent, name, &by, &g)
	e.elsewhere.tellOutdatedLocked(&g)
	e.mu.Unlock()
	e.finish(&g)
	return err
}

func (e *names) removeLocked(parent index.ID, name string, by *Caller, g *gone) error {
	k := nameKey{parent, name}
	e.drafts.renounceLocked(k, by, g)
	id, _ := e.resolveLocked(parent, name, by)
	if id == 0 {
		return block.ErrNotFound
	}
	en := e.mu.ix.At(id)
	if en.Mode&modeType == modeDir {
		return block.ErrIsDir
	}
	holder := e.mu.ix.Lookup(parent, name)
	own := e.mu.files[id]
	// Of several versions of a temporary name a process removes only its own. A process without one removes all.
	shares := e.kindLocked(en) == draft.Temp && own != nil && own.mineLocked(by)
	if id != holder {
		e.drafts.dropVersionLocked(own, g)
	}
	takes := id == holder || !shares && e.mu.ix.At(holder).Flags&flagUncommitted == 0
	if holder != 0 && (takes || shares && e.renames.replacedLocked(holder, draft.Temp)) {
		e.mu.counters.Removed++
		e.unlinkLocked(holder, fate.Cause{Reason: fate.ReasonUnlink, By: by.actor()}, by.process(), g)
	}
	if !shares {
		e.drafts.overtakeLocked(k, false, g)
	}
	e.drafts.seatNextLocked(k, g)
	e.changedLocked(parent)
	return nil
}

// unlinkLocked drops a name because a kernel asked for it, so that only the other kernels are told. by is as in
// Options.Invalidate.
func (e *names) unlinkLocked(id index.ID, why fate.Cause, by Process, g *gone) {
	en := e.mu.ix.At(id)
	e.attrs.nameLeftLocked(id, en, by, g)
	n := len(g.names)
	e.dropNameLocked(id, en, event.Removed, why, g)
	g.names = g.names[:n]
}

// Dirent is one entry of a directory.
type Dirent struct {
	ID     index.ID
	Mode   uint32
	Name   string
	Cookie uint64 // position after this entry
}

// readdirBatch bounds how many entries one hold of the lock copies.
const readdirBatch = 1024

// ReadDir appends to buf up to readdirBatch entries of dir that come after a cookie, in a stable order, and returns
// the longer slice. If it appended nothing, there are no more. hint is the ID of the entry whose cookie is after, or
// 0. ReadDir leaves out files that another process writes under their final name, and with HideElsewhere the names
// that only other nodes have.
func (e *names) ReadDir(dir index.ID, after uint64, hint index.ID, by Caller, buf []Dirent) []Dirent {
	start := len(buf)
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.now()
	e.mu.ix.ReadDir(dir, after, hint, func(id index.ID, en *index.Entry, cookie uint64) bool {
		name := e.mu.ix.Name(id)
		if en.Flags&flagUncommitted != 0 && !e.mu.files[id].mineLocked(&by) {
			if id = e.drafts.ownVersionLocked(nameKey{dir, name}, &by); id == 0 {
				return true
			}
			en = e.mu.ix.At(id)
		}
		if en.Expires != 0 && en.Expires <= now || e.opts.HideElsewhere && e.elsewhere.elsewhereLocked(id, en) {
			return true
		}
		buf = append(buf, Dirent{id, en.Mode, name, cookie})
		return len(buf)-start < readdirBatch
	})
	return buf
}

// Parent returns the directory that holds id. The root is its own parent.
func (e *names) Parent(id index.ID) index.ID {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.mu.ix.Parent(id); p != 0 {
		return p
	}
	return index.Root
}

// RefNamed counts one more reference by the kernel to id, as READDIRPLUS gives, if id is still the child of dir
// called name. Otherwise it returns false.
func (e *names) RefNamed(dir, id index.ID, name string) (Attr, bool) {
	e.mu.Lock()
	if e.mu.ix.Lookup(dir, name) != id {
		e.mu.Unlock()
		return Attr{}, false
	}
	en := e.mu.ix.At(id)
	if en.Flags&flagUncommitted != 0 || en.Size == 0 && e.mu.files[id] != nil || len(e.mu.waiting[nameKey{dir, name}]) > 0 {
		e.mu.Unlock()
		return Attr{}, false // other processes may not find it
	}
	en.Lookups++
	a, live := e.attrLocked(id, en), e.mu.files[id]
	e.mu.Unlock()
	if live != nil {
		live.refresh(&a)
	}
	return a, true
}
