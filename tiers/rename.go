package tiers

import (
	"context"
	"errors"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
)

// RenameOptions names what moves where.
type RenameOptions struct {
	Parent, NewParent index.ID
	Name, NewName     string
	TID               uint32 // thread that asks
	NoReplace         bool   // RENAME_NOREPLACE: fail with ErrExist if the new name is taken
}

// renameTries bounds how often Rename looks again because the file was closed
// under its eyes.
const renameTries = 16

// Rename moves a file or directory, replacing what has the new name. Renaming a
// file that is being written to a name that is not temporary commits it, with
// the bytes written so far; later writes through its open handles still land.
//
// A block that only other nodes have is fetched first. A directory that others have,
// too, cannot be renamed: EXDEV, upon which mv copies.
//
// It fails with ErrNotFound, ErrExist, ErrIsDir, ErrNotDir, ErrNotEmpty, ErrLoop,
// ErrReserved, ErrInvalid, ErrNameTooLong, ErrPoisoned, ErrNoSpace, ErrQuota.
//
// A rename that commits waits for the block's copy as Flush does.
func (e *Engine) Rename(ctx context.Context, o RenameOptions) error {
	for tries := 0; ; tries++ {
		id, f, err := e.renameSource(&o)
		if err != nil {
			return err
		}
		if f == nil && e.populated(id) {
			announceWait(ctx) // the record of everything below it is written anew
		}
		unpin := func() {}
		if e.remote != nil {
			if unpin, err = e.bringHere(ctx, id, &o); err != nil {
				e.Forget(id, 1)
				return err
			}
		}
		again, err := e.tryRename(id, f, &o)
		unpin()
		if err == nil && !again && f != nil {
			err = e.renamed(ctx, id, f)
		}
		e.Forget(id, 1)
		if !again || tries == renameTries {
			return err
		}
	}
}

// bringHere has what only others have brought into memory, so that it can get another
// name, and kept there until unpin is called. A directory that others have cannot be
// renamed for them: it is as if it were on another file system; nor can one take the place
// of a directory in which they have something.
func (e *Engine) bringHere(ctx context.Context, id index.ID, o *RenameOptions) (unpin func(), err error) {
	e.mu.Lock()
	if f := e.mu.files[id]; f != nil && f.base != 0 {
		id = f.base // the version has no bytes but those
	}
	en := e.mu.ix.At(id)
	if !e.mu.ix.Linked(id) {
		e.mu.Unlock()
		return func() {}, nil
	}
	path := e.mu.ix.Path(id)
	isDir := en.Mode&modeType == modeDir
	far := e.farLocked(id, en)
	e.mu.Unlock()
	switch {
	case isDir:
		if _, ok := e.locate(path); ok {
			return nil, os.NewSyscallError("rename", unix.EXDEV)
		}
		if !o.NoReplace {
			return func() {}, e.emptyElsewhere(ctx, o.NewParent, o.NewName)
		}
	case far:
		switch err := e.promote(ctx, id, false); {
		case err == nil:
			return func() { e.CloseRead(id) }, nil
		case !errors.Is(err, ErrStale): // else somebody else has brought it, or it is gone, which shows
			return nil, bringError("rename", err)
		}
	}
	return func() {}, nil
}

// errFar: what is to be renamed has left memory again, and only others have it.
var errFar = errors.New("only other nodes have the block")

// movableLocked checks that all that moves with id is here, now that the lock is held. It
// fails with errFar, or EXDEV of a directory.
func (e *Engine) movableLocked(id index.ID, en *index.Entry) error {
	if e.remote == nil {
		return nil
	}
	if en.Mode&modeType != modeDir {
		if e.farLocked(id, en) {
			return errFar
		}
		return nil
	}
	_, far := e.locate(e.mu.ix.Path(id))
	e.mu.ix.Descend(id, func(c index.ID, ce *index.Entry) bool {
		far = far || e.farLocked(c, ce) || ce.Mode&modeType == modeDir && ce.Tiers&e.remote.bit != 0
		return !far
	})
	if far {
		return os.NewSyscallError("rename", unix.EXDEV)
	}
	return nil
}

