package writing

import (
	"context"
	"errors"
	"os"
	"slices"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
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
func (e *drafts) Flush(ctx context.Context, h *Handle, by state.Caller, closer Closer) error {
	f := h.File
	c, err := e.flushed(h, by, closer)
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
	sync, err := e.commit(f)
	if err != nil {
		return err
	}
	return e.lower.AfterCommit(ctx, by.Waits, f.id, sync)
}

// flushed notes the close of a descriptor of h, and describes it for package draft. It asks closer and holds no lock
// meanwhile. It fails with ErrPoisoned if a write of the file has failed.
func (e *drafts) flushed(h *Handle, by state.Caller, closer Closer) (draft.Close, error) {
	f := h.File
	e.Mu.Lock()
	en := e.Mu.Ix.At(f.id)
	asks := en.Flags&state.FlagUncommitted != 0 // else the answer makes no difference
	// What others do with a temporary file, and what the end of another handle does, depends on whether this one goes on.
	shared := e.KindLocked(en) == draft.Temp || len(f.handles) > 1
	e.Mu.Unlock()
	killed := asks && closer.Killed()
	goesOn := shared && closer.StillOpen(f.id)
	e.Mu.Lock()
	h.killed = killed
	h.closedByLocked(by.Proc(), goesOn)
	c := e.closeLocked(h, killed)
	c.Owner, c.Last = by.Proc() == f.owner, c.Last && h.closed
	err := f.poisoned
	e.Mu.Unlock()
	if err != nil {
		err = errors.Join(block.ErrPoisoned, err)
	}
	return c, err
}

// closeLocked tells package draft of the end of h.
func (e *drafts) closeLocked(h *Handle, killed bool) draft.Close {
	f := h.File
	s := e.stateLocked(f.id, e.Mu.Ix.At(f.id), &state.Caller{})
	last := !slices.ContainsFunc(f.handles, func(o *Handle) bool { return o != h && !o.closed })
	return draft.Close{
		Kind: s.Kind, Place: s.Place, Owner: f.owner != state.Process{}, Mine: !f.ownerWritesLocked(h), Last: last,
		Killed: killed, Failed: f.poisoned != nil,
	}
}

// Release ends h: the kernel calls it when the last descriptor is gone. It commits what no Flush has
// committed, because not every client closes on the thread that opened. It waits for no copy, but it
// queues the copy that an earlier fsync asked for.
func (e *drafts) Release(h *Handle) { e.release(h, false) }

// Abandon replaces Release for a killed writer, whose process or mount is gone. It commits no
// version, because the bytes may not be whole. A version that other processes are still writing
// goes on, and is theirs. A file that all processes have seen stays.
func (e *drafts) Abandon(h *Handle) { e.release(h, true) }

func (e *drafts) release(h *Handle, abandoned bool) {
	f := h.File
	f.ends.Lock()
	defer f.ends.Unlock()
	e.Mu.Lock()
	c := e.closeLocked(h, abandoned || h.killed)
	unknown := h.silent && !h.closed && c.Kind == draft.Block && c.Place != draft.Seen // another process renamed it
	e.Mu.Unlock()
	if unknown && !e.Opts.Alive(h.by.Proc()) {
		c.Killed = true
	}
	if err := e.end(f, &c); err != nil {
		e.Log.Warn("end of an open file", zap.Error(err))
	}
	g := e.NewGone()
	e.Mu.Lock()
	en := e.Mu.Ix.At(f.id)
	en.Opens--
	f.handles = slices.DeleteFunc(f.handles, func(o *Handle) bool { return o == h })
	f.born = e.Now()
	if len(f.handles) == 0 {
		e.endedLocked(f, en, g)
	} else {
		e.goesOnLocked(f, en, &c, g)
	}
	e.opens.closedLocked(f.id, e.Mu.Ix.At(f.id), g)
	e.Mu.Unlock()
	e.Finish(g)
}

// goesOnLocked is called when a handle of f has ended that was not the last.
func (e *drafts) goesOnLocked(f *File, en *index.Entry, c *draft.Close, g *state.Gone) {
	switch {
	case f.poisoned != nil && draft.End(*c) == draft.Drop: // other processes at most have it mapped
		e.dropFailedLocked(f, g)
	case c.Killed && c.Mine && c.Place != draft.Seen:
		f.owner = f.handles[0].by.Proc()
	}
}

// end does the part of draft.End's decision about a handle of f that takes system calls.
func (e *drafts) end(f *File, c *draft.Close) error {
	switch draft.End(*c) {
	case draft.Nothing:
		if c.Place != draft.Gone || !c.Last {
			return nil
		}
	case draft.Drop:
		if !c.Failed {
			e.Mu.Lock()
			e.Mu.Counters.KilledWriters++
			e.Mu.Unlock()
		}
		f.fail(block.ErrPoisoned)
		return nil
	}
	_, err := e.commit(f)
	if errors.Is(err, room.ErrBlockSize) {
		f.fail(err) // no process goes on with it
	}
	return err
}

// endedLocked is called when the last handle of f has ended.
func (e *drafts) endedLocked(f *File, en *index.Entry, g *state.Gone) {
	e.opens.guessed.Give(f.guessed)
	f.guessed = 0
	named := e.Mu.Ix.Linked(f.id)
	temp := e.KindLocked(en) == draft.Temp
	if f.warm = temp && named; !f.warm {
		g.Idle = append(g.Idle, f)
	}
	switch {
	case !named:
		return // closedLocked frees it after its last reader
	case temp && f.poisoned != nil: // its process is going to unlink it
		en.Size = 0
		g.Emptied = append(g.Emptied, f)
	case temp:
	case f.poisoned != nil && (en.Flags&state.FlagUncommitted != 0 || errors.Is(f.poisoned, room.ErrBlockSize)):
		e.dropFailedLocked(f, g)
		return
	}
	state.Resize(e.State, en, state.ChargeOf(en.Size)-f.charge) // room reserved beyond the size is free again
	f.charge = state.ChargeOf(en.Size)
	if temp {
		return
	}
	e.DropFileLocked(f.id)
	g.Files = append(g.Files, f)
	e.lower.CascadeLocked(f.id, en)
	e.ClassifyLocked(f.id, en)
	e.Mu.Room.Signal() // it can be evicted now
}

// dropFailedLocked unlinks f: a write of f has failed, or its writer was killed.
func (e *drafts) dropFailedLocked(f *File, g *state.Gone) {
	e.Mu.Counters.Poisoned++
	e.dropLocked(f, fate.Cause{Reason: fate.ReasonWriteFailed}, g)
}

// commit brings the entry of f in line with its bytes, if they changed. A private file becomes the block of
// its name, and all processes see it. A block that was changed in place becomes a new version for other
// tiers. sync: a process has called fsync on the bytes.
func (e *drafts) commit(f *File) (sync bool, err error) {
	f.commits.Lock()
	defer f.commits.Unlock()
	size, mtime, err := f.fstat()
	if errors.Is(err, os.ErrClosed) || errors.Is(err, block.ErrNotFound) {
		return false, nil // released meanwhile, and so committed; or removed before it was opened
	}
	if err == nil {
		err = e.checkOverrun(f, size)
	}
	if err != nil {
		return false, err
	}
	g := e.NewGone()
	e.Mu.Lock()
	sync, published, err := e.commitLocked(f, size, mtime, g)
	e.Mu.Unlock()
	if published {
		err = e.drafts.WriteRecord(f.id, nil)
	}
	e.Finish(g)
	return sync, err
}

// commitLocked is the part of commit that needs the lock. published: f is a new block, whose record is to be written.
func (e *drafts) commitLocked(f *File, size, mtime int64, g *state.Gone) (sync, published bool, err error) {
	en := e.Mu.Ix.At(f.id)
	unchanged := en.Flags&state.FlagUncommitted == 0 && en.Size == size && en.Mtime == mtime
	gone := !e.Mu.Ix.Linked(f.id)
	isBlock := e.KindLocked(en) == draft.Block
	if isBlock {
		sync, f.sync = f.sync, false
	}
	switch {
	case unchanged || gone:
		en.Size, en.Mtime = size, mtime // as processes that have it open see them
		return sync && !gone, false, nil
	case !isBlock:
		e.resizedLocked(f, en, size, mtime, g) // its record is there already; size and time come from the file
		return false, false, nil
	}
	if err := e.Mu.Room.Group(en.Group).CheckSize(size); err != nil {
		return false, false, err
	}
	if sync {
		e.keepSyncedLocked(en)
	}
	e.publishLocked(f, en, size, mtime, g)
	return sync, true, nil
}

// resizedLocked brings the entry in line when the bytes of a file that is never committed have changed.
func (e *drafts) resizedLocked(f *File, en *index.Entry, size, mtime int64, g *state.Gone) {
	if over := state.ChargeOf(size) - f.charge; over > 0 {
		e.Mu.Counters.Overruns++
		f.charge += over
		state.Resize(e.State, en, over)
		e.ShrinkLocked(state.BillOf(e.Mu.Room, en), g)
	}
	en.Size, en.Mtime, en.Ctime = size, mtime, max(mtime, en.Ctime)
	en.Flags &^= state.FlagSum
	e.AttrsChangedLocked(f.id, en, g)
}

// keepSyncedLocked is called before a version is committed that a process has called fsync on. The copy that a tier
// holds under its name stays there until the new version takes its place. So after a power cut there is one of them.
func (e *drafts) keepSyncedLocked(en *index.Entry) {
	if !e.Mu.Room.Group(en.Group).Pinned() {
		en.Flags |= state.FlagSynced
	}
}

// displaceLocked takes its name from holder, because the caller renames heir to that name.
func (e *drafts) displaceLocked(holder, heir index.ID, by *state.Caller, g *state.Gone) {
	en := e.Mu.Ix.At(holder)
	known := en.Tiers | en.Storing
	if s := e.Keeper(); s != nil && e.Mu.Ix.At(heir).Flags&state.FlagSynced != 0 {
		known |= s.Bit
		en.Tiers &^= s.Bit // the copy goes over to the heir; s is not the Remote tier
		en.Storing &^= s.Bit
		en.Flags &^= state.FlagSynced
	}
	if len(e.Finders) > 0 {
		e.lower.DisownLocked(e.Mu.Ix.Path(holder), known)
	}
	f := e.fileLocked(heir)
	if f != nil && en.Flags&state.FlagUncommitted == 0 {
		f.replaces = true
		if en.Flags&state.FlagFetched == 0 { // versions that this node has made since f was begun are void, too
			f.begun = max(f.begun, en.Seq)
		}
	}
	e.Mu.Counters.Removed++
	e.names.UnlinkLocked(holder, fate.Cause{Reason: fate.ReasonReplaced, By: by.Actor()}, by.Proc(), g)
}

// publishLocked marks f as committed with the given size and time.
func (e *drafts) publishLocked(f *File, en *index.Entry, size, mtime int64, g *state.Gone) {
	if c := state.ChargeOf(size); c > f.charge {
		e.Mu.Counters.Overruns++
		state.Resize(e.State, en, c-f.charge)
		f.charge = c
	}
	gr := e.Mu.Room.Group(en.Group)
	if en.Flags&state.FlagUncommitted != 0 {
		e.RecountLocked(state.Uncounted, state.Resident)
	} else {
		e.AttrsChangedLocked(f.id, en, g) // in place
	}
	state.LeaveOrders(e.Mu.Room, f.id, en) // its size changed: enter it anew
	e.lower.StaleCopiesLocked(f.id, en)
	en.Flags &^= state.FlagUncommitted | state.FlagSum | state.FlagRefused | state.FlagOnceSeen | state.FlagFetched
	en.Size, en.Mtime, en.Ctime = size, mtime, max(mtime, en.Ctime)
	en.Seq = e.NextSeqLocked()
	e.elsewhere.PublishedLocked(f.id, en, f.begun, f.replaces, g)
	f.begun, f.replaces = en.Seq, true
	gr.Learn(size)
	e.Mu.Counters.Stored++
	gr.Stored++
	e.Mu.Counters.StoredBytes += uint64(size)
	e.Mu.Ix.SetExpires(f.id, e.Mu.Ix.Expires(f.id)) // it may have been due before it was committed
	e.ClassifyLocked(f.id, en)
	e.EventLocked(event.Stored, f.id, fate.Cause{})
	e.ShrinkLocked(state.BillOf(e.Mu.Room, en), g)
	if e.Mu.Room.High(0) {
		e.space.WakeEvictor()
	}
}

// checkOverrun decides about a file whose writes the engine has not seen. Bytes
// past its reservation came out of the headroom. It poisons the file if the headroom
// is nearly used up, by this file or another, because a write may have ended short.
// It also poisons a file that is larger than the tier or its quota: that cannot stay.
func (e *drafts) checkOverrun(f *File, size int64) error {
	e.Mu.Lock()
	over := state.ChargeOf(size) - f.charge
	b := state.BillOf(e.Mu.Room, e.Mu.Ix.At(f.id))
	tooLarge := over > 0 && (state.ChargeOf(size) > e.Opts.CapacityBytes || b.Group.Pinned() && b.Group.Over(over) || b.Pinned && b.OverPins(over))
	direct := f.directLocked()
	e.Mu.Unlock()
	if !direct {
		return nil
	}
	need := e.Opts.HeadroomBytes / 16
	if over > 0 {
		need = e.Opts.HeadroomBytes / 8 // gauge leaves this much
	}
	if !tooLarge {
		free, err := e.space.Gauge(0, false) // gauge also evicts, so that others have room
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
func (e *drafts) ShrinkLocked(b room.Bill, g *state.Gone) {
	if ok, _ := e.space.RoomLocked(b, 0, false, g); ok {
		return
	}
	if !b.Over(0) && e.Mu.Room.Used() <= e.Opts.CapacityBytes+e.Opts.HeadroomBytes/2 {
		return
	}
	e.space.RoomLocked(b, 0, true, g)
}
