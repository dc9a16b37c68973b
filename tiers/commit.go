package tiers

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/kvfs/kvfs/tiers/event"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/room"
)

// Closer is what Flush asks about the process that closes a descriptor. No lock
// is held meanwhile.
type Closer interface {
	// Killed reports whether a signal is ending the process.
	Killed() bool
	// StillOpen reports whether the process has another descriptor to write the file by.
	StillOpen(id index.ID) bool
}

// Flush follows close(2) on a descriptor of h by a process (package draft, End). Where that commits
// a block, it is complete and visible to all when Flush returns.
//
// dup'ed descriptors flush more than once: a version of which the process has another descriptor, as far as
// closer knows, is not committed yet. If a signal is ending the process that owns
// a version, the version is given up, because nobody knows whether it is whole.
//
// It waits for the block's copy in a secondary tier where the cascade is
// synchronous, or where the file was fsynced before.
//
// It fails with ErrPoisoned joined with the error of the write that failed; with ErrInvalid if the group is strict
// and this is not a block of its size; and, after an fsync, as Fsync does.
func (e *drafts) Flush(ctx context.Context, h *Handle, by Caller, closer Closer) error {
	f := h.File
	c, err := e.flushed(h, by, closer)
	if err != nil {
		return err
	}
	killed := c.Killed
	switch outcome := draft.End(c); {
	case outcome == draft.Take:
		return e.takeTemp(f)
	case c.Kind == draft.Temp && outcome == draft.Settle && c.Owner && killed:
		e.yield(f)
		return nil
	case c.Kind != draft.Block, outcome != draft.Commit && outcome != draft.Settle:
		return nil // Release sees to it
	case outcome == draft.Commit:
		if closer.StillOpen(f.id) {
			h.goesOn()
			return nil
		}
	case killed:
		if err := f.cutToSynced(); err != nil {
			return err
		}
	}
	sync, err := e.commit(f)
	if err != nil {
		return err
	}
	return e.copies.afterCommit(ctx, by.Waits, f.id, sync)
}

// flushed notes the close of a descriptor of h and says what it is for the rules of package draft. It asks closer,
// without the lock. It fails with ErrPoisoned if a write of the file has failed.
func (e *drafts) flushed(h *Handle, by Caller, closer Closer) (draft.Close, error) {
	f := h.File
	f.catchUp()
	e.mu.Lock()
	en := e.mu.ix.At(f.id)
	asks := f.waits || en.Flags&flagUncommitted != 0 || f.synced > 0 // else it makes no difference
	temp := e.kindLocked(en) == draft.Temp                           // others may empty it when it is closed
	e.mu.Unlock()
	killed := (asks || e.sharedName(f)) && closer.Killed()
	goesOn := temp && closer.StillOpen(f.id)
	e.mu.Lock()
	h.killed = killed
	h.closedByLocked(by.process(), goesOn)
	c := e.closeLocked(h)
	f.left = f.left || killed && f.waits && c.Kind == draft.Temp && c.Last
	c.Owner, c.Last, c.Killed = by.process() == f.owner, c.Last && h.closed, killed
	err := f.poisoned
	e.mu.Unlock()
	if err != nil {
		err = errors.Join(block.ErrPoisoned, err)
	}
	return c, err
}

// closeLocked tells package draft of the end of h.
func (e *drafts) closeLocked(h *Handle) draft.Close {
	f := h.File
	s := e.stateLocked(f.id, e.mu.ix.At(f.id), &Caller{}, false)
	return draft.Close{
		Kind: s.Kind, Place: s.Place, Owner: f.owner != Process{}, Mine: !f.ownerWritesLocked(h), Failed: f.poisoned != nil,
		Last: !slices.ContainsFunc(f.handles, func(o *Handle) bool { return o != h && !o.closed }),
	}
}

// Release ends h. It commits what no Flush has, because not every client closes
// on the thread that opened; the kernel calls it when the last descriptor is
// gone. It waits for no copy, but has that queued which an earlier fsync asked for.
func (e *drafts) Release(h *Handle) { e.release(h, false) }

// Abandon ends h as that of a killed writer, whose process or mount is gone, in place of
// Release: nobody knows whether what it wrote is whole, so no version is committed by it. A
// version that others are still writing goes on, and is theirs. What all have seen stays.
func (e *drafts) Abandon(h *Handle) { e.release(h, true) }

