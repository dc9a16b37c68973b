package tiers

import (
	"slices"

	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
)

// A version that waits for a name is found there only by its own process. A version that a thread was promised
// (File.promised) is found by that thread alone. OPEN must answer with the file that it was asked for. So the open
// makes the version, and the kernel is sent to look for it.

const promiseGrace = 10e9 // nanoseconds that a version waits for the open that it was made for

// versionLocked makes a version of the name k, with the mode, owner and pin of base, and the empty file blob.
func (e *drafts) versionLocked(k nameKey, base *index.Entry, by *Caller, blob driver.BlobID) *File {
	mode, uid, gid, pinned, expires := base.Mode, base.UID, base.GID, base.Flags&flagPinned, base.Expires
	id := e.mu.ix.Alloc()
	en := e.mu.ix.At(id)
	now := e.now()
	en.Mode, en.UID, en.GID, en.Expires, en.Blob = mode, uid, gid, expires, uint64(blob)
	en.Mtime, en.Atime, en.Ctime = now, now, now
	e.space.enterGroupLocked(en, e.groupOfLocked(k.parent))
	en.Flags = flagUncommitted | pinned | e.nameFlagsLocked(k.parent, k.name)
	f := e.newFileLocked(id, en)
	f.owner = by.process()
	e.awaitLocked(f, k)
	e.classifyLocked(id, en)
	return f
}

// awaitLocked makes f wait for the name k.
func (e *drafts) awaitLocked(f *File, k nameKey) {
	f.waits, f.name = true, k
	e.mu.waiting[k] = append(e.mu.waiting[k], f.id)
}

// unawaitLocked takes f off the list of versions that wait for its name.
func (e *drafts) unawaitLocked(f *File) {
	ids := e.mu.waiting[f.name]
	for i, id := range ids {
		if id == f.id {
			ids = append(ids[:i:i], ids[i+1:]...)
			break
		}
	}
	if len(ids) == 0 {
		delete(e.mu.waiting, f.name)
	} else {
		e.mu.waiting[f.name] = ids
	}
	f.waits = false
}

// ownVersionLocked returns the version of the name k that the caller finds there, 0 if there is none. The latest
// version wins.
func (e *drafts) ownVersionLocked(k nameKey, by *Caller) (own index.ID) {
	for _, id := range e.mu.waiting[k] {
		if e.mu.files[id].mineLocked(by) {
			own = id
		}
	}
	return own
}

// renounceLocked follows a thread that does something else with the name k than to open the version that it was
// promised. The thread does not come for that version any more.
func (e *drafts) renounceLocked(k nameKey, by *Caller, g *gone) {
	for _, id := range e.mu.waiting[k] {
		if f := e.mu.files[id]; f.promisedLocked(by) {
			e.dropVersionLocked(f, g)
			return
		}
	}
}

// dropVersionLocked makes f, a version that waits, an unlinked file.
func (e *drafts) dropVersionLocked(f *File, g *gone) {
	e.unawaitLocked(f)
	if dir := f.name.parent; e.mu.ix.Valid(dir) {
		e.elsewhere.strayLocked(dir, e.mu.ix.At(dir))
	}
	e.names.dropNameLocked(f.id, e.mu.ix.At(f.id), event.Removed, fate.Cause{}, g)
}

// overtakeLocked follows a name k that was taken or removed. The versions that wait for k become unlinked files,
// except those that are yet to be opened.
func (e *drafts) overtakeLocked(k nameKey, replaced bool, g *gone) {
	if draft.Survives(replaced) {
		return
	}
	for _, id := range append([]index.ID(nil), e.mu.waiting[k]...) {
		if f := e.mu.files[id]; f.promised == 0 {
			e.dropVersionLocked(f, g)
		}
	}
}

// dropVersionsOfLocked makes the versions of the name k that the process p has unlinked files.
func (e *drafts) dropVersionsOfLocked(p Process, k nameKey, g *gone) {
	for _, id := range append([]index.ID(nil), e.mu.waiting[k]...) {
		if f := e.mu.files[id]; f.owner == p && f.promised == 0 {
			e.dropVersionLocked(f, g)
		}
	}
	id := e.mu.ix.Lookup(k.parent, k.name)
	if f := e.mu.files[id]; f != nil && f.owner == p && e.mu.ix.At(id).Flags&flagUncommitted != 0 {
		e.names.dropNameLocked(id, e.mu.ix.At(id), event.Removed, fate.Cause{}, g)
	}
}

