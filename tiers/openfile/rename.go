package openfile

import (
	"context"
	"errors"
	"math"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/transfer"
)

// RenameOptions names the file or directory that moves, and where to.
type RenameOptions struct {
	Parent, NewParent index.ID
	Name, NewName     string
	By                state.Caller
	NoReplace         bool // RENAME_NOREPLACE: fail with ErrExist if the new name is taken

	link index.ID // not 0: this file is to keep the old name as a link
}

func (o *RenameOptions) from() catalog.Name { return catalog.Name{Parent: o.Parent, Name: o.Name} }
func (o *RenameOptions) to() catalog.Name {
	return catalog.Name{Parent: o.NewParent, Name: o.NewName}
}

// renaming is one try of a rename.
type renaming struct {
	*RenameOptions
	id          index.ID // what the name meant a moment ago
	f           *File    // its write side, nil if it has none
	size, mtime int64    // of its bytes
}

// renameTries bounds how often Rename looks again because the name has come to mean another file.
const renameTries = 16

// Rename moves the file or directory that the name means to the caller, and replaces the one that has the new name.
// A file that gets the name of a block is committed with the bytes written so far; later writes through its open
// handles still land. If another process still writes it, that process's last close commits it.
//
// Rename fetches nothing from other nodes, and asks them only whether they have a directory of this node, if the Remote
// is a driver.Asker that does not know. A block that only they have and a directory that they also have cannot be
// renamed, nor can such a directory be replaced, nor a block that is only in a tier which cannot rename it (no
// driver.Recorder). Rename fails with EXDEV then, and mv copies.
//
// It fails with ErrNotFound, ErrExist, ErrIsDir, ErrNotDir, ErrNotEmpty, ErrLoop, ErrReserved, ErrInvalid (also for
// a size that is not the block size of a strict group), ErrNameTooLong, ErrPoisoned, ErrNoSpace, ErrQuota.
//
// A rename that commits waits for the block's copy as Flush does.
func (fl *Files) Rename(ctx context.Context, o RenameOptions) error {
	for tries := 0; ; tries++ {
		r, err := fl.renameSource(&o)
		if err != nil {
			return err
		}
		unpin, err := fl.bringUp(ctx, r)
		if err != nil {
			fl.names.Forget(r.id, 1)
			return err
		}
		told, again, err := fl.tryRename(r)
		unpin()
		if err == nil && !again && r.f != nil {
			err = fl.renamed(ctx, r)
		}
		if err != nil {
			fl.tellAsker(told)
		}
		fl.names.Forget(r.id, 1)
		if !again || tries == renameTries {
			return err
		}
	}
}

// bringUp brings a block of this node that is to get a plain name into memory, because plain files are only there.
// The block stays there until unpin is called. bringUp also announces that the rename will take long, and has
// movableLocked know which directories other nodes have.
func (fl *Files) bringUp(ctx context.Context, r *renaming) (unpin func(), err error) {
	var unknown []string
	fl.Mu.Lock()
	en := fl.Mu.Ix.At(r.id)
	if en.IsDir() {
		unknown = fl.names.UnknownDirsLocked(r.id, fl.Mu.Ix.Lookup(r.NewParent, r.NewName))
	}
	populated := en.IsDir() && fl.Mu.Ix.Children(r.id) > 0 // all records below it are written anew
	plain := fl.Mu.Ix.Valid(r.NewParent) && fl.Mu.Ix.Linked(r.id) && fl.Mu.KindOf(r.to()) != draft.Block
	nonresident := plain && fl.NonresidentLocked(r.id, en) && fl.OwnTiers(en) != 0
	fl.Mu.Unlock()
	if populated || nonresident || len(unknown) > 0 {
		state.Announce(r.By.Waits)
	}
	fl.names.Ask(ctx, unknown)
	if !nonresident {
		return func() {}, nil
	}
	switch err := fl.transfer.Promote(ctx, r.id, transfer.Want{Own: true}); {
	case err == nil:
		return func() { fl.names.CloseRead(r.id) }, nil
	case !errors.Is(err, state.ErrStale):
		return nil, state.MissError(err)
	}
	return func() {}, nil
}