// populated reports whether a directory has anything in it.
func (e *Engine) populated(id index.ID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.ix.At(id).Mode&modeType == modeDir && e.mu.ix.Children(id) > 0
}

// renamed waits for what a commit by rename has to wait for.
func (e *Engine) renamed(ctx context.Context, id index.ID, f *File) error {
	e.mu.Lock()
	committed := e.mu.ix.At(id).Flags&flagUncommitted == 0
	sync := committed && f.sync
	if committed {
		f.sync = false
	}
	e.mu.Unlock()
	if !committed {
		return nil
	}
	return e.afterCommit(ctx, id, sync)
}

// tryRename moves id, which the name meant a moment ago. It reports whether to look
// again, because the name means something else now, or its last handle was closed.
func (e *Engine) tryRename(id index.ID, f *File, o *RenameOptions) (again bool, err error) {
	var size, mtime int64
	var bytesless bool
	if f != nil {
		switch err := e.ownBytes(id, f, o); {
		case errors.Is(err, os.ErrClosed):
			return true, block.ErrNotFound
		case err != nil:
			return false, err
		}
		bytesless = e.bytesless(f)
	}
	if f != nil && !bytesless {
		if size, mtime, err = f.fstat(); err != nil {
			return true, block.ErrNotFound
		}
		if err := e.checkOverrun(f, size); err != nil {
			return false, err
		}
	}
	var g gone
	var below []index.ID
	e.withNames(o.TID, func(ow *owners) uint32 {
		got, _, unknown := e.resolveLocked(o.Parent, o.Name, ow)
		if unknown != 0 {
			return unknown
		}
		holder := e.mu.ix.Lookup(o.Parent, o.Name)
		e.dropExpiredLocked(o.Parent, o.Name, &g)
		again = got != id || e.mu.files[got] != f || f != nil && f.base != 0 && f.base != holder || holder != e.mu.ix.Lookup(o.Parent, o.Name)
		if again {
			err = block.ErrNotFound
			return 0
		}
		e.dropExpiredLocked(o.NewParent, o.NewName, &g)
		if below, err = e.renameVersionLocked(id, f, o, size, mtime, &g); err == errFar {
			again, err = true, block.ErrNotFound
		}
		return 0
	})
	for _, c := range below {
		err = errors.Join(err, e.writeRecord(c, nil))
		e.settle(c, &g)
		e.Forget(c, 1)
	}
	e.finish(&g)
	return again, err
}

// renameVersionLocked moves id, or, if that is a version without bytes of its own,
// the block that it is based on; the version then waits for the new name. It
// returns what moved, with one reference to each by the caller.
func (e *Engine) renameVersionLocked(id index.ID, f *File, o *RenameOptions, size, mtime int64, g *gone) (moved []index.ID, err error) {
	var alias *File
	if f != nil && f.base != 0 && f.base == e.mu.ix.Lookup(o.Parent, o.Name) {
		alias = f
		id, f = f.base, e.mu.files[f.base]
	}
	from := e.mu.ix.Path(id)
	if err := e.renameLocked(id, f, o, size, mtime, g); err != nil {
		return nil, err
	}
	to := e.mu.ix.Path(id)
	if alias != nil && alias.shadow {
		e.unshadowLocked(alias)
		e.shadowLocked(alias, nameKey{o.NewParent, o.NewName})
	}
	moved = append(moved, id)
	e.mu.ix.Descend(id, func(c index.ID, _ *index.Entry) bool {
		moved = append(moved, c)
		return true
	})
	if e.remote != nil && from != to && e.mu.ix.At(id).Mode&modeType == modeDir {
		e.renumberLocked(id, moved, from, to, g)
	}
	tree := movedTree{from: from, to: to}
	for _, c := range moved {
		en := e.mu.ix.At(c)
		en.Lookups++
		if e.remote != nil && from != to {
			e.leaveRemoteLocked(en, from+e.mu.ix.Path(c)[len(to):])
		}
		if from == to || en.Tiers|en.Storing == 0 && (c == id || en.Flags&flagSynced == 0) {
			continue
		}
		if c != id && en.Storing == 0 && en.Flags&flagSynced == 0 {
			tree.addLocked(e, c, en)
			continue
		}
		old, _ := block.ParseKey(from + e.mu.ix.Path(c)[len(to):])
		if c != id && en.Flags&flagSynced != 0 {
			e.leaveSyncedLocked(c, en, old)
		}
		e.updateCopiesLocked(c, en, old)
	}
	e.queueMovedLocked(&tree)
	return moved, nil
}

