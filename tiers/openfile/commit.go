package openfile

import (
	"context"
	"errors"
	"math"
	"os"
	"slices"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/room"
	"github.com/kvfs/kvfs/tiers/state"
)

// Closer answers the questions of Flush about the process that closes a descriptor. Flush holds no lock when it asks.
type Closer interface {
	// Killed reports whether a signal is ending the process.
	Killed() bool
	// StillOpen reports whether the process has another descriptor for writing the file.
	StillOpen(id index.ID) bool
}

// Flush is called when a process closes a descriptor of h (package draft, End). If the close commits a
// block, the block is complete and visible to all when Flush returns.
//
// Duplicated descriptors flush more than once. If the process has another descriptor for the version, as
// far as closer knows, the version is not committed yet. If a signal is ending the process that owns the
// version, the version is given up, because it may not be whole.
//
// Flush waits for the block's copy in a secondary tier if the cascade is synchronous, or if the file was fsynced before.
//
// It fails with ErrPoisoned, joined with the error of the write that failed; with ErrInvalid if the group is strict
// and the block is not of its size; and, after an fsync, as Fsync does.
func (fl *Files) Flush(ctx context.Context, h *Handle, by state.Caller, closer Closer) error {
	f := h.File
	c, err := fl.flushed(h, by, closer)
	if err != nil {
		return err
	}
	switch outcome := draft.End(c); {
	case c.Kind != draft.Block, outcome != draft.Commit && outcome != draft.Settle:
		return nil // Release does the rest
	case outcome == draft.Commit:
		if closer.StillOpen(f.id) {
			h.goesOn(false)
			return nil
		}
	}
	sync, err := fl.commit(f)
	if err != nil {
		return err
	}
	return fl.transfer.AfterCommit(ctx, by.Waits, f.id, sync)
}

// flushed notes the close of a descriptor of h, and describes it for package draft. It asks closer and holds no lock
// meanwhile. It fails with ErrPoisoned if a write of the file has failed.
func (fl *Files) flushed(h *Handle, by state.Caller, closer Closer) (draft.Close, error) {
	f := h.File
	fl.Mu.Lock()
	en := fl.Mu.Ix.At(f.id)
	asks := !en.Committed() // else the answer makes no difference
	// What others do with a temporary file, and what the end of another handle does, depends on whether this one goes on.
	shared := fl.Mu.Kind(en) == draft.Temp || len(f.handles) > 1
	fl.Mu.Unlock()
	killed := asks && closer.Killed()
	goesOn := shared && closer.StillOpen(f.id)
	fl.Mu.Lock()
	h.killed = killed
	h.closedByLocked(by.Proc(), goesOn)
	c := fl.closeLocked(h, killed)
	c.Owner, c.Last = by.Proc() == f.owner, c.Last && h.closed
	err := f.poisoned
	fl.Mu.Unlock()
	if err != nil {
		err = errors.Join(block.ErrPoisoned, err)
	}
	return c, err
}

// closeLocked tells package draft of the end of h.
func (fl *Files) closeLocked(h *Handle, killed bool) draft.Close {
	f := h.File
	s := fl.stateLocked(f.id, fl.Mu.Ix.At(f.id), &state.Caller{})
	last := !slices.ContainsFunc(f.handles, func(o *Handle) bool { return o != h && !o.closed })
	return draft.Close{
		Kind: s.Kind, Place: s.Place, Owner: f.owner != state.Process{}, Mine: !f.ownerWritesLocked(h), Last: last,
		Killed: killed, Failed: f.poisoned != nil,
	}
}

// Release ends h: the kernel calls it when the last descriptor is gone. It commits what no Flush has
// committed, because not every client closes on the thread that opened. It waits for no copy, but it
// queues the copy that an earlier fsync asked for.
func (fl *Files) Release(h *Handle) { fl.release(h, false) }

// Abandon replaces Release for a killed writer, whose process or mount is gone. It commits no
// version, because the bytes may not be whole. A version that other processes are still writing
// goes on, and is theirs. A file that all processes have seen stays.
func (fl *Files) Abandon(h *Handle) { fl.release(h, true) }

func (fl *Files) release(h *Handle, abandoned bool) {
	f := h.File
	f.ends.Lock()
	defer f.ends.Unlock()
	fl.Mu.Lock()
	c := fl.closeLocked(h, abandoned || h.killed)
	unknown := h.silent && !h.closed && c.Kind == draft.Block && c.Place != draft.Seen // another process renamed it
	fl.Mu.Unlock()
	if unknown && !fl.Opts.Alive(h.by.Proc()) {
		c.Killed = true
	}
	if err := fl.end(f, &c); err != nil {
		fl.Log.Warn("end of an open file", zap.Error(err))
	}
	g := fl.NewGone()
	fl.Mu.Lock()
	en := fl.Mu.Ix.At(f.id)
	fl.ApplyLocked(catalog.Closed{ID: f.id})
	f.handles = slices.DeleteFunc(f.handles, func(o *Handle) bool { return o == h })
	f.born = fl.Now()
	switch {
	case len(f.handles) == 0:
		fl.endedLocked(f, en, g)
	case f.poisoned != nil && draft.End(c) == draft.Drop: // other processes at most have it mapped
		fl.dropFailedLocked(f, g)
	case c.Killed && c.Mine && c.Place != draft.Seen:
		f.owner = f.handles[0].by.Proc()
	}
	fl.names.ClosedLocked(f.id, g)
	fl.Mu.Unlock()
	fl.Finish(g)
}

