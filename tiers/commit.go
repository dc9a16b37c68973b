package tiers

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/room"
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
		return nil // Release does the rest
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

// flushed notes the close of a descriptor of h, and describes it for package draft. It asks closer and holds no lock
// meanwhile. It fails with ErrPoisoned if a write of the file has failed.
func (e *drafts) flushed(h *Handle, by Caller, closer Closer) (draft.Close, error) {
	f := h.File
	f.catchUp()
	e.mu.Lock()
	en := e.mu.ix.At(f.id)
	asks := f.waits || en.Flags&flagUncommitted != 0 || f.synced >= 0 // else the answer makes no difference
	// What others do with a temporary file, and what the end of another handle does, depends on whether this one goes on.
	shared := e.kindLocked(en) == draft.Temp || len(f.handles) > 1
	e.mu.Unlock()
	killed := (asks || e.sharedName(f)) && closer.Killed()
	goesOn := shared && closer.StillOpen(f.id)
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
		Synced: f.synced >= 0,
		Last:   !slices.ContainsFunc(f.handles, func(o *Handle) bool { return o != h && !o.closed }),
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
	f.catchUp()
	e.mu.Lock()
	c := e.closeLocked(h)
	c.Killed = abandoned || h.killed
	owner := f.owner
	unknown := h.silent && !h.closed && c.Kind == draft.Block && c.Place != draft.Seen // another process renamed it
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

// goesOnLocked is called when a handle of f has ended that was not the last.
func (e *drafts) goesOnLocked(f *File, en *index.Entry, c *draft.Close, g *gone) {
	switch {
	case f.poisoned != nil && draft.End(*c) == draft.Drop: // other processes at most have it mapped
		e.dropFailedLocked(f, en, g)
	case c.Killed && c.Mine && c.Place != draft.Seen:
		f.owner = f.handles[0].by.process()
	}
}

// end does the part of draft.End's decision about a handle of f that takes system calls.
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
		f.fail(err) // no process goes on with it
	}
	return err
}

// cutToSynced truncates a file to the bytes that fsync kept while it was first written. Its writer was killed, and the
// bytes added since then may not be whole.
func (f *File) cutToSynced() error {
	f.e.mu.Lock()
	synced := f.synced
	f.e.mu.Unlock()
	size, _, err := f.fstat()
	if err != nil || synced < 0 || size <= synced {
		return err
	}
	return f.withFile(func(file *os.File) error { return file.Truncate(synced) })
}

// endedLocked is called when the last handle of f has ended. died: its owner has died.
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
		return // closedLocked frees it after its last reader
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
	e.space.addUsedLocked(en, chargeOf(en.Size)-f.charge) // room reserved beyond the size is free again
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

// dropFailedLocked unlinks f, or ends its wait for a name: a write of f has failed, or its writer was killed.
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