// errHollow says that the block to be renamed to a plain name has left memory again.
var errHollow = errors.New("the block is not in memory")

// looseLocked reports whether a new name would lose a file: it is neither in memory nor in a tier of this node that can
// rename it.
func (fl *Files) looseLocked(id index.ID, en *index.Entry) bool {
	return fl.NonresidentLocked(id, en) && fl.OwnTiers(en)&^fl.Anew == 0
}

// movableLocked fails with EXDEV if a rename would lose something that moves with id: memory and the tiers that can
// rename it have it not. So it does if other nodes have the directory id, one below it, or the one that id is to replace.
func (fl *Files) movableLocked(id index.ID, en *index.Entry, target index.ID) error {
	if fl.RemoteBit()|fl.Anew == 0 {
		return nil
	}
	loose := fl.looseLocked(id, en)
	if en.IsDir() {
		if fl.Remote != nil {
			_, loose = fl.names.Locate(fl.Mu.Ix.Path(id))
			if target != 0 && !loose {
				_, loose = fl.names.Locate(fl.Mu.Ix.Path(target))
			}
		}
		fl.Mu.Ix.Descend(id, func(c index.ID, ce *index.Entry) bool {
			loose = loose || fl.looseLocked(c, ce) || ce.IsDir() && ce.Tiers()&fl.RemoteBit() != 0
			return !loose
		})
	}
	if loose {
		return os.NewSyscallError("rename", unix.EXDEV)
	}
	return nil
}

// renamed waits, after a commit by rename, for what such a commit waits for.
func (fl *Files) renamed(ctx context.Context, r *renaming) error {
	fl.Mu.Lock()
	committed := fl.Mu.Ix.At(r.id).Committed()
	sync := committed && r.f.sync
	if committed {
		r.f.sync = false
	}
	fl.Mu.Unlock()
	if !committed {
		return nil
	}
	return fl.transfer.AfterCommit(ctx, r.By.Waits, r.id, sync)
}

// tryRename is one try of Rename. It returns the names that it told the kernel of. again says that the name means
// something else now and must be looked up again.
func (fl *Files) tryRename(r *renaming) (told []state.GoneName, again bool, err error) {
	if r.f == nil {
		return fl.renameOpen(r)
	}
	gone := r.f.withFile(func(*os.File) error { // opened once for all the steps that need it
		told, again, err = fl.renameOpen(r)
		return nil
	})
	if gone != nil {
		return nil, true, block.ErrNotFound
	}
	return told, again, err
}

// renameOpen is tryRename with the file of r.f, if it has one, open.
func (fl *Files) renameOpen(r *renaming) (told []state.GoneName, again bool, err error) {
	var g state.Gone
	moved, again, err := fl.move(r, &g)
	for _, c := range moved {
		err = errors.Join(err, fl.WriteRecord(c, nil))
		fl.settle(c, &g)
		fl.names.Forget(c, 1)
	}
	fl.Finish(&g)
	return g.Names, again, err
}

// move is tryRename without records, settling and telling. It returns the entries that moved, as moveLocked does.
func (fl *Files) move(r *renaming, g *state.Gone) (moved []index.ID, again bool, err error) {
	if f := r.f; f != nil {
		f.commits.Lock()
		defer f.commits.Unlock()
		if r.size, r.mtime, err = f.fstat(); err != nil {
			return nil, true, block.ErrNotFound
		}
		if err := fl.checkOverrun(f, r.size); err != nil {
			return nil, false, err
		}
	}
	fl.Mu.Lock()
	defer fl.Mu.Unlock()
	if r.f == nil {
		r.size, r.mtime = fl.Mu.Ix.At(r.id).Size(), fl.Mu.Ix.At(r.id).Mtime()
	}
	got, _ := fl.names.ResolveLocked(r.Parent, r.Name, r.By, g)
	if got != r.id || fl.fileLocked(r.id) != r.f || fl.Mu.Ix.Linked(r.id) && fl.ExpiredLocked(r.id) {
		fl.names.DropExpiredLocked(r.Parent, r.Name, g)
		again, err = true, block.ErrNotFound
	} else {
		fl.names.DropExpiredLocked(r.NewParent, r.NewName, g)
		if moved, err = fl.moveLocked(r, g); err == errHollow {
			again, err = true, block.ErrNotFound
		}
	}
	return moved, again, err
}

