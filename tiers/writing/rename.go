package writing

import (
	"context"
	"errors"
	"math"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/state"
)

// renames is the room of renames of files and directories.
type renames struct{ *core }

// RenameOptions names the file or directory that moves, and where to.
type RenameOptions struct {
	Parent, NewParent index.ID
	Name, NewName     string
	By                state.Caller
	NoReplace         bool // RENAME_NOREPLACE: fail with ErrExist if the new name is taken
}

func (o *RenameOptions) from() state.NameKey { return state.NameKey{Parent: o.Parent, Name: o.Name} }
func (o *RenameOptions) to() state.NameKey {
	return state.NameKey{Parent: o.NewParent, Name: o.NewName}
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
func (e *renames) Rename(ctx context.Context, o RenameOptions) error {
	for tries := 0; ; tries++ {
		r, err := e.renameSource(&o)
		if err != nil {
			return err
		}
		unpin, err := e.bringUp(ctx, r)
		if err != nil {
			e.names.Forget(r.id, 1)
			return err
		}
		told, again, err := e.tryRename(r)
		unpin()
		if err == nil && !again && r.f != nil {
			err = e.renamed(ctx, r)
		}
		if err != nil {
			e.tellAsker(told)
		}
		e.names.Forget(r.id, 1)
		if !again || tries == renameTries {
			return err
		}
	}
}

// bringUp brings a block of this node that is to get a plain name into memory, because plain files are only there.
// The block stays there until unpin is called. bringUp also announces that the rename will take long, and has
// movableLocked know which directories other nodes have.
func (e *renames) bringUp(ctx context.Context, r *renaming) (unpin func(), err error) {
	var unknown []string
	e.Mu.Lock()
	en := e.Mu.Ix.At(r.id)
	if en.Mode&state.ModeType == state.ModeDir {
		unknown = e.elsewhere.UnknownDirsLocked(r.id, e.Mu.Ix.Lookup(r.NewParent, r.NewName))
	}
	populated := en.Mode&state.ModeType == state.ModeDir && e.Mu.Ix.Children(r.id) > 0 // all records below it are written anew
	plain := e.Mu.Ix.Valid(r.NewParent) && e.Mu.Ix.Linked(r.id) && e.kindOfLocked(r.to()) != draft.Block
	hollow := plain && e.HollowLocked(r.id, en) && e.OwnTiers(en) != 0
	e.Mu.Unlock()
	if populated || hollow || len(unknown) > 0 {
		state.Announce(r.By.Waits)
	}
	e.elsewhere.Ask(ctx, unknown)
	if !hollow {
		return func() {}, nil
	}
	switch err := e.lower.PromoteOwn(ctx, r.id); {
	case err == nil:
		return func() { e.opens.CloseRead(r.id) }, nil
	case !errors.Is(err, state.ErrStale):
		return nil, state.MissError(err)
	}
	return func() {}, nil
}

// errHollow says that the block to be renamed to a plain name has left memory again.
var errHollow = errors.New("the block is not in memory")

// looseLocked reports whether a new name would lose a file: it is neither in memory nor in a tier of this node that can
// rename it.
func (e *renames) looseLocked(id index.ID, en *index.Entry) bool {
	return e.HollowLocked(id, en) && e.OwnTiers(en)&^e.Anew == 0
}

// movableLocked fails with EXDEV if a rename would lose something that moves with id: memory and the tiers that can
// rename it have it not. So it does if other nodes have the directory id, one below it, or the one that id is to replace.
func (e *renames) movableLocked(id index.ID, en *index.Entry, target index.ID) error {
	if e.RemoteBit()|e.Anew == 0 {
		return nil
	}
	loose := e.looseLocked(id, en)
	if en.Mode&state.ModeType == state.ModeDir {
		if e.Remote != nil {
			_, loose = e.elsewhere.Locate(e.Mu.Ix.Path(id))
			if target != 0 && !loose {
				_, loose = e.elsewhere.Locate(e.Mu.Ix.Path(target))
			}
		}
		e.Mu.Ix.Descend(id, func(c index.ID, ce *index.Entry) bool {
			loose = loose || e.looseLocked(c, ce) || ce.Mode&state.ModeType == state.ModeDir && ce.Tiers&e.RemoteBit() != 0
			return !loose
		})
	}
	if loose {
		return os.NewSyscallError("rename", unix.EXDEV)
	}
	return nil
}

// renamed waits, after a commit by rename, for what such a commit waits for.
func (e *renames) renamed(ctx context.Context, r *renaming) error {
	e.Mu.Lock()
	committed := e.Mu.Ix.At(r.id).Flags&state.FlagUncommitted == 0
	sync := committed && r.f.sync
	if committed {
		r.f.sync = false
	}
	e.Mu.Unlock()
	if !committed {
		return nil
	}
	return e.lower.AfterCommit(ctx, r.By.Waits, r.id, sync)
}

// tryRename is one try of Rename. It returns the names that it told the kernel of. again says that the name means
// something else now and must be looked up again.
func (e *renames) tryRename(r *renaming) (told []state.GoneName, again bool, err error) {
	if r.f == nil {
		return e.renameOpen(r)
	}
	gone := r.f.withFile(func(*os.File) error { // opened once for all the steps that need it
		told, again, err = e.renameOpen(r)
		return nil
	})
	if gone != nil {
		return nil, true, block.ErrNotFound
	}
	return told, again, err
}

// renameOpen is tryRename with the file of r.f, if it has one, open.
func (e *renames) renameOpen(r *renaming) (told []state.GoneName, again bool, err error) {
	var g state.Gone
	moved, again, err := e.move(r, &g)
	for _, c := range moved {
		err = errors.Join(err, e.drafts.WriteRecord(c, nil))
		e.settle(c, &g)
		e.names.Forget(c, 1)
	}
	e.Finish(&g)
	return g.Names, again, err
}

// move is tryRename without records, settling and telling. It returns the entries that moved, as moveLocked does.
func (e *renames) move(r *renaming, g *state.Gone) (moved []index.ID, again bool, err error) {
	if f := r.f; f != nil {
		f.commits.Lock()
		defer f.commits.Unlock()
		if r.size, r.mtime, err = f.fstat(); err != nil {
			return nil, true, block.ErrNotFound
		}
		if err := e.drafts.checkOverrun(f, r.size); err != nil {
			return nil, false, err
		}
	}
	e.Mu.Lock()
	defer e.Mu.Unlock()
	if r.f == nil {
		r.size, r.mtime = e.Mu.Ix.At(r.id).Size, e.Mu.Ix.At(r.id).Mtime
	}
	got, _ := e.names.ResolveLocked(r.Parent, r.Name, r.By)
	if got != r.id || e.fileLocked(r.id) != r.f || e.Mu.Ix.Linked(r.id) && e.ExpiredLocked(r.id) {
		e.names.DropExpiredLocked(r.Parent, r.Name, g)
		again, err = true, block.ErrNotFound
	} else {
		e.names.DropExpiredLocked(r.NewParent, r.NewName, g)
		if moved, err = e.moveLocked(r, g); err == errHollow {
			again, err = true, block.ErrNotFound
		}
	}
	e.elsewhere.TellOutdatedLocked(g)
	return moved, again, err
}

// moveLocked moves r.id and, if it is a directory, everything below it. It returns the entries that moved. The caller
// has one reference to each.
func (e *renames) moveLocked(r *renaming, g *state.Gone) (moved []index.ID, err error) {
	from, begin := e.ChildPathLocked(r.Parent, r.Name), e.Now()
	if r.f != nil && r.f.owner == r.By.Proc() {
		begin = r.f.made
	}
	e.StoresLocked(r.NewParent, r.NewName, r.By.Proc(), begin)
	if err := e.renameLocked(r, g); err != nil {
		return nil, err
	}
	moved = append(moved, r.id)
	e.Mu.Ix.Descend(r.id, func(c index.ID, _ *index.Entry) bool {
		moved = append(moved, c)
		return true
	})
	for _, c := range moved {
		e.Mu.Ix.At(c).Lookups++
	}
	if to := e.Mu.Ix.Path(r.id); from != to {
		e.followLocked(moved, from, to, g)
	}
	return moved, nil
}

// followLocked has tiers and other nodes follow moved, which is a file or directory that was renamed and everything
// below it. from and to are its paths.
func (e *renames) followLocked(moved []index.ID, from, to string, g *state.Gone) {
	if e.Remote != nil && e.Mu.Ix.At(moved[0]).Mode&state.ModeType == state.ModeDir {
		e.renumberLocked(moved, from, to, g)
	}
	was := func(id index.ID) string { return from + e.Mu.Ix.Path(id)[len(to):] }
	tree := lane.Tree{From: from, To: to}
	for i, c := range moved {
		en := e.Mu.Ix.At(c)
		if e.Remote != nil {
			e.LeaveRemoteLocked(en, was(c))
		}
		if len(e.Finders) > 0 {
			e.lower.DisownLocked(was(c), en.Tiers|e.BegunLocked(c, en))
		}
		synced := i > 0 && en.Flags&state.FlagSynced != 0
		switch {
		case en.Tiers|en.Storing == 0 && !synced: // there are no copies
		case i > 0 && en.Storing == 0 && !synced:
			tree.Add(e.Mu.Ix, c, en.Tiers, state.FileAttrs(e.Mu.Ix, c, en))
		default:
			old, _ := block.ParseKey(was(c))
			if s := e.Keeper(); synced && (en.Tiers|e.BegunLocked(c, en))&s.Bit == 0 { // what fsync left there is not the block
				s.RemoveLocked(old)
				en.Flags &^= state.FlagSynced
			}
			e.lower.UpdateCopiesLocked(c, en, old, true)
		}
	}
	for _, s := range e.Tiers {
		s.TreeLocked(&tree)
	}
}

// settle ends the write side of a file whose last handle was closed before its rename committed it.
func (e *renames) settle(id index.ID, g *state.Gone) {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	if f := e.fileLocked(id); f != nil && len(f.handles) == 0 {
		e.drafts.endedLocked(f, e.Mu.Ix.At(id), g)
	}
}

// renameSource finds the entry that moves, and its write side if it has one. The caller has one reference to the
// entry, and gives it back with Forget.
func (e *renames) renameSource(o *RenameOptions) (r *renaming, err error) {
	var g state.Gone
	e.Mu.Lock()
	id, _ := e.names.ResolveLocked(o.Parent, o.Name, o.By)
	f := e.fileLocked(id)
	switch {
	case id == 0:
		err = block.ErrNotFound
	case f != nil && f.poisoned != nil && e.KindLocked(e.Mu.Ix.At(id)) != draft.Plain:
		err = errors.Join(block.ErrPoisoned, f.poisoned)
	default:
		e.Mu.Ix.At(id).Lookups++
	}
	e.elsewhere.TellOutdatedLocked(&g)
	e.Mu.Unlock()
	e.Finish(&g)
	return &renaming{RenameOptions: o, id: id, f: f}, err
}

func (e *renames) renameLocked(r *renaming, g *state.Gone) error {
	if err := e.names.CheckNewLocked(r.NewParent, r.NewName); err != nil {
		return err
	}
	id, en := r.id, e.Mu.Ix.At(r.id)
	isDir := en.Mode&state.ModeType == state.ModeDir
	if isDir && e.Mu.Ix.Within(r.NewParent, id) {
		return block.ErrLoop
	}
	target := e.elsewhere.FindLocked(r.NewParent, r.NewName)
	if target == id || r.to() == r.from() {
		return nil
	}
	if err := e.checkTargetLocked(target, isDir, r, g); err != nil {
		return err
	}
	if err := e.movableLocked(id, en, target); err != nil {
		return err
	}
	if err := e.pinsFitLocked(r, target, isDir); err != nil {
		return err
	}
	if !isDir {
		return e.renameFileLocked(r, g)
	}
	old := e.ChildPathLocked(r.Parent, r.Name)
	e.moveNameLocked(r, target, false, g)
	en.Ctime, en.Seq = e.Now(), e.NextSeqLocked()
	e.RenamedDirLocked(id, en)
	e.renamedLocked(event.DirRenamed, r, old, g)
	e.drafts.ShrinkLocked(e.Mu.Room.Group(e.GroupOfLocked(id)).Bill(), g)
	return nil
}

// pinsFitLocked fails with ErrQuota if a group would get more that users have pinned than it may have.
func (e *renames) pinsFitLocked(r *renaming, target index.ID, isDir bool) error {
	if !isDir && e.Mu.Ix.At(r.id).Flags&state.FlagPinned == 0 {
		return nil
	}
	to := e.Mu.Room.Group(e.GroupOfLocked(r.NewParent))
	if isDir && r.NewParent == index.Root {
		to = e.Mu.Room.Find(block.GroupID(r.NewName))
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
		if e.Mu.Room.Group(en.Group) != to {
			more += state.PinnedBytes(e.State, id, en)
		}
		return true
	}
	add(r.id, e.Mu.Ix.At(r.id))
	e.Mu.Ix.Descend(r.id, add)
	if more > 0 && target != 0 {
		more -= state.PinnedBytes(e.State, target, e.Mu.Ix.At(target))
	}
	if more > 0 && pinned+more > quota {
		return block.ErrQuota
	}
	return nil
}

// renameFileLocked is renameLocked for a file.
func (e *renames) renameFileLocked(r *renaming, g *state.Gone) error {
	id, k := r.id, r.to()
	en, to, group := e.Mu.Ix.At(id), e.kindOfLocked(k), e.GroupOfLocked(k.Parent)
	was := e.drafts.stateLocked(id, en, &r.By)
	move := draft.Rename(was, to)
	switch err := e.Mu.Room.Group(group).CheckSize(r.size); {
	case move == draft.Postpone: // the close checks
	case move == draft.Withdraw && e.HollowLocked(id, en):
		return errHollow // the block has to come up first
	case to == draft.Block && err != nil:
		return err
	}
	if err := e.space.MoveGroupLocked(id, en, group, e.Mu.Ix.Lookup(k.Parent, k.Name), g); err != nil {
		return err
	}
	target := e.Mu.Ix.Lookup(k.Parent, k.Name) // the eviction for its group may have removed the target
	old, seq := e.ChildPathLocked(r.Parent, r.Name), en.Seq
	if move == draft.Withdraw {
		e.leaveBlocksLocked(id, en, r.By.Actor())
	}
	synced := r.f != nil && r.f.sync && to != draft.Temp && move != draft.Postpone // what is not committed replaces no copy
	e.moveNameLocked(r, target, synced, g)
	en.Ctime, en.Seq = e.Now(), e.NextSeqLocked()
	en.Flags = en.Flags&^(state.FlagTemp|state.FlagPlain) | e.NameFlagsLocked(k.Parent, k.Name)
	switch move {
	case draft.Follow:
		e.renamedLocked(event.Renamed, r, old, g)
		e.lower.RenumberedLocked(id, seq)
		if r.f == nil {
			e.lower.CascadeLocked(id, en)
		}
	case draft.Postpone:
		e.postponeLocked(r, en, g)
	default:
		e.convertLocked(r, en, to, g)
	}
	e.ClassifyLocked(id, en)
	return nil
}

// convertLocked makes a file that was moved what a name of the kind to demands: a new block, or a file that is none.
func (e *renames) convertLocked(r *renaming, en *index.Entry, to draft.Kind, g *state.Gone) {
	f, hidden := r.f, en.Flags&state.FlagUncommitted != 0
	if f == nil && to != draft.Plain { // a block without one is from an earlier daemon
		f = e.drafts.NewFileLocked(r.id, en)
	}
	if to == draft.Block {
		if !hidden { // the file begins to be a block
			en.Flags |= state.FlagUncommitted
			e.RecountLocked(state.Resident, state.Uncounted)
		}
		e.drafts.publishLocked(f, en, r.size, r.mtime, g)
		return
	}
	if hidden {
		en.Flags &^= state.FlagUncommitted
		e.RecountLocked(state.Uncounted, state.Resident)
	}
	en.Size, en.Mtime = r.size, r.mtime // the record says so, too: it may be a block again before a write
}

// kindOfLocked returns the kind that a file of the name k would have.
func (e *renames) kindOfLocked(k state.NameKey) draft.Kind {
	switch flags := e.NameFlagsLocked(k.Parent, k.Name); {
	case flags&state.FlagPlain != 0 || e.Mu.Room.Group(e.GroupOfLocked(k.Parent)).Pinned():
		return draft.Plain
	case flags&state.FlagTemp != 0:
		return draft.Temp
	}
	return draft.Block
}

// leaveBlocksLocked follows a block that is about to get a name that other tiers and nodes do not know.
func (e *renames) leaveBlocksLocked(id index.ID, en *index.Entry, by fate.Actor) {
	e.EventLocked(event.Removed, id, fate.Cause{Reason: fate.ReasonRenamed, By: by})
	if e.Remote != nil {
		e.Far.Bury([]driver.Grave{{Path: e.Mu.Ix.Path(id), Seq: e.NextSeqLocked()}})
	}
	if len(e.Finders) > 0 {
		e.lower.DisownLocked(e.Mu.Ix.Path(id), en.Tiers|en.Storing)
	}
	e.lower.DropCopiesLocked(id, en)
}

// postponeLocked makes a file that was moved to the name of a block private to another process, which still writes it.
// The last close by that process commits it.
func (e *renames) postponeLocked(r *renaming, en *index.Entry, g *state.Gone) {
	f := r.f
	f.owner = f.busyLocked(r.By.Proc()).by.Proc()
	e.drafts.LeaveLimboNamedLocked(r.to(), g) // f has no record until the commit
	if en.Flags&state.FlagUncommitted == 0 {
		e.RecountLocked(state.Resident, state.Uncounted)
		en.Flags |= state.FlagUncommitted
		f.recorded = true // a crash must not bring it back
	}
	if en.Lookups > 0 { // the kernel has moved its own entry of the name
		g.Names = append(g.Names, state.GoneName{Parent: r.NewParent, ID: r.id, Name: r.NewName})
	}
}

// renamedLocked tells of a rename from the path old.
func (e *renames) renamedLocked(kind event.Kind, r *renaming, old string, g *state.Gone) {
	id, en := r.id, e.Mu.Ix.At(r.id)
	e.RenamedVerdictLocked(old, id, r.By.Actor())
	from, _ := block.ParseKey(old)
	to, _ := block.ParseKey(e.Mu.Ix.Path(id))
	guard := e.GuardLocked(e.GuardLocked(nil, id), e.Mu.Ix.Walk(old[:max(strings.LastIndexByte(old, '/'), 0)]))
	e.EventLog.Add(event.Event{Time: time.Unix(0, en.Ctime), Kind: kind, Key: to, From: from, Size: en.Size, Guard: guard})
	if e.Remote == nil {
		return
	}
	if kind == event.Renamed {
		en.Flags &^= state.FlagFetched // another version
		e.Far.Bury([]driver.Grave{{Path: old, Seq: en.Seq}})
		e.elsewhere.PublishedLocked(id, en, math.MaxUint64, true, g)
	}
	e.elsewhere.OwnDirsLocked(id)
}

// renumberLocked gives everything below a directory, the first of moved, a new version: the old versions may have graves
// under the new name. The old name gets graves, the directory's after those of its files, so that nodes that learn
// of it find it empty. No other node has the directory, so that a look-up finds none of its files before that.
func (e *renames) renumberLocked(moved []index.ID, from, to string, g *state.Gone) {
	for i := len(moved) - 1; i >= 0; i-- {
		c := moved[i]
		en := e.Mu.Ix.At(c)
		if en.Flags&state.FlagUncommitted != 0 {
			continue
		}
		if i > 0 {
			e.renumberOneLocked(c, en)
		}
		g.Graves = append(g.Graves, driver.Grave{
			Path: from + e.Mu.Ix.Path(c)[len(to):], Dir: en.Mode&state.ModeType == state.ModeDir, Seq: en.Seq,
		})
	}
}

func (e *renames) renumberOneLocked(id index.ID, en *index.Entry) {
	was := en.Seq
	en.Seq = e.NextSeqLocked()
	if en.Mode&state.ModeType == state.ModeDir {
		return
	}
	en.Flags &^= state.FlagFetched
	e.lower.RenumberedLocked(id, was)
	if f := e.fileLocked(id); f != nil {
		f.begun = max(f.begun, en.Seq)
	}
	if e.Mu.Files[id] == nil && en.Flags&(state.FlagRefused|state.FlagOnceSeen) == 0 {
		e.lower.CascadeLocked(id, en) // the store may have been waiting as the other version
	}
}

// moveNameLocked gives r.id the new name, and takes the name from target, 0 if it is free. synced: a process has called
// fsync on r.id, and it is a block from now on.
func (e *renames) moveNameLocked(r *renaming, target index.ID, synced bool, g *state.Gone) {
	ix, id, to := e.Mu.Ix, r.id, r.to()
	en := ix.At(id)
	e.NameLeftLocked(id, en, r.By.Proc(), g)
	if en.Flags&(state.FlagSynced|state.FlagUncommitted) != 0 {
		e.lower.RemoveCopiesLocked(id, en) // under the old name
	}
	e.drafts.LeaveLimboNamedLocked(r.from(), g)
	if synced {
		e.drafts.keepSyncedLocked(en)
	}
	switch {
	case target == 0:
	case en.Mode&state.ModeType == state.ModeDir:
		e.NameLeftLocked(target, ix.At(target), r.By.Proc(), g)
		e.names.DropDirLocked(target, ix.At(target), g)
	default:
		e.drafts.displaceLocked(target, id, &r.By, g)
	}
	ix.Rename(id, to.Parent, to.Name)
	e.ChangedLocked(r.Parent)
	e.ChangedLocked(to.Parent)
}

// checkTargetLocked checks that the file or directory with the new name may be replaced.
func (e *renames) checkTargetLocked(target index.ID, isDir bool, r *renaming, g *state.Gone) error {
	if target == 0 {
		return nil
	}
	tdir := e.Mu.Ix.At(target).Mode&state.ModeType == state.ModeDir
	switch {
	case r.NoReplace:
		return block.ErrExist
	case isDir && !tdir:
		return block.ErrNotDir
	case !isDir && tdir:
		return block.ErrIsDir
	case tdir && !e.drafts.EmptyLocked(target, r.By, g):
		return block.ErrNotEmpty
	}
	return nil
}

// RenamedDirLocked follows a directory's rename. Files below it may have changed group, and its name may make them
// temporary, or no longer so.
func (e *renames) RenamedDirLocked(id index.ID, en *index.Entry) {
	ix := e.Mu.Ix
	e.MarkDirLocked(id, en)
	ix.Descend(id, func(c index.ID, ce *index.Entry) bool {
		if ce.Mode&state.ModeType == state.ModeDir {
			e.MarkDirLocked(c, ce)
		} else {
			e.RebillLocked(c, ce, e.GroupOfLocked(ix.Parent(c)), ce.Accounts)
		}
		return true
	})
}

// tellAsker tells the asking kernel, too, of names whose change has failed: that kernel believes it happened.
func (e *renames) tellAsker(names []state.GoneName) {
	for _, n := range names {
		if n.By != (state.Process{}) {
			e.Opts.Invalidate(state.Process{}, n.Parent, n.ID, n.Name)
		}
	}
}