// commit brings the entry of f in line with its bytes, if they changed. A version becomes the block of
// its name, and all processes see it. A block that was changed in place becomes a new version for other
// tiers. sync: a process has called fsync on the bytes.
func (e *drafts) commit(f *File) (sync bool, err error) {
	f.commits.Lock()
	defer f.commits.Unlock()
	size, mtime, err := f.fstat()
	if err != nil {
		if errors.Is(err, os.ErrClosed) || errors.Is(err, block.ErrNotFound) {
			return false, nil // released meanwhile, and so committed; or removed before it was opened
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
		en.Size, en.Mtime = size, mtime // as processes that have it open see them
		e.mu.Unlock()
		return sync && !gone, nil
	}
	if e.kindLocked(en) != draft.Block {
		e.resizedLocked(f, en, size, mtime, &g)
		e.mu.Unlock()
		e.finish(&g)
		return false, nil // its record is there already; size and time come from the file
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

// resizedLocked brings the entry in line when the bytes of a file that is never committed have changed.
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

// takeNameLocked gives f the name k. The file that has the name now loses it. If that file is a version
// that is still being written, it waits for the name in turn: the last close wins.
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

// keepSyncedLocked is called before a version is committed that a process has called fsync on. The copy that a tier
// holds under its name stays there until the new version takes its place. So after a power cut there is one of them.
func (e *drafts) keepSyncedLocked(en *index.Entry) {
	if !e.mu.room.Group(en.Group).Pinned() {
		en.Flags |= flagSynced
	}
}

// displaceLocked takes the name k from its holder, and heir will get it. by is the caller that renames heir. by is
// nil if heir takes the name because it was closed.
func (e *drafts) displaceLocked(holder, heir index.ID, k nameKey, by *Caller, g *gone) {
	en := e.mu.ix.At(holder)
	if s := e.copies.keeper(); s != nil && e.mu.ix.At(heir).Flags&flagSynced != 0 {
		en.Tiers &^= s.bit // the copy goes over to the heir; s is not the Remote tier
		en.Storing &^= s.bit
		en.Flags &^= flagSynced
	}
	if hf := e.mu.files[holder]; by == nil && hf != nil && len(hf.handles) > 0 && en.Flags&flagUncommitted != 0 {
		e.copies.removeCopiesLocked(holder, en)
		hf.wasEmpty = false // the name no longer means this file
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
	f.synced, f.kept = -1, -1
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

// checkOverrun decides about a file whose writes the engine has not seen. Bytes
// past its reservation came out of the headroom. It poisons the file if the headroom
// is nearly used up, by this file or another, because a write may have ended short.
// It also poisons a file that is larger than the tier or its quota: that cannot stay.
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
		need = e.opts.HeadroomBytes / 8 // gauge leaves this much
	}
	if !tooLarge {
		free, err := e.space.gauge(0, false) // gauge also evicts, so that others have room
		if err == nil && (free >= need || f.whole(size)) {
			return nil
		}
	}
	perr := error(&block.Error{Op: "commit", Tier: "memory", Err: block.ErrNoSpace})
	f.poison(perr)
	return perr
}

// shrinkLocked evicts down to the capacity and to the quota of the group. It evicts leased
// blocks, and those in no other tier yet, only if the quota or half of the headroom is
// exceeded. Otherwise the excess stays in the headroom, and the next write waits for room.
func (e *drafts) shrinkLocked(gr *room.Group, g *gone) {
	if ok, _ := e.space.roomLocked(gr, 0, false, g); ok {
		return
	}
	if !gr.Over(0) && e.mu.room.Used() <= e.opts.CapacityBytes+e.opts.HeadroomBytes/2 {
		return
	}
	e.space.roomLocked(gr, 0, true, g)
}

// writeRecord brings the record of a committed entry up to date with its name and
// attributes. It drops the record of an entry that has begun to wait for its name
// (File.recorded). file is the primary file if the caller has it open, else nil.
// Writers of one record take turns. Each writes the attributes of the time of its
// turn, so the last record is right.
func (e *attrs) writeRecord(id index.ID, file *os.File) error {
	return e.space.atOnce(func() error { return e.tryRecord(id, file) })
}

func (e *attrs) tryRecord(id index.ID, file *os.File) error {
	stripe := &e.records[uint32(id)%uint32(len(e.records))]
	stripe.Lock()
	defer stripe.Unlock()
	e.mu.Lock()
	blob, r, due := e.dueRecordLocked(id)
	if !due {
		e.mu.Unlock()
		return nil
	}
	if f := e.mu.files[id]; f != nil && file == nil && f.file != nil {
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
	if r != nil {
		err = e.primary.Commit(blob, file, r)
	} else {
		err = e.primary.Uncommit(blob, file)
	}
	if errors.Is(err, os.ErrClosed) {
		return nil // removed meanwhile
	}
	return err
}

// dueRecordLocked returns the record that the file of an entry must get, nil if it must lose the one that it has. due is
// false if the file stays as it is.
func (e *attrs) dueRecordLocked(id index.ID) (blob driver.BlobID, r *driver.Record, due bool) {
	if !e.mu.ix.Valid(id) { // gone meanwhile: the caller holds no reference
		return 0, nil, false
	}
	en, f := e.mu.ix.At(id), e.mu.files[id]
	committed := e.mu.ix.Linked(id) && en.Flags&flagUncommitted == 0
	if en.Blob == 0 || !committed && (f == nil || !f.recorded) {
		return 0, nil, false
	}
	if committed {
		record := recordOf(e.mu.ix, id, en)
		r = &record
	}
	if f != nil {
		f.recorded = false
	}
	return driver.BlobID(en.Blob), r, true
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