// moveLocked moves r.id and, if it is a directory, everything below it. It returns the entries that moved. The caller
// has one reference to each.
func (fl *Files) moveLocked(r *renaming, g *state.Gone) (moved []index.ID, err error) {
	from, begin := fl.ChildPathLocked(r.Parent, r.Name), fl.Now()
	if r.f != nil && r.f.owner == r.By.Proc() {
		begin = r.f.made
	}
	fl.StoresLocked(r.NewParent, r.NewName, r.By.Proc(), begin)
	if err := fl.renameLocked(r, g); err != nil {
		return nil, err
	}
	moved = append(moved, r.id)
	fl.Mu.Ix.Descend(r.id, func(c index.ID, _ *index.Entry) bool {
		moved = append(moved, c)
		return true
	})
	for _, c := range moved {
		fl.ApplyLocked(catalog.Referred{ID: c})
	}
	if to := fl.Mu.Ix.Path(r.id); from != to {
		fl.followLocked(moved, from, to, g)
	}
	return moved, nil
}

// followLocked has tiers and other nodes follow moved, which is a file or directory that was renamed and everything
// below it. from and to are its paths.
func (fl *Files) followLocked(moved []index.ID, from, to string, g *state.Gone) {
	if fl.Remote != nil && fl.Mu.Ix.At(moved[0]).IsDir() {
		fl.renumberLocked(moved, from, to, g)
	}
	was := func(id index.ID) string { return from + fl.Mu.Ix.Path(id)[len(to):] }
	tree := lane.Tree{From: from, To: to}
	for i, c := range moved {
		en := fl.Mu.Ix.At(c)
		if fl.Remote != nil {
			fl.LeaveRemoteLocked(c, en, was(c))
		}
		if len(fl.Finders) > 0 {
			fl.transfer.DisownLocked(was(c), en.Tiers()|fl.BegunLocked(c, en))
		}
		synced := i > 0 && en.Synced()
		switch {
		case en.Tiers()|en.Storing() == 0 && !synced: // there are no copies
		case i > 0 && en.Storing() == 0 && !synced:
			tree.Add(fl.Mu.Ix, c, en.Tiers(), fl.FileAttrs(c, en))
		default:
			old, _ := block.ParseKey(was(c))
			if s := fl.Keeper(); synced && (en.Tiers()|fl.BegunLocked(c, en))&s.Bit == 0 { // what fsync left there is not the block
				s.RemoveLocked(old)
				fl.ApplyLocked(catalog.Lost{ID: c, Promise: true})
			}
			fl.transfer.UpdateCopiesLocked(c, en, old, true)
		}
	}
	for _, s := range fl.Tiers {
		s.TreeLocked(&tree)
	}
}

// settle ends the write side of a file whose last handle was closed before its rename committed it.
func (fl *Files) settle(id index.ID, g *state.Gone) {
	fl.Mu.Lock()
	defer fl.Mu.Unlock()
	en := fl.Mu.Ix.At(id)
	if f := fl.fileLocked(id); f != nil && len(f.handles) == 0 && en.Committed() {
		fl.endedLocked(f, en, g)
	}
}

// renameSource finds the entry that moves, and its write side if it has one. The caller has one reference to the
// entry, and gives it back with Forget.
func (fl *Files) renameSource(o *RenameOptions) (r *renaming, err error) {
	var g state.Gone
	fl.Mu.Lock()
	id, _ := fl.names.ResolveLocked(o.Parent, o.Name, o.By, &g)
	f := fl.fileLocked(id)
	if id == 0 || o.link != 0 && o.link != id {
		err = block.ErrNotFound
	} else {
		fl.ApplyLocked(catalog.Referred{ID: id})
	}
	fl.Mu.Unlock()
	fl.Finish(&g)
	return &renaming{RenameOptions: o, id: id, f: f}, err
}