func (e *drafts) release(h *Handle, abandoned bool) {
	f := h.File
	f.ends.Lock()
	defer f.ends.Unlock()
	f.catchUp()
	e.mu.Lock()
	c := e.closeLocked(h)
	c.Killed = abandoned || h.killed
	owner := f.owner
	unknown := h.silent && !h.closed && c.Kind == draft.Block && c.Place != draft.Seen // by a rename that others did
	e.mu.Unlock()
	if unknown && !e.opts.Alive(h.by.process()) {
		c.Killed = true
	}
	if c.Killed && c.Last && c.Kind == draft.Temp && c.Place == draft.Waits {
		e.mu.Lock()
		f.left = true
		e.mu.Unlock()
	}
	if err := e.end(f, &c); err != nil {
		e.log.Warn("end of an open file", zap.Error(err))
	}
	died := c.Kind == draft.Temp && e.sharedName(f) && !e.opts.Alive(owner) && !e.opts.Alive(h.by.process())
	var g gone
	e.mu.Lock()
	en := e.mu.ix.At(f.id)
	en.Opens--
	f.handles = slices.DeleteFunc(f.handles, func(o *Handle) bool { return o == h })
	f.born = e.now()
	if len(f.handles) == 0 {
		e.endedLocked(f, en, died, &g)
	} else {
		e.goesOnLocked(f, en, &c, &g)
	}
	e.opens.closedLocked(f.id, e.mu.ix.At(f.id), &g)
	e.mu.Unlock()
	e.finish(&g)
}

// goesOnLocked follows the end of a handle of f that was not the last.
func (e *drafts) goesOnLocked(f *File, en *index.Entry, c *draft.Close, g *gone) {
	switch {
	case f.poisoned != nil && draft.End(*c) == draft.Drop: // others have it mapped, at most
		e.dropFailedLocked(f, en, g)
	case c.Killed && c.Mine && c.Place != draft.Seen:
		f.owner = f.handles[0].by.process()
	}
}

// end does what package draft says about the end of a handle of f, as far as that takes system calls.
func (e *drafts) end(f *File, c *draft.Close) error {
	switch draft.End(*c) {
	case draft.Nothing:
		if c.Place != draft.Gone || !c.Last {
			return nil
		}
	case draft.Settle:
		if c.Killed {
			if err := f.cutToSynced(); err != nil {
				return err
			}
		}
	case draft.Drop:
		e.mu.Lock()
		wasEmpty := f.wasEmpty
		if !c.Failed {
			e.mu.counters.KilledWriters++
		}
		e.mu.Unlock()
		if !wasEmpty {
			f.fail(block.ErrPoisoned)
			return nil
		}
		if err := f.empty(); err != nil { // as all saw it before
			return err
		}
		e.mu.Lock()
		f.poisoned = nil
		e.mu.Unlock()
	}
	_, err := e.commit(f)
	if errors.Is(err, room.ErrBlockSize) {
		f.fail(err) // nobody goes on with it
	}
	return err
}

// cutToSynced takes from a file that fsync committed while it was written first what its writer, who was
// killed, has added since.
func (f *File) cutToSynced() error {
	f.e.mu.Lock()
	synced := f.synced
	f.e.mu.Unlock()
	size, _, err := f.fstat()
	if err != nil || synced == 0 || size <= synced {
		return err
	}
	return f.withFile(func(file *os.File) error { return file.Truncate(synced) })
}

// endedLocked follows the end of the last handle of f. died: its owner ends.
func (e *drafts) endedLocked(f *File, en *index.Entry, died bool, g *gone) {
	e.space.guessed.give(f.guessed)
	f.guessed = 0
	named := f.waits || e.mu.ix.Linked(f.id)
	temp := e.kindLocked(en) == draft.Temp
	if f.warm = temp && named; !f.warm {
		g.idle = append(g.idle, f)
	}
	switch {
	case !named:
		return // closedLocked frees it when nobody reads it any more
	case temp && f.poisoned != nil: // its process is going to unlink it
		en.Size = 0
		if f.started {
			g.emptied = append(g.emptied, f)
		}
	case f.poisoned != nil && (f.waits || en.Flags&flagUncommitted != 0 || errors.Is(f.poisoned, room.ErrBlockSize)):
		e.dropFailedLocked(f, en, g)
		return
	case temp && f.waits && !f.asked && !f.left:
		e.takeTempLocked(f, g)
	case temp && died:
		e.yieldLocked(f, g)
	}
	e.space.addUsedLocked(en, chargeOf(en.Size)-f.charge) // what was reserved beyond the size is free again
	f.charge = chargeOf(en.Size)
	if temp || f.waits {
		return
	}
	e.dropFileLocked(f)
	g.files = append(g.files, f)
	e.copies.cascadeLocked(f.id, en)
	e.classifyLocked(f.id, en)
	e.mu.room.Signal() // it can be evicted now
}

