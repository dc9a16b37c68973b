package tiers

import "github.com/kvfs/kvfs/tiers/index"

// A committed block that is opened for writing without being emptied, and that
// nobody has open, is shared: its File works on the inode and the bytes of the
// block, so that locks on the file hold between all who open it so, and one that
// only reads (NIXL opens for reading and writing to load) costs no copy. The
// first write forks: the name and the old bytes move to a new entry, where
// others find them as before, and the inode that is being written goes on with a
// copy, as a version that takes the name when it is committed. Who has it open for
// reading goes on reading the old bytes; only fstat, which asks about the inode,
// then shows the size of the new ones.
//
// Where the kernel itself has the block open (passthrough), the inode cannot be
// opened through the daemon as well; then the new version gets an inode of its
// own from the start (replaceLocked).

// fork gives a shared File bytes of its own. The caller holds growth and has
// reserved size bytes beyond the charge of the old version.
func (f *File) fork(size int64) error {
	e := f.e
	blob, file, err := f.copyBytes(size)
	if err != nil {
		return err
	}
	var g gone
	e.mu.Lock()
	e.forkLocked(f, blob, &g)
	f.shared = false
	old := f.swapLocked(file)
	e.mu.Unlock()
	closeAll(old)
	e.finish(&g)
	return nil
}

func (e *Engine) forkLocked(f *File, blob BlobID, g *gone) {
	ix := e.mu.ix
	if !ix.Linked(f.id) {
		en := ix.At(f.id)
		if en.Flags&flagLimbo != 0 {
			e.leaveLimboLocked(f.id, g)
		}
		g.dropped = append(g.dropped, BlobID(en.Blob)) // removed with its name already
		en.Blob = uint64(blob)
		g.blobs = append(g.blobs, blob) // the file goes with its last handle
		return
	}
	old := ix.Alloc()
	oe, en := ix.At(old), ix.At(f.id)
	k := nameKey{ix.Parent(f.id), ix.Name(f.id)}
	oe.Size, oe.Mtime, oe.Atime, oe.Ctime = en.Size, en.Mtime, en.Atime, en.Ctime
	oe.Expires, oe.Lease, oe.Blob, oe.Seq, oe.Sum = en.Expires, en.Lease, en.Blob, en.Seq, en.Sum
	oe.Mode, oe.UID, oe.GID, oe.Group, oe.Tiers = en.Mode, en.UID, en.GID, en.Group, en.Tiers
	oe.Flags = en.Flags & (flagPinned | flagSum | flagTemp | flagSynced | flagRefused | flagOnceSeen | flagFetched)
	en.Flags &^= flagSynced | flagRefused | flagOnceSeen

	charge := chargeOf(en.Size)
	f.charge -= charge
	e.addUsedLocked(en, -charge)
	ix.Unlink(f.id)
	en.Blob = uint64(blob)
	en.Flags |= flagUncommitted
	e.shadowLocked(f, k)
	e.classifyLocked(f.id, en)

	en.Tiers = 0
	e.retargetLocked(f.id, old, en.Seq, en.Seq)

	ix.Link(old, k.parent, k.name)
	e.addUsedLocked(oe, charge)
	e.classifyLocked(old, oe)
	if oe.Flags&(flagRefused|flagOnceSeen) == 0 {
		e.cascadeLocked(old, oe) // it may have been waiting as the other entry
	}
	if oe.Expires != 0 {
		e.mu.expiries.add(oe.Expires, old)
	}
	g.names = append(g.names, goneName{k.parent, f.id, k.name})
}

// outdatedLocked reports whether a version has no bytes of its own, and the block whose
// bytes it shares has lost the name. Until it is written, it stands for that block; so
// its process finds under the name what all find there, as it does where the version
// is a shared one. Thread tid is the one that asks: of those of the process only the one that
// the version was made for is on its way to open it.
func (e *Engine) outdatedLocked(f *File, tid uint32) bool {
	return f.base != 0 && !f.ownsBytes() && !(f.owner == tid && e.awaitedLocked(f)) && (e.mu.ix.Lookup(f.name.parent, f.name.name) != f.base || e.expiredLocked(f.base))
}