func (fl *Files) renameLocked(r *renaming, g *state.Gone) error {
	if err := fl.names.CheckNewLocked(r.NewParent, r.NewName); err != nil {
		return err
	}
	id, en := r.id, fl.Mu.Ix.At(r.id)
	isDir := en.IsDir()
	if isDir && fl.Mu.Ix.Within(r.NewParent, id) {
		return block.ErrLoop
	}
	target := fl.names.FindLocked(r.NewParent, r.NewName, g)
	if target == id || r.to() == r.from() {
		return nil
	}
	if fl.names.IsLinkLocked(r.from()) || fl.names.IsLinkLocked(r.to()) {
		return os.NewSyscallError("rename", unix.EXDEV)
	}
	if err := fl.checkTargetLocked(target, isDir, r, g); err != nil {
		return err
	}
	if err := fl.movableLocked(id, en, target); err != nil {
		return err
	}
	if err := fl.pinsFitLocked(r, target, isDir); err != nil {
		return err
	}
	if !isDir {
		return fl.renameFileLocked(r, g)
	}
	old := fl.ChildPathLocked(r.Parent, r.Name)
	fl.moveNameLocked(r, target, false, catalog.Same, g)
	fl.renamedLocked(event.DirRenamed, r, old, g)
	fl.ShrinkLocked(fl.Mu.Room.Group(fl.Mu.GroupOf(id)).Bill(), g)
	return nil
}

// pinsFitLocked fails with ErrQuota if a group would get more that users have pinned than it may have.
func (fl *Files) pinsFitLocked(r *renaming, target index.ID, isDir bool) error {
	if !isDir && !fl.Mu.Ix.At(r.id).Pinned() {
		return nil
	}
	to := fl.Mu.Room.Group(fl.Mu.GroupOf(r.NewParent))
	if isDir && r.NewParent == index.Root {
		to = fl.Mu.Room.Find(block.GroupID(r.NewName))
	}
	if to == nil {
		return nil
	}
	pinned, quota := to.Pins()
	if quota == 0 {
		return nil
	}
	var more int64
	add := func(id index.ID, en *index.Entry) bool {
		if fl.Mu.Room.Group(en.Group()) != to {
			more += fl.Mu.PinnedBytes(id, en)
		}
		return true
	}
	add(r.id, fl.Mu.Ix.At(r.id))
	fl.Mu.Ix.Descend(r.id, add)
	if more > 0 && target != 0 {
		more -= fl.Mu.PinnedBytes(target, fl.Mu.Ix.At(target))
	}
	if more > 0 && pinned+more > quota {
		return block.ErrQuota
	}
	return nil
}

// renameFileLocked is renameLocked for a file.
func (fl *Files) renameFileLocked(r *renaming, g *state.Gone) error {
	id, k := r.id, r.to()
	en, to, group := fl.Mu.Ix.At(id), fl.Mu.KindOf(k), fl.Mu.GroupOf(k.Parent)
	move, err := fl.moveOfLocked(r, en, to, group)
	if err == nil {
		err = fl.linkableLocked(r, en, move)
	}
	if err != nil {
		return err
	}
	if err := fl.memory.MoveGroupLocked(id, en, group, fl.Mu.Ix.Lookup(k.Parent, k.Name), g); err != nil {
		return err
	}
	target := fl.Mu.Ix.Lookup(k.Parent, k.Name) // the eviction for its group may have removed the target
	old, seq := fl.ChildPathLocked(r.Parent, r.Name), en.Seq()
	if move == draft.Withdraw {
		fl.leaveBlocksLocked(id, en)
	}
	synced := r.f != nil && r.f.sync && to != draft.Temp && move != draft.Postpone // what is not committed replaces no copy
	ch := fl.moveNameLocked(r, target, synced, becomes(move, to), g)
	switch move {
	case draft.Follow:
		fl.renamedLocked(event.Renamed, r, old, g)
		fl.transfer.RenumberedLocked(id, seq)
		if r.f == nil {
			fl.transfer.CascadeLocked(id, en)
		}
	case draft.Postpone:
		fl.postponeLocked(r, ch.Was != catalog.Uncounted)
	default:
		fl.convertLocked(r, en, to, g)
	}
	if r.link != 0 {
		fl.names.LinkLocked(r.from(), id)
	}
	return nil
}