// takeTempLocked gives f, which is closed, the name that it waits for, unless the file that has the name is open for
// writing. That file becomes a version of its owner, and the owner may yet rename it.
func (e *drafts) takeTempLocked(f *File, g *gone) {
	k := f.name
	holder := e.mu.ix.Lookup(k.parent, k.name)
	if holder == 0 {
		e.seatLocked(f, k, g)
		return
	}
	hf, en := e.mu.files[holder], e.mu.ix.At(holder)
	if en.Mode&modeType == modeDir || hf != nil && hf.openLocked() {
		return
	}
	e.attrs.nameLeftLocked(holder, en, Process{}, g)
	if hf == nil || hf.left { // no process's
		e.names.dropNameLocked(holder, en, event.Removed, fate.Cause{}, g)
	} else {
		e.mu.ix.Unlink(holder)
		e.mu.blocks--
		e.uncommitLocked(hf, en, g)
		e.awaitLocked(hf, k)
		hf.asked = true
		e.classifyLocked(holder, en)
	}
	e.seatLocked(f, k, g)
}

// uncommitLocked makes f a file that only its own process finds. A crash must not bring it back.
func (e *drafts) uncommitLocked(f *File, en *index.Entry, g *gone) {
	en.Flags |= flagUncommitted
	f.recorded = true
	g.records = append(g.records, f.id)
}

// takeTemp is takeTempLocked for a version whose last descriptor is closed but not yet released.
func (e *drafts) takeTemp(f *File) error {
	if _, err := e.commit(f); err != nil {
		return err
	}
	var g gone
	e.mu.Lock()
	if f.waits {
		e.hearNameLocked(f.name.parent, f.name.name, &Caller{})
	}
	if f.waits && !f.openLocked() {
		f.asked = true
		e.takeTempLocked(f, &g)
	}
	e.mu.Unlock()
	e.finish(&g)
	return nil
}

// sharedName reports whether other versions wait for the temporary name of f.
func (e *drafts) sharedName(f *File) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !f.waits && e.mu.ix.Linked(f.id) && len(e.mu.waiting[nameKey{e.mu.ix.Parent(f.id), e.mu.ix.Name(f.id)}]) > 0
}

// yieldLocked gives the temporary name of f, whose owner died while it wrote, to the latest closed version that
// waits for the name. Without such a version f has no owner, and goes with the rename of another version.
func (e *drafts) yieldLocked(f *File, g *gone) {
	f.left = true
	k := nameKey{e.mu.ix.Parent(f.id), e.mu.ix.Name(f.id)}
	ids := e.mu.waiting[k]
	for i := len(ids) - 1; i >= 0; i-- {
		if v := e.mu.files[ids[i]]; v.promised == 0 && !v.left && !v.openLocked() {
			e.takeTempLocked(v, g)
			return
		}
	}
}

// yield is yieldLocked for a file whose last descriptor is closed but not yet released.
func (e *drafts) yield(f *File) {
	var g gone
	e.mu.Lock()
	if e.mu.ix.Linked(f.id) && !f.openLocked() {
		e.yieldLocked(f, &g)
	}
	e.mu.Unlock()
	e.finish(&g)
}

// hearLocked follows closes of the file that has a temporary name for which a closed version waits. The kernel
// reports a close by the process that made the file with the release alone. The release may come after the next call
// of another process. hearLocked gives the lock up meanwhile.
func (e *drafts) hearLocked(id index.ID, by *Caller) {
	f := e.mu.files[id]
	if len(e.mu.waiting) == 0 || f == nil || !e.mu.ix.Linked(id) || e.kindLocked(e.mu.ix.At(id)) != draft.Temp {
		return
	}
	closed := func(id index.ID) bool { return !e.mu.files[id].openLocked() }
	i := slices.IndexFunc(f.handles, func(h *Handle) bool { return h.silent && !h.closed && h.by.process() != by.process() })
	if i < 0 || !slices.ContainsFunc(e.mu.waiting[nameKey{e.mu.ix.Parent(id), e.mu.ix.Name(id)}], closed) {
		return
	}
	h := f.handles[i] // there is only one: it made the file
	e.mu.Unlock()
	var g gone
	p := h.by.process()
	closes, died := e.opts.Closed(p, id), !e.opts.Alive(p)
	e.mu.Lock()
	if closes && slices.Contains(f.handles, h) && !h.closed {
		h.closed, h.killed = true, died
		if died && f.owner == p && e.mu.ix.Linked(id) && !f.openLocked() {
			e.yieldLocked(f, &g)
		}
	}
	e.mu.Unlock()
	e.finish(&g)
	e.mu.Lock()
}

// hearNameLocked is hearLocked for the file that all processes see under a name.
func (e *drafts) hearNameLocked(parent index.ID, name string, by *Caller) {
	if len(e.mu.waiting) > 0 {
		e.hearLocked(e.mu.ix.Lookup(parent, name), by)
	}
}