// awaitedLocked reports whether a version was made a moment ago for an open that has yet
// to come: the kernel looks the name up again, and only once, so what it was told must
// hold till then, whatever becomes of the name.
func (e *Engine) awaitedLocked(f *File) bool {
	return f.shadow && !f.opened && !f.forsaken && f.poisoned == nil && e.now()-max(f.born, f.promised) < promiseGrace
}

// forsakeLocked follows that thread tid begins another open of the name k, or has opened a version of
// it: it does not come back for one that was made for it before. Else that would hide what it writes now.
func (e *Engine) forsakeLocked(k nameKey, tid uint32) {
	if tid&(1<<threadBits-1) == 0 {
		return // it may be any of those that our process cannot see
	}
	for _, id := range e.mu.shadows[k] {
		if f := e.mu.files[id]; f.owner == tid && !f.opened {
			f.forsaken = true
		}
	}
}

// ownsBytes reports whether a version has bytes of its own, or is just getting them: it is what
// its process sees under the name, whatever that has begun besides.
func (f *File) ownsBytes() bool { return f.poisoned == nil && (f.base == 0 || f.emptied) }

// supersededLocked reports whether the caller's process writes another version of the name that
// id has: one that it began after it looked id up. It is to find that and write it, too. A
// further version would hide what was written, or the one what is written to the other.
func (e *Engine) supersededLocked(id index.ID, truncate bool, o *owners) (other bool, unknown uint32) {
	if len(e.mu.shadows) == 0 {
		return false, 0
	}
	k := nameKey{e.mu.ix.Parent(id), e.mu.ix.Name(id)}
	if f := e.mu.files[id]; f != nil && f.shadow {
		if f.ownsBytes() || f.opened {
			return false, 0
		}
		k = f.name
	} else if !e.mu.ix.Linked(id) || e.mu.ix.At(id).Flags&flagUncommitted != 0 {
		return false, 0
	}
	own, unknown := e.ownVersionLocked(k.parent, k.name, o, false)
	if own == 0 || own == id || unknown != 0 {
		return false, unknown
	}
	// Who came by the block, and keeps its bytes, joins also one that has none of its own yet.
	byBlock := e.mu.files[id] == nil || !e.mu.files[id].shadow
	if !e.mu.files[own].ownsBytes() && (truncate || !byBlock) {
		return false, 0
	}
	e.mu.files[own].promised = e.now()
	e.forsakeLocked(k, o.tid)
	return true, 0
}

// promiseGrace is how long a version that a look-up told the kernel about waits
// for the open that may follow, even if it has no other use.
const promiseGrace = 7e8 // nanoseconds; with runExpiry's tick below openGrace

// dropIdleLocked gives up the versions of a name that nobody has open and that
// have no bytes of their own to wait for a rename with.
func (e *Engine) dropIdleLocked(k nameKey, g *gone) {
	for i := 0; i < len(e.mu.shadows[k]); {
		id := e.mu.shadows[k][i]
		f := e.mu.files[id]
		if e.mu.ix.At(id).Opens > 0 || f.base == 0 && f.poisoned == nil || e.awaitedLocked(f) {
			i++
			continue
		}
		e.releaseBaseLocked(f, g)
		e.dropShadowLocked(id, g)
	}
}

// clearDirLocked gives up versions in dir that nobody has open, and reports
// whether files there are still being written.
func (e *Engine) clearDirLocked(dir index.ID, g *gone) (busy bool) {
	for k := range e.mu.shadows {
		if k.parent == dir {
			e.dropIdleLocked(k, g)
			busy = busy || len(e.mu.shadows[k]) > 0
		}
	}
	return busy
}