// end does the part of draft.End's decision about a handle of f that takes system calls.
func (fl *Files) end(f *File, c *draft.Close) error {
	switch draft.End(*c) {
	case draft.Nothing:
		if c.Place != draft.Gone || !c.Last {
			return nil
		}
	case draft.Drop:
		if !c.Failed {
			fl.Mu.Lock()
			fl.Mu.Counters.KilledWriters++
			fl.Mu.Unlock()
		}
		f.fail(block.ErrPoisoned)
		return nil
	}
	_, err := fl.commit(f)
	if errors.Is(err, room.ErrBlockSize) {
		f.fail(err) // no process goes on with it
	}
	return err
}

// endedLocked is called when the last handle of f has ended.
func (fl *Files) endedLocked(f *File, en *index.Entry, g *state.Gone) {
	fl.guessed.Give(f.guessed)
	f.guessed = 0
	named := fl.Mu.Ix.Linked(f.id)
	temp := fl.Mu.Kind(en) == draft.Temp
	if f.warm = temp && named && f.poisoned == nil; !f.warm {
		g.Files = append(g.Files, f)
	}
	switch {
	case !named:
		return // closedLocked frees it after its last reader
	case temp && f.poisoned != nil: // its process is going to unlink it
		fl.ApplyLocked(catalog.Sized{ID: f.id, Mtime: en.Mtime()})
		f.emptied = true
	case temp:
	case f.poisoned != nil && (!en.Committed() || errors.Is(f.poisoned, room.ErrBlockSize)):
		fl.dropFailedLocked(f, g)
		return
	}
	fl.ApplyLocked(catalog.Trimmed{ID: f.id})
	if temp {
		return
	}
	fl.DropFileLocked(f.id)
	if b := fl.Mu.Bill(en); fl.Mu.Room.BurstOf(b, uint32(f.id)) == 0 { // a search for victims has passed over it
		fl.Mu.Room.Follow(b, uint32(f.id), f.burst, true)
	}
	fl.transfer.CascadeLocked(f.id, en)
	fl.Mu.Room.Signal() // it can be evicted now
}

// dropFailedLocked unlinks f: a write of f has failed, or its writer was killed.
func (fl *Files) dropFailedLocked(f *File, g *state.Gone) {
	fl.Mu.Counters.Poisoned++
	fl.dropLocked(f, outcome.Cause{Reason: outcome.ReasonWriteFailed}, g)
}

// commit brings the entry of f in line with its bytes, if they changed. A private file becomes the block of
// its name, and all processes see it. A block that was changed in place becomes a new version for other
// tiers. sync: a process has called fsync on the bytes.
func (fl *Files) commit(f *File) (sync bool, err error) {
	f.commits.Lock()
	defer f.commits.Unlock()
	size, mtime, err := f.fstat()
	if errors.Is(err, os.ErrClosed) || errors.Is(err, block.ErrNotFound) {
		return false, nil // released meanwhile, and so committed; or removed before it was opened
	}
	if err == nil {
		err = fl.checkOverrun(f, size)
	}
	if err != nil {
		return false, err
	}
	g := fl.NewGone()
	fl.Mu.Lock()
	sync, published, err := fl.commitLocked(f, size, mtime, g)
	fl.Mu.Unlock()
	if published {
		err = fl.WriteRecord(f.id, nil)
	}
	fl.Finish(g)
	return sync, err
}

// commitLocked is the part of commit that needs the lock. published: f is a new block, whose record is to be written.
func (fl *Files) commitLocked(f *File, size, mtime int64, g *state.Gone) (sync, published bool, err error) {
	en := fl.Mu.Ix.At(f.id)
	unchanged := en.Committed() && en.Size() == size && en.Mtime() == mtime
	gone := !fl.Mu.Ix.Linked(f.id)
	isBlock := fl.Mu.Kind(en) == draft.Block
	if isBlock {
		sync, f.sync = f.sync, false
	}
	switch {
	case unchanged || gone:
		fl.ApplyLocked(catalog.Sized{ID: f.id, Size: size, Mtime: mtime}) // as processes that have it open see them
		return sync && !gone, false, nil
	case !isBlock:
		ch := fl.ChangeLocked(catalog.Rewritten{ID: f.id, Size: size, Mtime: mtime}, nil, g) // its record is there already
		if ch.Grew > 0 {
			fl.Mu.Counters.Overruns++
			fl.ShrinkLocked(fl.Mu.Bill(en), g)
		}
		return false, false, nil
	}
	if err := fl.Mu.Room.Group(en.Group()).CheckSize(size); err != nil {
		return false, false, err
	}
	if f.poisoned != nil && !en.Committed() { // meanwhile
		return false, false, errors.Join(block.ErrPoisoned, f.poisoned)
	}
	if sync {
		fl.keepSyncedLocked(f.id, en)
	}
	if en.Committed() { // changed in place: it is not what another node has made meanwhile, as two blocks of one hash are
		f.begun = math.MaxUint64
	}
	fl.publishLocked(f, en, size, mtime, g)
	return sync, true, nil
}

