package writing

import (
	"slices"

	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// A version that waits for a name is found there only by its own process. A version that a thread was promised
// (File.promised) is found by that thread alone. OPEN must answer with the file that it was asked for. So the open
// makes the version, and the kernel is sent to look for it.

const promiseGrace = 10e9 // nanoseconds that a version waits for the open that it was made for

// versionLocked makes a version of the name k, with the mode, owner and pin of base, and the empty file blob.
func (e *drafts) versionLocked(k state.NameKey, base index.ID, by *state.Caller, blob driver.BlobID) *File {
	id := e.Mu.Ix.Alloc()
	en, like := e.Mu.Ix.At(id), e.Mu.Ix.At(base)
	now := e.Now()
	en.Mode, en.UID, en.GID, en.Blob = like.Mode, like.UID, like.GID, uint64(blob)
	e.Mu.Ix.SetExpires(id, e.Mu.Ix.Expires(base))
	en.Mtime, en.Atime, en.Ctime = now, now, now
	en.Accounts[state.OfCgroup] = e.Mu.Room.OfCgroup(by.Cgroup)
	e.EnterGroupLocked(en, e.GroupOfLocked(k.Parent))
	en.Flags = state.FlagUncommitted | like.Flags&state.FlagPinned | e.NameFlagsLocked(k.Parent, k.Name)
	f := e.NewFileLocked(id, en)
	f.owner = by.Proc()
	e.awaitLocked(f, k)
	e.ClassifyLocked(id, en)
	return f
}

// awaitLocked makes f wait for the name k.
func (e *drafts) awaitLocked(f *File, k state.NameKey) {
	f.waits, f.name = true, k
	e.Mu.Waiting[k] = append(e.Mu.Waiting[k], f.id)
}

// unawaitLocked takes f off the list of versions that wait for its name.
func (e *drafts) unawaitLocked(f *File) {
	f.waits = false
	ids := slices.DeleteFunc(slices.Clone(e.Mu.Waiting[f.name]), func(id index.ID) bool { return id == f.id }) // callers go through the old list
	e.Mu.Waiting[f.name] = ids
	if len(ids) == 0 {
		delete(e.Mu.Waiting, f.name)
	}
}

// OwnVersionLocked returns the version of the name k that the caller finds there, 0 if there is none. The latest
// version wins.
func (e *drafts) OwnVersionLocked(k state.NameKey, by state.Caller) (own index.ID) {
	for _, id := range e.Mu.Waiting[k] {
		if e.fileLocked(id).MineLocked(by) {
			own = id
		}
	}
	return own
}

// renounceLocked follows a thread that does something else with the name k than to open the version that it was
// promised. The thread does not come for that version any more.
func (e *drafts) renounceLocked(k state.NameKey, by *state.Caller, g *state.Gone) {
	for _, id := range e.Mu.Waiting[k] {
		if f := e.fileLocked(id); f.promisedLocked(by) {
			e.dropLocked(f, fate.Cause{}, g)
			return
		}
	}
}

// dropLocked makes f an unlinked file. why says how it loses its name, if it has one.
func (e *drafts) dropLocked(f *File, why fate.Cause, g *state.Gone) {
	if f.waits {
		e.unawaitLocked(f)
		if dir := f.name.Parent; e.Mu.Ix.Valid(dir) {
			e.elsewhere.StrayLocked(dir, e.Mu.Ix.At(dir))
		}
	}
	e.names.DropNameLocked(f.id, e.Mu.Ix.At(f.id), event.Removed, why, g)
}

// overtakeLocked follows a name k that was taken or removed. The versions that wait for k become unlinked files,
// except those that are yet to be opened.
func (e *drafts) overtakeLocked(k state.NameKey, g *state.Gone) {
	for _, id := range e.Mu.Waiting[k] {
		if f := e.fileLocked(id); f.promised == 0 {
			e.dropLocked(f, fate.Cause{}, g)
		}
	}
}

// dropVersionsOfLocked makes the versions of the name k that the process p has unlinked files.
func (e *drafts) dropVersionsOfLocked(p state.Process, k state.NameKey, g *state.Gone) {
	for _, id := range e.Mu.Waiting[k] {
		if f := e.fileLocked(id); f.owner == p && f.promised == 0 {
			e.dropLocked(f, fate.Cause{}, g)
		}
	}
	id := e.Mu.Ix.Lookup(k.Parent, k.Name)
	if f := e.fileLocked(id); f != nil && f.owner == p && e.Mu.Ix.At(id).Flags&state.FlagUncommitted != 0 {
		e.dropLocked(f, fate.Cause{}, g)
	}
}

// takeTempLocked gives f, which is closed, the name that it waits for, unless the file that has the name is open for
// writing. That file becomes a version of its owner, and the owner may yet rename it.
func (e *drafts) takeTempLocked(f *File, g *state.Gone) {
	k := f.name
	holder := e.Mu.Ix.Lookup(k.Parent, k.Name)
	if holder == 0 {
		e.seatLocked(f, k, g)
		return
	}
	hf, en := e.fileLocked(holder), e.Mu.Ix.At(holder)
	if en.Mode&state.ModeType == state.ModeDir || hf != nil && hf.OpenLocked() {
		return
	}
	e.NameLeftLocked(holder, en, state.Process{}, g)
	if hf == nil || hf.left { // no process's
		e.names.DropNameLocked(holder, en, event.Removed, fate.Cause{}, g)
	} else {
		e.Mu.Ix.Unlink(holder)
		e.Mu.Blocks--
		e.uncommitLocked(hf, en, g)
		e.awaitLocked(hf, k)
		hf.asked = true
		e.ClassifyLocked(holder, en)
	}
	e.seatLocked(f, k, g)
}

// uncommitLocked makes f a file that only its own process finds. A crash must not bring it back.
func (e *drafts) uncommitLocked(f *File, en *index.Entry, g *state.Gone) {
	en.Flags |= state.FlagUncommitted
	f.recorded = true
	g.Records = append(g.Records, f.id)
}

// takeTemp is takeTempLocked for a version whose last descriptor is closed but not yet released.
func (e *drafts) takeTemp(f *File) error {
	if _, err := e.commit(f, draft.Waits); err != nil {
		return err
	}
	var g state.Gone
	e.Mu.Lock()
	if f.waits {
		e.HearNameLocked(f.name.Parent, f.name.Name, state.Caller{})
	}
	if f.waits && !f.OpenLocked() {
		f.asked = true
		e.takeTempLocked(f, &g)
	}
	e.Mu.Unlock()
	e.Finish(&g)
	return nil
}

// sharedName reports whether other versions wait for the temporary name of f.
func (e *drafts) sharedName(f *File) bool {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	return !f.waits && e.Mu.Ix.Linked(f.id) && len(e.Mu.Waiting[e.nameLocked(f.id)]) > 0
}

// yieldLocked gives the temporary name of f, whose owner died while it wrote, to the latest closed version that
// waits for the name. Without such a version f has no owner, and goes with the rename of another version.
func (e *drafts) yieldLocked(f *File, g *state.Gone) {
	f.left = true
	ids := e.Mu.Waiting[e.nameLocked(f.id)]
	for i := len(ids) - 1; i >= 0; i-- {
		if v := e.fileLocked(ids[i]); v.promised == 0 && !v.left && !v.OpenLocked() {
			e.takeTempLocked(v, g)
			return
		}
	}
}

// yield is yieldLocked for a file whose last descriptor is closed but not yet released.
func (e *drafts) yield(f *File) {
	var g state.Gone
	e.Mu.Lock()
	if e.Mu.Ix.Linked(f.id) && !f.OpenLocked() {
		e.yieldLocked(f, &g)
	}
	e.Mu.Unlock()
	e.Finish(&g)
}

// hearLocked follows closes of the file that has a temporary name for which a closed version waits. The kernel
// reports a close by the process that made the file with the release alone. The release may come after the next call
// of another process. hearLocked gives the lock up meanwhile.
func (e *drafts) hearLocked(id index.ID, by *state.Caller) {
	f := e.fileLocked(id)
	h := e.unheardLocked(f, by.Proc())
	if h == nil {
		return
	}
	e.Mu.Unlock()
	var g state.Gone
	p := h.by.Proc()
	closes, died := e.Opts.Closed(p, id), !e.Opts.Alive(p)
	e.Mu.Lock()
	if closes && slices.Contains(f.handles, h) && !h.closed {
		h.closed, h.killed = true, died
		if died && f.owner == p && e.Mu.Ix.Linked(id) && !f.OpenLocked() {
			e.yieldLocked(f, &g)
		}
	}
	e.Mu.Unlock()
	e.Finish(&g)
	e.Mu.Lock()
}

// unheardLocked returns the handle of f, not of the process by, that keeps a closed version from a temporary name and
// may be closed by now, nil if there is none.
func (e *drafts) unheardLocked(f *File, by state.Process) *Handle {
	closed := func(id index.ID) bool { return !e.fileLocked(id).OpenLocked() }
	if len(e.Mu.Waiting) == 0 || f == nil || e.KindLocked(e.Mu.Ix.At(f.id)) != draft.Temp || !slices.ContainsFunc(e.Mu.Waiting[e.nameLocked(f.id)], closed) {
		return nil
	}
	for _, h := range f.handles {
		if h.silent && !h.closed && h.by.Proc() != by {
			return h // there is only one: it made the file
		}
	}
	return nil
}

// HearNameLocked is hearLocked for the file that all processes see under a name.
func (e *drafts) HearNameLocked(parent index.ID, name string, by state.Caller) {
	if len(e.Mu.Waiting) > 0 {
		e.hearLocked(e.Mu.Ix.Lookup(parent, name), &by)
	}
}

// seatLocked gives f a free name that all processes see. The name is not a block's, so f needs no commit.
func (e *drafts) seatLocked(f *File, k state.NameKey, g *state.Gone) {
	if f.waits {
		e.unawaitLocked(f)
	}
	en := e.Mu.Ix.At(f.id)
	en.Flags &^= state.FlagUncommitted
	en.Seq = e.NextSeqLocked()
	g.Records = append(g.Records, f.id)
	e.Mu.Ix.Link(f.id, k.Parent, k.Name)
	e.Mu.Blocks++
	e.ClassifyLocked(f.id, en)
	e.ChangedLocked(k.Parent)
}

// seatNextLocked gives a name that has become free to the latest version that is open for writing. A version of a
// block stays hidden. A closed version is found only by its own process, until that process renames it.
func (e *drafts) seatNextLocked(k state.NameKey, g *state.Gone) {
	ids := e.Mu.Waiting[k]
	for i := len(ids) - 1; i >= 0 && e.Mu.Ix.Lookup(k.Parent, k.Name) == 0; i-- {
		switch f := e.fileLocked(ids[i]); {
		case f.promised != 0 || f.left || !f.OpenLocked():
		case e.KindLocked(e.Mu.Ix.At(f.id)) == draft.Block:
			e.unawaitLocked(f)
			e.Mu.Ix.Link(f.id, k.Parent, k.Name)
			e.ChangedLocked(k.Parent)
		default:
			e.seatLocked(f, k, g)
		}
	}
}

// EmptyLocked reports whether a directory is empty to the caller. If it is, the files there that only other
// processes find become unlinked files.
func (e *drafts) EmptyLocked(dir index.ID, by state.Caller, g *state.Gone) bool {
	var others []*File
	n := e.Mu.Ix.Children(dir)
	if n > 0 && int64(n) <= e.Writers.Load() {
		for id, w := range e.Mu.Files {
			f := w.(*File)
			if e.Mu.Ix.Parent(id) == dir && e.Mu.Ix.At(id).Flags&state.FlagUncommitted != 0 && !f.MineLocked(by) {
				others = append(others, f)
			}
		}
	}
	if int(n) > len(others) {
		return false
	}
	for k, ids := range e.Mu.Waiting {
		if k.Parent != dir {
			continue
		}
		for _, id := range ids {
			f := e.fileLocked(id)
			if f.MineLocked(by) && f.promised == 0 {
				return false
			}
			others = append(others, f)
		}
	}
	for _, f := range others {
		e.dropLocked(f, fate.Cause{}, g)
	}
	return true
}

// expireVersionsLocked drops versions that were promised and not opened, and temporary files that no process has had
// open for TempExpiry. It returns the closed versions that wait for their process to rename them.
func (e *drafts) expireVersionsLocked(g *state.Gone) (closed map[state.Process][]index.ID) {
	now := e.Now()
	for id, w := range e.Mu.Files {
		f := w.(*File)
		en := e.Mu.Ix.At(id)
		idle := now - f.born
		if f.warm {
			f.warm = false
			g.Idle = append(g.Idle, f)
		}
		switch {
		case en.Opens > 0 || len(f.handles) > 0:
		case f.promised != 0:
			if idle > promiseGrace {
				e.dropLocked(f, fate.Cause{}, g)
			}
		case e.KindLocked(en) != draft.Temp && !f.waits:
		case idle <= int64(e.Opts.TempExpiry):
			if f.waits {
				if closed == nil {
					closed = map[state.Process][]index.ID{}
				}
				closed[f.owner] = append(closed[f.owner], id)
			}
		default:
			e.Mu.Counters.Expired++
			e.dropLocked(f, fate.Cause{Reason: fate.ReasonAbandoned}, g)
		}
	}
	return closed
}

// ExpireVersions drops expired versions, and versions that only a process that has ended could rename.
func (e *drafts) ExpireVersions() {
	var g state.Gone
	e.Mu.Lock()
	closed := e.expireVersionsLocked(&g)
	e.Mu.Unlock()
	e.Finish(&g)
	for p, ids := range closed {
		if e.Opts.Alive(p) {
			continue
		}
		var g state.Gone
		e.Mu.Lock()
		for _, id := range ids {
			if f := e.fileLocked(id); f != nil && f.waits && f.owner == p && len(f.handles) == 0 && f.promised == 0 {
				e.dropLocked(f, fate.Cause{}, &g)
			}
		}
		e.Mu.Unlock()
		e.Finish(&g)
	}
}
