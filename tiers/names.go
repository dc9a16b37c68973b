package tiers

import (
	"context"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
)

// Attr is what stat shows of an entry.
type Attr struct {
	ID    index.ID
	Mode  uint32 // type and permission bits
	UID   uint32
	GID   uint32
	Nlink uint32
	Size  int64 // bytes
	Mtime int64 // nanoseconds since the epoch, as the others
	Atime int64
	Ctime int64
	Temp  bool // being written under a name that looks temporary
	// Stable: the answer is the same for all callers and changes only with
	// the kernel's knowledge, or when Options.Invalidate tells, so it may be cached.
	Stable bool
	// Gone: the file has no name, nobody has it open, and its bytes were given up. Who asks for
	// it by a name meant another file.
	Gone bool
}

// owners remembers which owners of uncommitted files belong to the caller's
// process, as far as that has been found out.
type owners struct {
	tid  uint32
	same map[uint32]bool
}

// knows reports whether owner is of the caller's process, and whether that is
// known.
func (o *owners) knows(owner uint32) (same, known bool) {
	// Thread 0 is one that our process cannot see, in another pid name space: it
	// is of no process but its own.
	if owner == o.tid || owner == 0 {
		return owner == o.tid, true
	}
	same, known = o.same[owner]
	return same, known
}

// withNames runs fn under the lock until it knows all the owners it needs. fn
// must have no effect when it returns an unknown owner.
func (e *Engine) withNames(tid uint32, fn func(o *owners) (unknown uint32)) {
	o := owners{tid: tid}
	for {
		var g gone
		unknown := e.locked(fn, &o, &g)
		e.finish(&g)
		if unknown == 0 {
			return
		}
		same := e.opts.SameProcess(tid, unknown)
		if o.same == nil {
			o.same = map[uint32]bool{}
		}
		o.same[unknown] = same
	}
}

func (e *Engine) locked(fn func(o *owners) uint32, o *owners, g *gone) uint32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer e.tellOutdatedLocked(g)
	return fn(o)
}

// resolveLocked finds what a name means to a caller: its own process's version if
// one is being written, else the committed one, 0 if neither. stable is false if
// other callers get, or will shortly get, another answer.
func (e *Engine) resolveLocked(parent index.ID, name string, o *owners) (id index.ID, stable bool, unknown uint32) {
	stable = true
	if len(e.mu.shadows) > 0 {
		stable = len(e.mu.shadows[nameKey{parent, name}]) == 0
		if id, unknown = e.ownVersionLocked(parent, name, o, false); id != 0 || unknown != 0 {
			return id, false, unknown
		}
	}
	id = e.findLocked(parent, name)
	if id == 0 {
		return 0, stable && e.remote == nil && !e.opts.Kernels, 0 // else others can make it at any time
	}
	if en := e.mu.ix.At(id); en.Flags&(flagUncommitted|flagTemp) == flagUncommitted {
		f := e.mu.files[id]
		same, known := o.knows(f.owner)
		if !known {
			return 0, false, f.owner
		}
		if !same {
			return 0, false, 0
		}
		return id, false, 0
	}
	return id, stable, 0
}

// Lookup finds name in the directory parent as the process of thread tid sees
// it, counts one reference by the kernel, and grants the lease. It fails with
// ErrNotFound; Attr.Stable then says whether the absence may be cached. With
// Options.Kernels it fails with ErrStale if the path to parent must be looked up again.
func (e *Engine) Lookup(parent index.ID, name string, tid uint32) (a Attr, err error) {
	var live *File
	var hollow bool
	e.withNames(tid, func(o *owners) uint32 {
		id, stable, unknown := e.resolveLocked(parent, name, o)
		if unknown != 0 {
			return unknown
		}
		if id != 0 && e.expiredLocked(id) {
			id, stable = 0, false
		}
		if id == 0 {
			e.mu.counters.LookupMisses++
			e.mu.summary.UnknownKeys++
			a, err = Attr{Stable: stable}, block.ErrNotFound
			if e.lookAgainLocked(parent, e.mu.ix.At(parent), nil, tid) {
				err = ErrStale // the directory has gone, and there may be another one of its name
			}
			return 0
		}
		en := e.mu.ix.At(id)
		en.Lookups++
		hollow = e.hollowLocked(id, en)
		if e.opts.LookupLease > 0 && (hollow || en.Flags&flagPolicy != 0) {
			en.Lease = e.now() + int64(e.opts.LookupLease)
		}
		e.mu.counters.LookupHit++
		a, live = e.attrLocked(id, en), e.mu.files[id]
		if live != nil && live.shadow {
			live.promised = e.now()
		}
		a.Stable = a.Stable && stable
		return 0
	})
	if live != nil {
		live.refresh(&a)
	}
	if hollow && e.opts.PromoteOnLookup {
		e.promote(e.ctx, a.ID, true)
	}
	return a, err
}