// moveOfLocked returns what the rename to a name of the kind to is, or why the file cannot get that name in group.
func (fl *Files) moveOfLocked(r *renaming, en *index.Entry, to draft.Kind, group uint32) (draft.Move, error) {
	was := fl.stateLocked(r.id, en, &r.By)
	move := draft.Rename(was, to)
	switch err := fl.Mu.Room.Group(group).CheckSize(r.size); {
	case was.Unopened():
		return move, block.ErrNotFound
	case r.f != nil && r.f.poisoned != nil && was.Kind != draft.Plain:
		return move, errors.Join(block.ErrPoisoned, r.f.poisoned)
	case move == draft.Postpone: // the close checks
	case move == draft.Withdraw && fl.NonresidentLocked(r.id, en):
		return move, errHollow // the block has to come up first
	case to == draft.Block && err != nil:
		return move, err
	}
	return move, nil
}

// becomes returns what a move to a name of the kind to makes of a file, before its bytes are committed.
func becomes(move draft.Move, to draft.Kind) catalog.Becomes {
	switch {
	case move == draft.Follow:
		return catalog.Same
	case move == draft.Postpone:
		return catalog.Hidden
	case to == draft.Block:
		return catalog.Private
	case move == draft.Withdraw:
		return catalog.Withdrawn
	}
	return catalog.Shown
}

// convertLocked makes a file that was moved what a name of the kind to demands: a new block, or a file that is none.
func (fl *Files) convertLocked(r *renaming, en *index.Entry, to draft.Kind, g *state.Gone) {
	f := r.f
	if f == nil && to != draft.Plain { // a block without one is from an earlier daemon
		f = fl.NewFileLocked(r.id, en)
	}
	if to == draft.Block {
		fl.publishLocked(f, en, r.size, r.mtime, g)
	}
}

// leaveBlocksLocked follows a block that is about to get a name that other tiers and nodes do not know.
func (fl *Files) leaveBlocksLocked(id index.ID, en *index.Entry) {
	if fl.Remote != nil {
		fl.Far.Bury([]driver.Grave{{Path: fl.Mu.Ix.Path(id), Seq: fl.NextSeqLocked()}})
	}
	if len(fl.Finders) > 0 {
		fl.transfer.DisownLocked(fl.Mu.Ix.Path(id), en.Tiers()|en.Storing())
	}
	fl.transfer.DropCopiesLocked(id, en)
}

// postponeLocked hides a file that was moved to the name of a block while another process writes it: that process does
// not know the name, and would find a part of the bytes there. Its last close commits the file. seen: all processes saw
// it before.
func (fl *Files) postponeLocked(r *renaming, seen bool) {
	f := r.f
	f.owner, f.hidden = f.busyLocked(r.By.Proc()).by.Proc(), true
	if seen {
		f.recorded = true // a crash must not bring it back
	}
}

// renamedLocked tells of a rename from the path old.
func (fl *Files) renamedLocked(kind event.Kind, r *renaming, old string, g *state.Gone) {
	id, en := r.id, fl.Mu.Ix.At(r.id)
	fl.RenamedVerdictLocked(old, id, r.By.Actor())
	from, _ := block.ParseKey(old)
	to, _ := block.ParseKey(fl.Mu.Ix.Path(id))
	guard := fl.GuardLocked(fl.GuardLocked(nil, id), fl.Mu.Ix.Walk(old[:max(strings.LastIndexByte(old, '/'), 0)]))
	fl.EventLog.Add(event.Event{Time: time.Unix(0, en.Ctime()), Kind: kind, Key: to, From: from, Size: en.Size(), Guard: guard})
	if fl.Remote == nil {
		return
	}
	if kind == event.Renamed {
		fl.ApplyLocked(catalog.Versioned{ID: id, Seq: en.Seq(), Own: true}) // another version
		fl.Far.Bury([]driver.Grave{{Path: old, Seq: en.Seq()}})
		fl.names.PublishedLocked(id, en, math.MaxUint64, true, g)
	}
	fl.names.OwnDirsLocked(id)
}