// leaveSyncedLocked has a tier drop what fsync left under the name that a block had
// before the rename of a directory above it, and that is not the block.
func (e *Engine) leaveSyncedLocked(id index.ID, en *index.Entry, old block.Key) {
	s := e.keeper()
	if en.Tiers&s.bit == 0 && e.begunLocked(id, en)&s.bit == 0 {
		s.queueKeyedLocked(keyedOp{key: old})
		en.Flags &^= flagSynced
	}
}

// ownBytes gives a version that has no bytes of its own, and whose base has lost
// the name, a copy to be renamed with.
func (e *Engine) ownBytes(id index.ID, f *File, o *RenameOptions) error {
	e.mu.Lock()
	copied := e.mu.files[id] == f && f.base != 0 && f.base != e.mu.ix.Lookup(o.Parent, o.Name)
	e.mu.Unlock()
	if !copied {
		return nil
	}
	return f.prepare(context.Background(), 0, false)
}

// bytesless reports whether f is a version of a hollow block, made to be emptied, that
// was not yet opened: there are no bytes to rename but the block's own.
func (e *Engine) bytesless(f *File) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return f.base != 0 && f.file == nil
}

// settle ends the write side of a file whose last handle was closed before its
// rename committed it.
func (e *Engine) settle(id index.ID, g *gone) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.files[id] != nil {
		e.settleLocked(id, e.mu.ix.At(id), g)
	}
}

// renameSource finds what moves, and its write side if it has one. The caller has
// one reference to it, to be given back with Forget.
func (e *Engine) renameSource(o *RenameOptions) (id index.ID, f *File, err error) {
	e.withNames(o.TID, func(ow *owners) uint32 {
		var unknown uint32
		if id, _, unknown = e.resolveLocked(o.Parent, o.Name, ow); unknown != 0 {
			return unknown
		}
		if id == 0 {
			err = block.ErrNotFound
			return 0
		}
		if f = e.mu.files[id]; f != nil && f.poisoned != nil {
			err = errors.Join(block.ErrPoisoned, f.poisoned)
			return 0
		}
		e.mu.ix.At(id).Lookups++
		return 0
	})
	return id, f, err
}