// seatLocked gives f a free name that all processes see. The name is not a block's, so f needs no commit.
func (e *drafts) seatLocked(f *File, k nameKey, g *gone) {
	if f.waits {
		e.unawaitLocked(f)
	}
	en := e.mu.ix.At(f.id)
	en.Flags &^= flagUncommitted
	en.Seq = e.nextSeqLocked()
	g.records = append(g.records, f.id)
	e.mu.ix.Link(f.id, k.parent, k.name)
	e.mu.blocks++
	e.classifyLocked(f.id, en)
	e.names.changedLocked(k.parent)
}

// seatNextLocked gives a name that has become free to the latest version that is open for writing. A version of a
// block stays hidden. A closed version is found only by its own process, until that process renames it.
func (e *drafts) seatNextLocked(k nameKey, g *gone) {
	ids := e.mu.waiting[k]
	for i := len(ids) - 1; i >= 0 && e.mu.ix.Lookup(k.parent, k.name) == 0; i-- {
		switch f := e.mu.files[ids[i]]; {
		case f.promised != 0 || f.left || !f.openLocked():
		case e.kindLocked(e.mu.ix.At(f.id)) == draft.Block:
			e.unawaitLocked(f)
			e.mu.ix.Link(f.id, k.parent, k.name)
			e.names.changedLocked(k.parent)
		default:
			e.seatLocked(f, k, g)
		}
	}
}

// emptyLocked reports whether a directory is empty to the caller. If it is, the files there that only other
// processes find become unlinked files.
func (e *drafts) emptyLocked(dir index.ID, by *Caller, g *gone) bool {
	var others []*File
	n := e.mu.ix.Children(dir)
	if n > 0 && int64(n) <= e.writing.Load() {
		for id, f := range e.mu.files {
			if e.mu.ix.Linked(id) && e.mu.ix.Parent(id) == dir && e.mu.ix.At(id).Flags&flagUncommitted != 0 && !f.mineLocked(by) {
				others = append(others, f)
			}
		}
	}
	if int(n) > len(others) {
		return false
	}
	for k, ids := range e.mu.waiting {
		if k.parent != dir {
			continue
		}
		for _, id := range ids {
			f := e.mu.files[id]
			if f.mineLocked(by) && f.promised == 0 {
				return false
			}
			others = append(others, f)
		}
	}
	for _, f := range others {
		if f.waits {
			e.dropVersionLocked(f, g)
		} else {
			e.names.dropNameLocked(f.id, e.mu.ix.At(f.id), event.Removed, fate.Cause{}, g)
		}
	}
	return true
}

// waitsBelowLocked reports whether a version waits for a name in the directory dir.
func (e *drafts) waitsBelowLocked(dir index.ID) bool {
	for k := range e.mu.waiting {
		if k.parent == dir {
			return true
		}
	}
	return false
}

// expireVersionsLocked drops versions that were promised and not opened, and temporary files that no process has had
// open for TempExpiry. It returns the closed versions that wait for their process to rename them.
func (e *drafts) expireVersionsLocked(g *gone) (closed map[Process][]index.ID) {
	now := e.now()
	for id, f := range e.mu.files {
		en := e.mu.ix.At(id)
		idle := now - f.born
		if f.warm {
			f.warm = false
			g.idle = append(g.idle, f)
		}
		switch {
		case en.Opens > 0 || len(f.handles) > 0:
		case f.promised != 0:
			if idle > promiseGrace {
				e.dropVersionLocked(f, g)
			}
		case e.kindLocked(en) != draft.Temp && !f.waits:
		case idle <= int64(e.opts.TempExpiry):
			if f.waits {
				if closed == nil {
					closed = map[Process][]index.ID{}
				}
				closed[f.owner] = append(closed[f.owner], id)
			}
		case f.waits:
			e.mu.counters.Expired++
			e.dropVersionLocked(f, g)
		default:
			e.mu.counters.Expired++
			e.names.dropNameLocked(id, en, event.Removed, fate.Cause{Reason: fate.ReasonAbandoned}, g)
		}
	}
	return closed
}

// expireVersions drops expired versions, and versions that only a process that has ended could rename.
func (e *drafts) expireVersions() {
	var g gone
	e.mu.Lock()
	closed := e.expireVersionsLocked(&g)
	e.mu.Unlock()
	e.finish(&g)
	for p, ids := range closed {
		if e.opts.Alive(p) {
			continue
		}
		var g gone
		e.mu.Lock()
		for _, id := range ids {
			if f := e.mu.files[id]; f != nil && f.waits && f.owner == p && len(f.handles) == 0 && f.promised == 0 {
				e.dropVersionLocked(f, &g)
			}
		}
		e.mu.Unlock()
		e.finish(&g)
	}
}