// renumberLocked gives everything below a directory, the first of moved, a new version: the old versions may have graves
// under the new name. The old name gets graves, the directory's after those of its files, so that nodes that learn
// of it find it empty. No other node has the directory, so that a look-up finds none of its files before that.
func (fl *Files) renumberLocked(moved []index.ID, from, to string, g *state.Gone) {
	for i := len(moved) - 1; i >= 0; i-- {
		c := moved[i]
		en := fl.Mu.Ix.At(c)
		if !en.Committed() {
			continue
		}
		if i > 0 {
			fl.renumberOneLocked(c, en)
		}
		g.Graves = append(g.Graves, driver.Grave{
			Path: from + fl.Mu.Ix.Path(c)[len(to):], Dir: en.IsDir(), Seq: en.Seq(),
		})
	}
}

func (fl *Files) renumberOneLocked(id index.ID, en *index.Entry) {
	was := en.Seq()
	fl.ApplyLocked(catalog.Versioned{ID: id, Seq: fl.NextSeqLocked()})
	if en.IsDir() {
		return
	}
	fl.ApplyLocked(catalog.Versioned{ID: id, Seq: en.Seq(), Own: true})
	fl.transfer.RenumberedLocked(id, was)
	if f := fl.fileLocked(id); f != nil {
		f.begun = max(f.begun, en.Seq())
	}
	if fl.Mu.Files[id] == nil && en.Flags()&(index.FlagRefused|index.FlagOnceSeen) == 0 {
		fl.transfer.CascadeLocked(id, en) // the store may have been waiting as the other version
	}
}

// moveNameLocked gives r.id the new name, and takes the name from target, 0 if it is free. synced: a process has called
// fsync on r.id, and it is a block from now on. as says what a file is from now on.
func (fl *Files) moveNameLocked(r *renaming, target index.ID, synced bool, as catalog.Becomes, g *state.Gone) catalog.Change {
	ix, id, to := fl.Mu.Ix, r.id, r.to()
	en := ix.At(id)
	if en.Flags()&(index.FlagSynced|index.FlagUncommitted) != 0 {
		fl.transfer.RemoveCopiesLocked(id, en) // under the old name
	}
	if synced {
		fl.keepSyncedLocked(id, en)
	}
	by := r.By.Proc()
	switch {
	case target == 0:
	case en.IsDir():
		fl.names.DropDirLocked(target, ix.At(target), &by, g)
	default:
		fl.displaceLocked(target, id, &r.By, g)
	}
	return fl.ChangeLocked(&catalog.Renamed{
		ID: id, Parent: to.Parent, Name: to.Name, Now: fl.Now(), Seq: fl.NextSeqLocked(), By: r.By.Actor(),
		Becomes: as, Size: r.size, Mtime: r.mtime,
	}, &by, g)
}

// checkTargetLocked checks that the file or directory with the new name may be replaced.
func (fl *Files) checkTargetLocked(target index.ID, isDir bool, r *renaming, g *state.Gone) error {
	if target == 0 {
		return nil
	}
	tdir := fl.Mu.Ix.At(target).IsDir()
	switch {
	case r.NoReplace:
		return block.ErrExist
	case isDir && !tdir:
		return block.ErrNotDir
	case !isDir && tdir:
		return block.ErrIsDir
	case tdir && !fl.names.EmptyLocked(target, r.By, g):
		return block.ErrNotEmpty
	}
	return nil
}

// tellAsker tells the asking kernel, too, of names whose change has failed: that kernel believes it happened.
func (fl *Files) tellAsker(names []state.GoneName) {
	for _, n := range names {
		if n.By != (state.Process{}) {
			fl.Opts.Invalidate(state.Process{}, n.Parent, n.ID, n.Name)
		}
	}
}