// dropFailedLocked makes an unlinked file of f, of which a write has failed, or whose writer was killed.
func (e *drafts) dropFailedLocked(f *File, en *index.Entry, g *gone) {
	e.mu.counters.Poisoned++
	if f.waits {
		e.dropVersionLocked(f, g)
		return
	}
	k := nameKey{e.mu.ix.Parent(f.id), e.mu.ix.Name(f.id)}
	e.names.dropNameLocked(f.id, en, event.Removed, fate.Cause{Reason: fate.ReasonWriteFailed}, g)
	e.seatNextLocked(k, g)
}

// commit brings the entry of f in line with its bytes, if they changed: a version becomes the block of
// its name, for all to see, and a block that was changed in place a new version for other tiers. sync:
// somebody has called fsync on them.
func (e *drafts) commit(f *File) (sync bool, err error) {
	f.commits.Lock()
	defer f.commits.Unlock()
	size, mtime, err := f.fstat()
	if err != nil {
		if errors.Is(err, os.ErrClosed) || errors.Is(err, block.ErrNotFound) {
			return false, nil // released meanwhile, by which it was committed, or removed before it was opened
		}
		return false, err
	}
	if err := e.checkOverrun(f, size); err != nil {
		return false, err
	}
	var g gone
	e.mu.Lock()
	en := e.mu.ix.At(f.id)
	unchanged := en.Flags&flagUncommitted == 0 && en.Size == size && en.Mtime == mtime
	gone := !f.waits && !e.mu.ix.Linked(f.id)
	if e.kindLocked(en) == draft.Block {
		sync, f.sync = f.sync, false
	}
	if unchanged || gone {
		en.Size, en.Mtime = size, mtime // as those see that have it open
		e.mu.Unlock()
		return sync && !gone, nil
	}
	if e.kindLocked(en) != draft.Block {
		e.resizedLocked(f, en, size, mtime, &g)
		e.mu.Unlock()
		e.finish(&g)
		return false, nil // its record is there already, and size and time are the file's
	}
	if err := e.mu.room.Group(en.Group).CheckSize(size); err != nil {
		e.mu.Unlock()
		return false, err
	}
	if sync {
		e.keepSyncedLocked(en)
	}
	if f.waits {
		e.takeNameLocked(f, f.name, &g)
	}
	e.publishLocked(f, en, size, mtime, &g)
	e.mu.Unlock()
	err = e.attrs.writeRecord(f.id, nil)
	e.finish(&g)
	return sync, err
}

// resizedLocked follows that a file which is never committed has got other bytes.
func (e *drafts) resizedLocked(f *File, en *index.Entry, size, mtime int64, g *gone) {
	if over := chargeOf(size) - f.charge; over > 0 {
		e.mu.counters.Overruns++
		f.charge += over
		e.space.addUsedLocked(en, over)
		e.shrinkLocked(e.mu.room.Group(en.Group), g)
	}
	en.Size, en.Mtime, en.Ctime = size, mtime, max(mtime, en.Ctime)
	en.Flags &^= flagSum
	e.attrs.attrsChangedLocked(f.id, en, g)
}

// takeNameLocked gives f the name k. What has it now goes, or, if it is a version that is still
// being written, waits in turn: the last close wins.
func (e *drafts) takeNameLocked(f *File, k nameKey, g *gone) {
	if f.waits {
		e.unawaitLocked(f)
	}
	if holder := e.mu.ix.Lookup(k.parent, k.name); holder != 0 && holder != f.id {
		e.displaceLocked(holder, f.id, k, nil, g)
	}
	e.mu.ix.Link(f.id, k.parent, k.name)
	e.names.changedLocked(k.parent)
}