// keepSyncedLocked is called before a version is committed that a process has called fsync on. The copy that a tier
// holds under its name stays there until the new version takes its place. So after a power cut there is one of them.
func (fl *Files) keepSyncedLocked(id index.ID, en *index.Entry) {
	if !fl.Mu.Room.Group(en.Group()).Pinned() {
		fl.ApplyLocked(catalog.Synced{ID: id})
	}
}

// displaceLocked takes its name from holder, because the caller renames heir to that name.
func (fl *Files) displaceLocked(holder, heir index.ID, by *state.Caller, g *state.Gone) {
	en := fl.Mu.Ix.At(holder)
	known := en.Tiers() | en.Storing()
	if s := fl.Keeper(); s != nil && fl.Mu.Ix.At(heir).Synced() {
		known |= s.Bit
		// The copy goes over to the heir; s is not the Remote tier.
		fl.ApplyLocked(catalog.Lost{ID: holder, Tiers: s.Bit, Storing: s.Bit, Promise: true})
	}
	if len(fl.Finders) > 0 {
		fl.transfer.DisownLocked(fl.Mu.Ix.Path(holder), known)
	}
	f := fl.fileLocked(heir)
	if f != nil && en.Committed() {
		f.replaces = true
		if en.Flags()&index.FlagFetched == 0 { // versions that this node has made since f was begun are void, too
			f.begun = max(f.begun, en.Seq())
		}
	}
	fl.Mu.Counters.Removed++
	fl.names.UnlinkLocked(holder, outcome.Cause{Reason: outcome.ReasonReplaced, By: by.Actor()}, by.Proc(), g)
}

// publishLocked marks f as committed with the given size and time.
func (fl *Files) publishLocked(f *File, en *index.Entry, size, mtime int64, g *state.Gone) {
	fl.transfer.StaleCopiesLocked(f.id, en)
	f.burst = fl.Mu.Room.Burst(f.owner.Number(), fl.Now())
	ch := fl.ChangeLocked(catalog.Committed{ID: f.id, Size: size, Mtime: mtime, Seq: fl.NextSeqLocked(), Burst: f.burst}, nil, g)
	if ch.Grew > 0 {
		fl.Mu.Counters.Overruns++
	}
	fl.names.PublishedLocked(f.id, en, f.begun, f.replaces, g)
	f.begun, f.replaces = en.Seq(), true
	fl.Mu.Counters.Stored++
	fl.Mu.Counters.StoredBytes += uint64(size)
	fl.ShrinkLocked(fl.Mu.Bill(en), g)
	if fl.Mu.Room.High(0) {
		fl.memory.WakeEvictor()
	}
}

// checkOverrun decides about a file whose writes the engine has not seen. Bytes
// past its reservation came out of the headroom. It poisons the file if the headroom
// is nearly used up, by this file or another, because a write may have ended short.
// It also poisons a file that is larger than the tier or its quota: that cannot stay.
func (fl *Files) checkOverrun(f *File, size int64) error {
	fl.Mu.Lock()
	over := catalog.ChargeOf(size) - f.Charge()
	b := fl.Mu.Bill(fl.Mu.Ix.At(f.id))
	tooLarge := over > 0 && (catalog.ChargeOf(size) > fl.Opts.CapacityBytes || b.Group.Pinned() && b.Group.Over(over) || b.Pinned && b.OverPins(over))
	direct := f.directLocked()
	fl.Mu.Unlock()
	if !direct {
		return nil
	}
	need := fl.Opts.HeadroomBytes / 16
	if over > 0 {
		need = fl.Opts.HeadroomBytes / 8 // gauge leaves this much
	}
	if !tooLarge {
		free, err := fl.memory.Gauge(0, false) // gauge also evicts, so that others have room
		if err == nil && (free >= need || f.whole(size)) {
			return nil
		}
	}
	perr := error(&block.Error{Op: "commit", Tier: "memory", Err: block.ErrNoSpace})
	f.poison(perr)
	return perr
}

// ShrinkLocked evicts down to the capacity and to the quotas of those who pay. It evicts leased
// blocks, and those in no other tier yet, only if a quota or half of the headroom is
// exceeded. Otherwise the excess stays in the headroom, and the next write waits for room.
func (fl *Files) ShrinkLocked(b room.Bill, g *state.Gone) {
	if ok, _ := fl.memory.RoomLocked(b, 0, false, g); ok {
		return
	}
	if !b.Over(0) && fl.Mu.Room.Used() <= fl.Opts.CapacityBytes+fl.Opts.HeadroomBytes/2 {
		return
	}
	fl.memory.RoomLocked(b, 0, true, g)
}