func (e *Engine) renameLocked(id index.ID, f *File, o *RenameOptions, size, mtime int64, g *gone) error {
	if err := e.checkNewLocked(o.NewParent, o.NewName); err != nil {
		return err
	}
	ix := e.mu.ix
	en := ix.At(id)
	isDir := en.Mode&modeType == modeDir
	if isDir && ix.Within(o.NewParent, id) {
		return block.ErrLoop
	}
	k := nameKey{o.NewParent, o.NewName}
	target := e.findLocked(k.parent, k.name)
	if target == id {
		return nil
	}
	if err := e.checkTargetLocked(target, isDir, o.NoReplace, g); err != nil {
		return err
	}
	if err := e.movableLocked(id, en); err != nil {
		return err
	}
	if !isDir {
		if err := e.moveGroupLocked(id, en, e.groupOfLocked(k.parent, k.name), target, g); err != nil {
			return err
		}
		target = ix.Lookup(k.parent, k.name) // its group may have evicted it
	}
	old := ix.Path(id)
	e.mu.actor = o.TID
	e.moveNameLocked(id, f, o, target, g)
	if isDir || en.Flags&flagUncommitted == 0 {
		e.renamedVerdictLocked(old, id)
	}
	e.mu.actor = 0
	en.Ctime = e.now()
	was := en.Seq
	en.Seq = e.nextSeqLocked()
	switch temp := e.isTempLocked(k.parent, k.name); {
	case isDir:
		e.renamedDirLocked(id, en)
		e.renamedLocked(DirRenamed, id, en, old, g)
		e.shrinkLocked(e.mu.groups[e.groupOfLocked(id, "")], g)
		return nil
	case en.Flags&flagUncommitted != 0 && !temp:
		en.Flags &^= flagTemp
		e.publishLocked(f, en, size, mtime, g)
	default:
		en.Flags &^= flagTemp
		if temp {
			en.Flags |= flagTemp
		}
		if en.Flags&flagUncommitted == 0 {
			e.renamedLocked(BlockRenamed, id, en, old, g)
			e.retargetLocked(id, id, was, en.Seq)
			if p := e.mu.promotions[id]; p != nil && p.seq == was {
				p.seq = en.Seq
			}
			if f == nil || f.writers == 0 {
				e.cascadeLocked(id, en)
			}
		}
	}
	e.classifyLocked(id, en)
	return nil
}

// renamedLocked tells of a rename from the path old.
func (e *Engine) renamedLocked(kind EventKind, id index.ID, en *index.Entry, old string, g *gone) {
	from, _ := block.ParseKey(old)
	to, _ := block.ParseKey(e.mu.ix.Path(id))
	e.events.add(Event{Time: time.Unix(0, en.Ctime), Kind: kind, Key: to, From: from, Size: en.Size})
	if e.remote == nil {
		return
	}
	if kind == BlockRenamed {
		en.Flags &^= flagFetched // another version
		e.far.Bury([]Grave{{Path: old, Seq: en.Seq}})
		e.publishedLocked(id, en, math.MaxUint64, true, g)
	}
	e.ownDirsLocked(id)
}

// renumberLocked makes what was below a directory that has moved new versions: those of
// old may have graves under the new name. Under the old one they get graves, and the
// directory after what was in it, so that it is empty for who learns of that. Nobody else
// has the directory, so that a look-up cannot find any of it before that.
func (e *Engine) renumberLocked(id index.ID, moved []index.ID, from, to string, g *gone) {
	for i := len(moved) - 1; i >= 0; i-- {
		c := moved[i]
		en := e.mu.ix.At(c)
		if en.Flags&flagUncommitted != 0 {
			continue
		}
		if c != id {
			e.renumberOneLocked(c, en)
		}
		g.graves = append(g.graves, Grave{
			Path: from + e.mu.ix.Path(c)[len(to):], Dir: en.Mode&modeType == modeDir, Seq: en.Seq,
		})
	}
}

func (e *Engine) renumberOneLocked(id index.ID, en *index.Entry) {
	was := en.Seq
	en.Seq = e.nextSeqLocked()
	if en.Mode&modeType == modeDir {
		return
	}
	en.Flags &^= flagFetched
	e.retargetLocked(id, id, was, en.Seq)
	if p := e.mu.promotions[id]; p != nil && p.seq == was {
		p.seq = en.Seq
	}
	if f := e.mu.files[id]; f != nil {
		f.begun = max(f.begun, en.Seq)
	}
	if f := e.mu.files[id]; (f == nil || f.writers == 0) && en.Flags&(flagRefused|flagOnceSeen) == 0 {
		e.cascadeLocked(id, en) // it may have been waiting as the other version
	}
}