// keepSyncedLocked has what a tier holds under the name of a version that is about
// to be committed stay there until this one, which somebody has called fsync on, takes
// its place: after a power cut there is one or the other.
func (e *drafts) keepSyncedLocked(en *index.Entry) {
	if !e.mu.room.Group(en.Group).Pinned() {
		en.Flags |= flagSynced
	}
}

// displaceLocked takes the name k from its holder, for heir. by is who renames heir; nil: it takes the name
// because it was closed.
func (e *drafts) displaceLocked(holder, heir index.ID, k nameKey, by *Caller, g *gone) {
	en := e.mu.ix.At(holder)
	if s := e.copies.keeper(); s != nil && e.mu.ix.At(heir).Flags&flagSynced != 0 {
		en.Tiers &^= s.bit // the copy goes over to the heir; s is not the Remote tier
		en.Storing &^= s.bit
		en.Flags &^= flagSynced
	}
	if hf := e.mu.files[holder]; by == nil && hf != nil && len(hf.handles) > 0 && en.Flags&flagUncommitted != 0 {
		e.copies.removeCopiesLocked(holder, en)
		hf.wasEmpty = false // it is not what the name would mean
		e.mu.ix.Unlink(holder)
		e.awaitLocked(hf, k)
		return
	}
	f := e.mu.files[heir]
	if f != nil && en.Flags&flagUncommitted == 0 {
		f.replacesLocked(en)
	}
	e.mu.counters.Removed++
	if by == nil {
		e.names.unlinkLocked(holder, fate.Cause{Reason: fate.ReasonReplaced, By: f.actorLocked()}, Process{}, g)
	} else {
		e.names.unlinkLocked(holder, fate.Cause{Reason: fate.ReasonReplaced, By: by.actor()}, by.process(), g)
	}
}

// publishLocked marks f as committed with the given size and time.
func (e *drafts) publishLocked(f *File, en *index.Entry, size, mtime int64, g *gone) {
	if c := chargeOf(size); c > f.charge {
		e.mu.counters.Overruns++
		e.space.addUsedLocked(en, c-f.charge)
		f.charge = c
	}
	gr := e.mu.room.Group(en.Group)
	if en.Flags&flagUncommitted != 0 {
		e.mu.blocks++
	} else {
		e.attrs.attrsChangedLocked(f.id, en, g) // in place
	}
	if en.Flags&flagPolicy != 0 {
		en.Flags &^= flagPolicy // its size changed: enter it anew
		e.mu.room.Order(en.Group).Remove(uint32(f.id))
	}
	e.copies.staleCopiesLocked(f.id, en)
	en.Flags &^= flagUncommitted | flagSum | flagRefused | flagOnceSeen | flagFetched
	en.Size, en.Mtime, en.Ctime = size, mtime, max(mtime, en.Ctime)
	en.Seq = e.nextSeqLocked()
	e.elsewhere.publishedLocked(f.id, en, f.begun, f.replaces, g)
	f.begun, f.replaces, f.wasEmpty, f.started = en.Seq, true, false, size > 0
	gr.Learn(size)
	e.mu.counters.Stored++
	e.mu.counters.StoredBytes += uint64(size)
	if en.Expires != 0 {
		e.mu.expiries.Add(en.Expires, f.id)
	}
	e.classifyLocked(f.id, en)
	e.eventLocked(event.Stored, f.id, fate.Cause{})
	e.shrinkLocked(gr, g)
	if e.mu.room.High(0) {
		e.space.wakeEvictor()
	}
}

// eventLocked logs an event about a block that has a name.
func (e *core) eventLocked(kind event.Kind, id index.ID, why fate.Cause) {
	tier := "memory"
	if kind == event.Removed && len(e.tiers) > 0 {
		tier = ""
	}
	e.tierEventLocked(kind, tier, id, why)
}

func (e *core) tierEventLocked(kind event.Kind, tier string, id index.ID, why fate.Cause) {
	e.verdicts.noteLocked(kind, tier, id, why)
	e.events.Add(event.Event{
		Time: e.opts.Now(), Kind: kind, Tier: tier, Key: e.keyLocked(id), Size: e.mu.ix.At(id).Size, Reason: why.Reason,
		Guard: e.lookups.guardLocked(nil, id),
	})
}