// expiredLocked reports whether a file is past its time to live.
func (e *Engine) expiredLocked(id index.ID) bool {
	en := e.mu.ix.At(id)
	return en.Expires != 0 && en.Expires <= e.now()
}

// Forget takes back n references by the kernel.
func (e *Engine) Forget(id index.ID, n uint64) {
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

func (e *Engine) attrLocked(id index.ID, en *index.Entry) Attr {
	a := Attr{
		ID: id, Mode: en.Mode, UID: en.UID, GID: en.GID, Nlink: 1,
		Size: en.Size, Mtime: en.Mtime, Atime: en.Atime, Ctime: en.Ctime,
		Stable: en.Flags&flagUncommitted == 0,
		Temp:   en.Flags&(flagUncommitted|flagTemp) == flagUncommitted|flagTemp,
	}
	if en.Mode&modeType == modeDir {
		a.Nlink, a.Size = 2, pageBytes
	} else if e.remote != nil && e.farLocked(id, en) {
		a.Stable = false // others may change the attributes of what is theirs
	}
	if !e.mu.ix.Linked(id) && id != index.Root {
		if f := e.mu.files[id]; f == nil || !f.shadow {
			a.Nlink = 0
			a.Gone = f == nil && en.Opens == 0 && en.Flags&flagLimbo == 0 && en.Mode&modeType != modeDir
		}
	}
	return a
}

// Attr returns the attributes of an entry that the kernel holds a reference to.
func (e *Engine) Attr(id index.ID) Attr {
	e.mu.Lock()
	a, live := e.attrLocked(id, e.mu.ix.At(id)), e.mu.files[id]
	e.mu.Unlock()
	if live != nil {
		live.refresh(&a)
	}
	return a
}

// dirLocked checks that id is a directory that still has a name.
func (e *Engine) dirLocked(id index.ID) error {
	switch {
	case e.mu.ix.At(id).Mode&modeType != modeDir:
		return block.ErrNotDir
	case id != index.Root && !e.mu.ix.Linked(id):
		return block.ErrNotFound
	}
	return nil
}

// checkNewLocked checks that name may be made in parent.
func (e *Engine) checkNewLocked(parent index.ID, name string) error {
	if err := block.CheckName(name); err != nil {
		return err
	}
	if parent == index.Root && name == block.Reserved {
		return block.ErrReserved
	}
	return e.dirLocked(parent)
}

// groupOfLocked returns the group that a name in parent belongs to.
func (e *Engine) groupOfLocked(parent index.ID, name string) uint32 {
	if parent == index.Root {
		return e.groupLocked("")
	}
	ix := e.mu.ix
	top := parent
	for ix.Parent(top) != index.Root {
		top = ix.Parent(top)
	}
	return e.groupLocked(block.GroupID(ix.Name(top)))
}

// changedLocked notes that the names in a directory changed.
func (e *Engine) changedLocked(dir index.ID) {
	now := e.now()
	en := e.mu.ix.At(dir)
	en.Mtime, en.Ctime = now, now
}

// Mkdir makes a directory and counts one reference by the kernel. It fails with
// ErrExist, ErrNotDir, ErrNotFound, ErrReserved, ErrInvalid or ErrNameTooLong.
func (e *Engine) Mkdir(parent index.ID, name string, mode, uid, gid uint32) (Attr, error) {
	blob, file, err := e.primary.Create()
	if err != nil {
		return Attr{}, err
	}
	defer file.Close()
	var g gone
	e.mu.Lock()
	e.dropExpiredLocked(parent, name, &g)
	err = e.checkNewLocked(parent, name)
	if err == nil && (e.findLocked(parent, name) != 0 || len(e.mu.shadows[nameKey{parent, name}]) > 0) {
		err = block.ErrExist
	}
	e.tellOutdatedLocked(&g)
	if err != nil {
		e.mu.Unlock()
		g.blobs = append(g.blobs, blob)
		e.finish(&g)
		return Attr{}, err
	}
	id := e.mu.ix.Alloc()
	en := e.mu.ix.At(id)
	now := e.now()
	en.Mode, en.UID, en.GID = modeDir|mode&0o7777, uid, gid
	en.Mtime, en.Atime, en.Ctime = now, now, now
	en.Blob, en.Lookups = uint64(blob), 1
	en.Seq = e.nextSeqLocked()
	e.mu.ix.Link(id, parent, name)
	e.markDirLocked(id, en)
	e.changedLocked(parent)
	e.ownDirsLocked(id)
	e.dirEventLocked(DirCreated, id)
	a := e.attrLocked(id, en)
	e.mu.Unlock()
	e.finish(&g)
	return a, e.writeRecord(id, file)
}

// dropExpiredLocked removes what has a name but is past its time to live, so that
// the name can be made again.
func (e *Engine) dropExpiredLocked(parent index.ID, name string, g *gone) {
	id := e.mu.ix.Lookup(parent, name)
	if id == 0 || !e.expiredLocked(id) || e.mu.ix.At(id).Flags&flagUncommitted != 0 {
		return
	}
	e.mu.counters.Expired++
	e.dropNameLocked(id, e.mu.ix.At(id), BlockRemoved, "expired", g)
}

// markDirLocked notes whether a directory makes what is below it temporary.
func (e *Engine) markDirLocked(id index.ID, en *index.Entry) {
	en.Flags &^= flagTemp
	if e.mu.ix.At(e.mu.ix.Parent(id)).Flags&flagTemp != 0 || e.temp.dir(e.mu.ix.Name(id)) {
		en.Flags |= flagTemp
	}
}

// Rmdir removes an empty directory. It fails with ErrNotFound, ErrNotDir or
// ErrNotEmpty.
func (e *Engine) Rmdir(ctx context.Context, parent index.ID, name string) error {
	if err := e.emptyElsewhere(ctx, parent, name); err != nil {
		return err
	}
	var g gone
	e.mu.Lock()
	err := e.rmdirLocked(parent, name, &g)
	e.tellOutdatedLocked(&g)
	e.mu.Unlock()
	e.finish(&g)
	return err
}

func (e *Engine) rmdirLocked(parent index.ID, name string, g *gone) error {
	id := e.findLocked(parent, name)
	if id == 0 {
		return block.ErrNotFound
	}
	en := e.mu.ix.At(id)
	if en.Mode&modeType != modeDir {
		return block.ErrNotDir
	}
	if e.mu.ix.Children(id) > 0 || e.clearDirLocked(id, g) {
		return block.ErrNotEmpty
	}
	if e.remote != nil {
		e.far.Bury([]Grave{{Path: e.mu.ix.Path(id), Dir: true, Seq: e.nextSeqLocked()}})
	}
	e.nameLeftLocked(id, en, g)
	e.dropDirLocked(id, en, g)
	e.changedLocked(parent)
	return nil
}

// dropDirLocked takes the name and the record of an empty directory away. The
// kernel that asked for it knows.
func (e *Engine) dropDirLocked(id index.ID, en *index.Entry, g *gone) {
	e.dirEventLocked(DirRemoved, id)
	e.clearTiersLocked(id, en, en.Tiers)
	e.mu.ix.Unlink(id)
	if en.Blob != 0 {
		g.blobs = append(g.blobs, BlobID(en.Blob))
		en.Blob = 0
	}
	e.reapLocked(id, en, g)
}

// Unlink removes a file: its name at once, its bytes when the last handle is
// closed. It fails with ErrNotFound or ErrIsDir.
func (e *Engine) Unlink(parent index.ID, name string, tid uint32) (err error) {
	var g gone
	e.withNames(tid, func(o *owners) uint32 {
		id, _, unknown := e.resolveLocked(parent, name, o)
		if unknown != 0 {
			return unknown
		}
		if id == 0 {
			err = block.ErrNotFound
			return 0
		}
		if e.mu.ix.At(id).Mode&modeType == modeDir {
			err = block.ErrIsDir
			return 0
		}
		own, unknown := e.ownVersionLocked(parent, name, o, true)
		if unknown != 0 {
			return unknown
		}
		holder := e.mu.ix.Lookup(parent, name)
		defer e.dropIdleLocked(nameKey{parent, name}, &g)
		// The block first: what was only a version's base may go with that.
		if holder != 0 && (id == holder || e.mu.ix.At(holder).Flags&flagUncommitted == 0) { // else another process is still writing it
			e.mu.counters.Removed++
			e.mu.actor = tid
			e.unlinkLocked(holder, "unlink", &g)
			e.mu.actor = 0
		}
		if own != 0 && own != id {
			e.dropShadowLocked(own, &g) // else a write of it would bring the name back
		}
		if id != holder {
			e.dropShadowLocked(id, &g)
		}
		e.changedLocked(parent)
		return 0
	})
	e.finish(&g)
	return err
}

// unlinkLocked drops a name on the kernel's request, so that only other kernels need
// to be told.
func (e *Engine) unlinkLocked(id index.ID, reason string, g *gone) {
	en := e.mu.ix.At(id)
	e.nameLeftLocked(id, en, g)
	n := len(g.names)
	e.dropNameLocked(id, en, BlockRemoved, reason, g)
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

// ReadDir appends to buf up to readdirBatch entries of dir that come after the
// cookie, in a stable order, and returns it; none left gives an empty slice.
// hint is the ID of the entry whose cookie is after, or 0. Files that another
// process is writing under their final name are left out, and with HideElsewhere
// those that this node has nothing of.
func (e *Engine) ReadDir(dir index.ID, after uint64, hint index.ID, tid uint32, buf []Dirent) []Dirent {
	start := len(buf)
	e.withNames(tid, func(o *owners) (unknown uint32) {
		buf = buf[:start]
		now := e.now()
		e.mu.ix.ReadDir(dir, after, hint, func(id index.ID, en *index.Entry, cookie uint64) bool {
			if en.Flags&(flagUncommitted|flagTemp) == flagUncommitted {
				same, known := o.knows(e.mu.files[id].owner)
				if !known {
					unknown = e.mu.files[id].owner
					return false
				}
				if !same {
					if id, unknown = e.ownVersionLocked(dir, e.mu.ix.Name(id), o, false); unknown != 0 {
						return false
					}
					if id == 0 {
						return true
					}
					buf = append(buf, Dirent{id, e.mu.ix.At(id).Mode, e.mu.files[id].name.name, cookie})
					return len(buf)-start < readdirBatch
				}
			}
			if en.Expires != 0 && en.Expires <= now || e.opts.HideElsewhere && e.elsewhereLocked(id, en) {
				return true
			}
			buf = append(buf, Dirent{id, en.Mode, e.mu.ix.Name(id), cookie})
			return len(buf)-start < readdirBatch
		})
		return unknown
	})
	return buf
}

// ownVersionLocked returns the version of a name that the caller's process is
// writing, 0 if none. outdated: or one that is outdated.
func (e *Engine) ownVersionLocked(parent index.ID, name string, o *owners, outdated bool) (id index.ID, unknown uint32) {
	for _, s := range e.mu.shadows[nameKey{parent, name}] {
		f := e.mu.files[s]
		same, known := o.knows(f.owner)
		if !known {
			return 0, f.owner
		}
		if same && (outdated || !(f.hidden && !f.opened && f.owner != o.tid) && !e.outdatedLocked(f, o.tid)) {
			if id == 0 || f.ownsBytes() || !e.mu.files[id].ownsBytes() {
				id = s // the latest wins, of those that have bytes of their own if there are any
			}
		}
	}
	return id, 0
}

// Parent returns the directory that holds id; the root is its own parent.
func (e *Engine) Parent(id index.ID) index.ID {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.mu.ix.Parent(id); p != 0 {
		return p
	}
	return index.Root
}

// Resolve finds a path below the mount, for control requests, without counting
// a reference. It fails with ErrNotFound.
func (e *Engine) Resolve(_ context.Context, path string) (Attr, error) {
	var g gone
	defer e.finish(&g)
	e.mu.Lock()
	defer e.mu.Unlock()
	id := e.walkLocked(path)
	e.tellOutdatedLocked(&g)
	if id == 0 || e.mu.ix.At(id).Flags&flagUncommitted != 0 {
		return Attr{}, block.ErrNotFound
	}
	return e.attrLocked(id, e.mu.ix.At(id)), nil
}

// RefNamed counts one more reference by the kernel to id, as READDIRPLUS gives,
// if it still is the child of dir called name; else it returns false.
func (e *Engine) RefNamed(dir, id index.ID, name string) (Attr, bool) {
	e.mu.Lock()
	if e.mu.ix.Lookup(dir, name) != id {
		e.mu.Unlock()
		return Attr{}, false
	}
	en := e.mu.ix.At(id)
	en.Lookups++
	a, live := e.attrLocked(id, en), e.mu.files[id]
	e.mu.Unlock()
	if live != nil {
		live.refresh(&a)
	}
	return a, true
}

// Committed reports whether a file is complete and visible to all.
func (e *Engine) Committed(id index.ID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.ix.At(id).Flags&flagUncommitted == 0
}