// moveNameLocked gives id the new name, and takes it from target, 0 if nobody has it.
func (e *Engine) moveNameLocked(id index.ID, f *File, o *RenameOptions, target index.ID, g *gone) {
	ix := e.mu.ix
	k := nameKey{o.NewParent, o.NewName}
	if ix.Linked(id) {
		en := ix.At(id)
		e.nameLeftLocked(id, en, g)
		if en.Flags&flagSynced != 0 {
			e.removeCopiesLocked(id, en) // under the old name
		}
		e.leaveLimboNamedLocked(nameKey{o.Parent, o.Name}, g)
	}
	shadow := f != nil && f.shadow
	if f != nil && f.sync && ix.At(id).Flags&flagUncommitted != 0 && !e.isTempLocked(k.parent, k.name) {
		e.keepSyncedLocked(ix.At(id))
	}
	if target != 0 && ix.At(id).Mode&modeType == modeDir {
		e.nameLeftLocked(target, ix.At(target), g)
		e.dropDirLocked(target, ix.At(target), g)
	} else if target != 0 {
		e.displaceLocked(target, id, k, g)
	}
	if shadow {
		e.unshadowLocked(f)
		ix.Link(id, k.parent, k.name)
	} else {
		ix.Rename(id, k.parent, k.name)
	}
	e.dropIdleLocked(k, g)
	e.dropIdleLocked(nameKey{o.Parent, o.Name}, g) // else their processes would still find the block there
	e.changedLocked(o.Parent)
	e.changedLocked(o.NewParent)
}

// checkTargetLocked checks that what has the new name may be replaced.
func (e *Engine) checkTargetLocked(target index.ID, isDir, noReplace bool, g *gone) error {
	if target == 0 {
		return nil
	}
	tdir := e.mu.ix.At(target).Mode&modeType == modeDir
	switch {
	case noReplace:
		return block.ErrExist
	case isDir && !tdir:
		return block.ErrNotDir
	case !isDir && tdir:
		return block.ErrIsDir
	case tdir && (e.mu.ix.Children(target) > 0 || e.clearDirLocked(target, g)):
		return block.ErrNotEmpty
	}
	return nil
}

// renamedDirLocked follows a directory's rename: what is below it may have
// changed group, and whether its name makes what is below temporary.
func (e *Engine) renamedDirLocked(id index.ID, en *index.Entry) {
	ix := e.mu.ix
	e.markDirLocked(id, en)
	ix.Descend(id, func(c index.ID, ce *index.Entry) bool {
		if ce.Mode&modeType == modeDir {
			e.markDirLocked(c, ce)
		} else {
			e.regroupLocked(c, ce, e.groupOfLocked(ix.Parent(c), ix.Name(c)))
		}
		return true
	})
	for k, waiting := range e.mu.shadows { // versions that wait for a name there
		if !ix.Valid(k.parent) || !ix.Within(k.parent, id) {
			continue
		}
		for _, s := range waiting {
			e.regroupLocked(s, ix.At(s), e.groupOfLocked(k.parent, k.name))
		}
	}
}

// moveGroupLocked accounts a file to another group, in which it will replace
// target. It fails with ErrQuota if that has no room.
func (e *Engine) moveGroupLocked(id index.ID, en *index.Entry, to uint32, target index.ID, g *gone) error {
	if en.Group == to {
		return nil
	}
	need := e.chargeLocked(id, en)
	if target != 0 {
		need -= e.chargeLocked(target, e.mu.ix.At(target))
	}
	if ok, _ := e.quotaLocked(e.mu.groups[to], need, true, g); need > 0 && !ok {
		return block.ErrQuota
	}
	e.regroupLocked(id, en, to)
	return nil
}

// regroupLocked accounts a file to another group.
func (e *Engine) regroupLocked(id index.ID, en *index.Entry, to uint32) {
	if en.Group == to {
		return
	}
	from, gr := e.mu.groups[en.Group], e.mu.groups[to]
	charge := e.chargeLocked(id, en)
	if en.Flags&flagPolicy != 0 {
		en.Flags &^= flagPolicy
		e.orderLocked(from).Remove(uint32(id))
	}
	from.usedBytes -= charge
	gr.usedBytes += charge
	en.Group = to
	e.classifyLocked(id, en)
}