// checkOverrun decides about a file whose writes the engine has not seen. What
// went past its reservation came out of the headroom; if that is nearly used up,
// by this file or another, a write may have ended short, and if the file is
// larger than the tier or its quota, it cannot stay. Either poisons it.
func (e *drafts) checkOverrun(f *File, size int64) error {
	e.mu.Lock()
	over := chargeOf(size) - f.charge
	gr := e.mu.room.Group(e.mu.ix.At(f.id).Group)
	tooLarge := over > 0 && (chargeOf(size) > e.opts.CapacityBytes || gr.Pinned() && gr.Over(over))
	direct := f.directLocked()
	e.mu.Unlock()
	if !direct {
		return nil
	}
	need := e.opts.HeadroomBytes / 16
	if over > 0 {
		need = e.opts.HeadroomBytes / 8 // what gauge leaves
	}
	if !tooLarge {
		free, err := e.space.gauge(0, false) // which evicts, so that others have room
		if err == nil && (free >= need || f.whole(size)) {
			return nil
		}
	}
	perr := error(&block.Error{Op: "commit", Tier: "memory", Err: block.ErrNoSpace})
	f.poison(perr)
	return perr
}

// shrinkLocked evicts what is held beyond the capacity, or beyond the quota of the
// group, within leases if it must. What is just a part of the headroom stays for as long as
// nothing can go that is not leased, or in no other tier yet: the next write waits for that.
func (e *drafts) shrinkLocked(gr *room.Group, g *gone) {
	if ok, _ := e.space.roomLocked(gr, 0, false, g); ok {
		return
	}
	if !gr.Over(0) && e.mu.room.Used() <= e.opts.CapacityBytes+e.opts.HeadroomBytes/2 {
		return
	}
	e.space.roomLocked(gr, 0, true, g)
}

// writeRecord brings the record of a committed entry up to date with its name
// and attributes, or drops that of one which has begun to wait for its name
// (File.recorded). file is its primary file if the caller has it open, else nil.
// Writers of one record are ordered, and each writes what is true when it has its
// turn, so the last one leaves the truth.
func (e *attrs) writeRecord(id index.ID, file *os.File) error {
	return e.space.atOnce(func() error { return e.tryRecord(id, file) })
}

func (e *attrs) tryRecord(id index.ID, file *os.File) error {
	stripe := &e.records[uint32(id)%uint32(len(e.records))]
	stripe.Lock()
	defer stripe.Unlock()
	e.mu.Lock()
	if !e.mu.ix.Valid(id) { // it has gone meanwhile: who has it written holds no reference
		e.mu.Unlock()
		return nil
	}
	en := e.mu.ix.At(id)
	f := e.mu.files[id]
	committed := e.mu.ix.Linked(id) && en.Flags&flagUncommitted == 0
	if en.Blob == 0 || !committed && (f == nil || !f.recorded) {
		e.mu.Unlock()
		return nil
	}
	var r driver.Record
	if committed {
		r = recordOf(e.mu.ix, id, en)
	}
	blob := driver.BlobID(en.Blob)
	if f != nil {
		f.recorded = false
	}
	if f != nil && file == nil && f.file != nil {
		file = f.file
		f.users++
		defer f.unuse()
	}
	e.mu.Unlock()
	if file == nil {
		opened, err := e.primary.Open(blob)
		if errors.Is(err, block.ErrNotFound) {
			return nil // removed meanwhile
		}
		if err != nil {
			return err
		}
		defer opened.Close()
		file = opened
	}
	var err error
	if committed {
		err = e.primary.Commit(blob, file, &r)
	} else {
		err = e.primary.Uncommit(blob, file)
	}
	if errors.Is(err, os.ErrClosed) {
		return nil // removed meanwhile
	}
	return err
}

func recordOf(ix *index.Index, id index.ID, en *index.Entry) driver.Record {
	r := driver.Record{
		Path: ix.Path(id), Dir: en.Mode&modeType == modeDir, Seq: en.Seq, Size: en.Size,
		Mode: en.Mode & 0o7777, UID: en.UID, GID: en.GID,
		Mtime: time.Unix(0, en.Mtime), Atime: time.Unix(0, en.Atime),
		Pinned: en.Flags&flagPinned != 0,
	}
	if en.Flags&flagSum != 0 {
		r.Sum = block.Checksum{Sum: en.Sum, Valid: true}
	}
	if en.Expires != 0 {
		r.Expires = time.Unix(0, en.Expires)
	}
	return r
}
