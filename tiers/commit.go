package tiers

import (
	"context"
	"errors"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
)

// Closer is what Flush asks about the process that closes a descriptor. No lock
// is held meanwhile.
type Closer interface {
	// Killed reports whether a signal is ending the process.
	Killed() bool
	// StillOpen reports whether the process has another descriptor of the file.
	StillOpen(id index.ID) bool
}

// Flush follows close(2) on a descriptor of h, by thread tid. If the file is
// written in place under its final name, the block is committed: complete and
// visible to all when Flush returns.
//
// dup'ed descriptors flush more than once; a later Flush commits again if bytes
// changed since, and an empty file of which the process has another descriptor
// (every shell redirection makes one) is not committed yet. Of several handles the
// last one commits. A descriptor that another process inherited and closes
// commits nothing. If a signal is ending the process, the file is poisoned,
// because nobody knows whether it is whole; be it at Release, if the thread that opened
// has ended by then and so it cannot be told whose descriptor it was.
//
// It waits for the block's copy in a secondary tier where the cascade is
// synchronous, or where the file was fsynced before.
//
// It fails with ErrPoisoned joined with the error of the write that failed, and,
// after an fsync, as Fsync does.
func (e *Engine) Flush(ctx context.Context, h *Handle, tid uint32, by Closer) error {
	if !h.Write {
		return nil
	}
	f := h.File
	own := tid == h.tid || e.opts.SameProcess(tid, h.tid)
	killed := !own && by.Killed()
	e.mu.Lock()
	en := e.mu.ix.At(f.id)
	h.killed = killed
	if own && !h.closed {
		h.closed = true
		f.closed++
	}
	var (
		uncommitted = en.Flags&flagUncommitted != 0
		held        = uncommitted && en.Flags&flagTemp != 0 // until it is renamed
		named       = f.shadow || e.mu.ix.Linked(f.id)
		alias       = f.base != 0
		last        = f.closed == f.writers
		poisoned    = f.poisoned
	)
	e.mu.Unlock()
	switch {
	case poisoned != nil:
		return errors.Join(block.ErrPoisoned, poisoned)
	case !named || alias || held || !own || !last:
		return nil
	case uncommitted && by.Killed():
		f.poison(block.ErrPoisoned)
		e.mu.Lock()
		e.mu.counters.KilledWriters++
		e.mu.Unlock()
		return nil
	}
	if size, _, err := f.fstat(); err == nil && size == 0 && by.StillOpen(f.id) {
		f.reopened(h)
		return nil
	}
	sync, err := e.commit(f)
	if err != nil {
		return err
	}
	return e.afterCommit(ctx, f.id, sync)
}

// Release ends h. It commits what no Flush has, because not every client closes
// on the thread that opened; the kernel calls it when the last descriptor is
// gone. It waits for no copy, but has that queued which an earlier fsync asked for.
func (e *Engine) Release(h *Handle) { e.release(h, false) }

// Abandon ends h as that of a killed writer, whose process or mount is gone, in place of
// Release: nobody knows whether what it wrote is whole, so no version is committed by it. A
// version that others are still writing goes on, and is theirs to commit. One under a
// temporary name waits for TempExpiry. Of a committed file that was written in place the
// record follows the bytes, which all have seen.
func (e *Engine) Abandon(h *Handle) { e.release(h, true) }

func (e *Engine) release(h *Handle, abandoned bool) {
	f := h.File
	synced := false
	if h.Write {
		e.mu.Lock()
		abandoned = abandoned || h.killed && !h.closed
		e.mu.Unlock()
		synced = e.releaseBytes(h, abandoned)
	}
	var g gone
	e.mu.Lock()
	en := e.mu.ix.At(f.id)
	en.Opens--
	if h.Write {
		f.writers--
		if f.writers == 0 {
			e.mu.guessedBytes -= f.guessed
			f.guessed = 0
		}
		if h.closed {
			f.closed--
		}
		f.born = e.now()
		if abandoned {
			e.abandonLocked(f, en)
		}
		if f.writers == 0 && f.poisoned != nil && en.Flags&flagUncommitted != 0 {
			e.failLocked(f, en, &g)
		}
		if synced && f.writers == 0 {
			e.cascadeLocked(f.id, en) // now, not when its readers close it
		}
	}
	e.settleLocked(f.id, e.mu.ix.At(f.id), &g)
	e.mu.Unlock()
	e.finish(&g)
}

// releaseBytes commits the bytes of a handle that is about to be released if it is the last,
// and reports whether somebody has called fsync on them.
func (e *Engine) releaseBytes(h *Handle, abandoned bool) (synced bool) {
	f := h.File
	e.mu.Lock()
	en := e.mu.ix.At(f.id)
	named := f.shadow || e.mu.ix.Linked(f.id)
	others, closed := f.writers-1, f.closed
	if h.closed {
		closed--
	}
	held := en.Flags&(flagUncommitted|flagTemp) == flagUncommitted|flagTemp
	last := others == closed && named && f.poisoned == nil && f.base == 0
	direct := f.direct
	e.mu.Unlock()
	switch {
	case !last:
	case held && direct:
		e.settleOverrun(f)
	case !held:
		var err error
		if synced, err = e.commitBytes(f, abandoned); err != nil {
			e.log.Warn("commit at release", zap.Error(err))
		}
	}
	return synced
}

// abandonLocked follows the end of a handle that was abandoned: if all handles that are left
// are closed, none of them will commit what it leaves behind.
func (e *Engine) abandonLocked(f *File, en *index.Entry) {
	last := f.closed == f.writers && (f.shadow || e.mu.ix.Linked(f.id))
	if last && f.base == 0 && f.poisoned == nil && en.Flags&(flagUncommitted|flagTemp) == flagUncommitted {
		f.poisoned = block.ErrPoisoned
		e.mu.counters.KilledWriters++
	}
}

// failLocked ends an uncommitted file that can never be committed, now that its
// last handle is closed: it loses its name or, if that is temporary and its owner
// is going to unlink it, only its bytes.
func (e *Engine) failLocked(f *File, en *index.Entry, g *gone) {
	e.mu.counters.Poisoned++
	if f.shadow || !e.mu.ix.Linked(f.id) {
		return
	}
	if en.Flags&flagTemp != 0 {
		e.addUsedLocked(en, -f.charge)
		f.charge = 0
		g.emptied = append(g.emptied, f)
		return
	}
	e.dropNameLocked(f.id, en, BlockRemoved, "write failed", g)
}

// commit makes the present bytes of f the block of its name, for all to see. sync:
// somebody has called fsync on them.
func (e *Engine) commit(f *File) (sync bool, err error) { return e.commitBytes(f, false) }

// commitBytes is commit; with inPlace it leaves what is not committed yet as it is.
func (e *Engine) commitBytes(f *File, inPlace bool) (sync bool, err error) {
	size, mtime, err := f.fstat()
	if err != nil {
		if errors.Is(err, os.ErrClosed) {
			return false, nil // released meanwhile, by which it was committed
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
	gone := !f.shadow && !e.mu.ix.Linked(f.id)
	if inPlace && en.Flags&flagUncommitted != 0 {
		e.mu.Unlock()
		return false, nil
	}
	sync, f.sync = f.sync, false
	if unchanged || gone {
		e.mu.Unlock()
		return sync && !gone, nil
	}
	if sync {
		e.keepSyncedLocked(en)
	}
	if f.shadow {
		e.mu.actor = f.owner
		e.takeNameLocked(f, f.name, &g)
		e.mu.actor = 0
	}
	e.publishLocked(f, en, size, mtime, &g)
	e.mu.Unlock()
	err = e.writeRecord(f.id, nil)
	e.finish(&g)
	return sync, err
}

// takeNameLocked gives f the name k. Who holds it now goes, or, if it is still
// being written, waits in turn: the last commit wins.
func (e *Engine) takeNameLocked(f *File, k nameKey, g *gone) {
	if f.shadow {
		e.unshadowLocked(f)
	}
	if holder := e.mu.ix.Lookup(k.parent, k.name); holder != 0 && holder != f.id {
		e.displaceLocked(holder, f.id, k, g)
	}
	e.mu.ix.Link(f.id, k.parent, k.name)
	e.dropIdleLocked(k, g)
	e.changedLocked(k.parent)
}

// keepSyncedLocked has what a tier holds under the name of a version that is about
// to be committed stay there until this one, which somebody has called fsync on, takes
// its place: after a power cut there is one or the other.
func (e *Engine) keepSyncedLocked(en *index.Entry) {
	if !e.mu.groups[en.Group].opts.Pinned {
		en.Flags |= flagSynced
	}
}

// displaceLocked takes the name from its holder, for heir.
func (e *Engine) displaceLocked(holder, heir index.ID, k nameKey, g *gone) {
	en := e.mu.ix.At(holder)
	if s := e.keeper(); s != nil && e.mu.ix.At(heir).Flags&flagSynced != 0 {
		en.Tiers &^= s.bit // the copy goes over to the heir; s is not the Remote tier
		en.Storing &^= s.bit
		en.Flags &^= flagSynced
	}
	if hf := e.mu.files[holder]; hf != nil && hf.writers > 0 && en.Flags&flagUncommitted != 0 {
		if en.Flags&flagSynced != 0 {
			e.removeCopiesLocked(holder, en)
		}
		e.mu.ix.Unlink(holder)
		e.shadowLocked(hf, k)
		return
	}
	if f := e.mu.files[heir]; f != nil && en.Flags&flagUncommitted == 0 {
		f.replacesLocked(en)
	}
	e.mu.counters.Removed++
	e.unlinkLocked(holder, "replaced", g)
}

// publishLocked marks f as committed with the given size and time.
func (e *Engine) publishLocked(f *File, en *index.Entry, size, mtime int64, g *gone) {
	if c := chargeOf(size); c > f.charge {
		e.mu.counters.Overruns++
		e.addUsedLocked(en, c-f.charge)
		f.charge = c
	}
	gr := e.mu.groups[en.Group]
	if en.Flags&flagUncommitted != 0 {
		e.mu.blocks++
	} else {
		e.attrsChangedLocked(f.id, en, g) // in place
	}
	if en.Flags&flagPolicy != 0 {
		en.Flags &^= flagPolicy // its size changed: enter it anew
		e.orderLocked(gr).Remove(uint32(f.id))
	}
	e.staleCopiesLocked(f.id, en)
	en.Flags &^= flagUncommitted | flagSum | flagRefused | flagOnceSeen | flagFetched
	en.Size, en.Mtime, en.Ctime = size, mtime, max(mtime, en.Ctime)
	en.Seq = e.nextSeqLocked()
	e.publishedLocked(f.id, en, f.begun, f.replaces, g)
	f.begun, f.replaces = en.Seq, true
	gr.learn(size)
	e.mu.counters.Stored++
	e.mu.counters.StoredBytes += uint64(size)
	if en.Expires != 0 {
		e.mu.expiries.add(en.Expires, f.id)
	}
	e.classifyLocked(f.id, en)
	e.eventLocked(BlockStored, f.id, "")
	e.shrinkLocked(gr, g)
	if e.highLocked() {
		e.wakeEvictor()
	}
}

// eventLocked logs an event about a block that has a name.
func (e *Engine) eventLocked(kind EventKind, id index.ID, reason string) {
	tier := "memory"
	if kind == BlockRemoved && len(e.tiers) > 0 {
		tier = ""
	}
	e.tierEventLocked(kind, tier, id, reason)
}

func (e *Engine) tierEventLocked(kind EventKind, tier string, id index.ID, reason string) {
	e.noteLocked(kind, tier, id, reason)
	e.events.add(Event{Time: e.opts.Now(), Kind: kind, Tier: tier, Key: e.keyLocked(id), Size: e.mu.ix.At(id).Size, Reason: reason})
}

// checkOverrun decides about a file whose writes the engine has not seen. What
// went past its reservation came out of the headroom; if that is nearly used up,
// by this file or another, a write may have ended short, and if the file is
// larger than the tier or its quota, it cannot stay. Either poisons it.
func (e *Engine) checkOverrun(f *File, size int64) error {
	e.mu.Lock()
	over := chargeOf(size) - f.charge
	gr := e.mu.groups[e.mu.ix.At(f.id).Group]
	quota := gr.opts.QuotaBytes
	tooLarge := over > 0 && (chargeOf(size) > e.opts.CapacityBytes || quota > 0 && gr.opts.Pinned && gr.usedBytes+over > quota)
	direct := f.direct
	e.mu.Unlock()
	if !direct {
		return nil
	}
	need := e.opts.HeadroomBytes / 16
	if over > 0 {
		need = e.opts.HeadroomBytes / 4
	}
	free, err := e.primary.FreeBytes()
	if err == nil && free >= need && !tooLarge {
		return nil
	}
	perr := error(&block.Error{Op: "commit", Tier: "memory", Err: block.ErrNoSpace})
	f.poison(perr)
	return perr
}

// settleOverrun accounts for what a temporary file took past its reservation,
// when a handle of it is closed, and makes room for it.
func (e *Engine) settleOverrun(f *File) {
	size, _, err := f.fstat()
	if err != nil || e.checkOverrun(f, size) != nil {
		return
	}
	var g gone
	e.mu.Lock()
	if over := chargeOf(size) - f.charge; over > 0 {
		en := e.mu.ix.At(f.id)
		gr := e.mu.groups[en.Group]
		e.mu.counters.Overruns++
		f.charge += over
		e.addUsedLocked(en, over)
		e.shrinkLocked(gr, &g)
	}
	e.mu.Unlock()
	e.finish(&g)
}

// shrinkLocked evicts what is held beyond the capacity, or beyond the quota of the
// group, within leases if it must. What is just a part of the headroom stays for as long as
// nothing can go that is not leased, or in no other tier yet: the next write waits for that.
func (e *Engine) shrinkLocked(gr *group, g *gone) {
	if ok, _ := e.roomLocked(gr, 0, false, g); ok {
		return
	}
	q := gr.opts.QuotaBytes
	if (q == 0 || gr.usedBytes <= q) && e.mu.usedBytes <= e.opts.CapacityBytes+e.opts.HeadroomBytes/2 {
		return
	}
	e.roomLocked(gr, 0, true, g)
}

// writeRecord brings the record of a committed entry up to date with its name
// and attributes. file is its primary file if the caller has it open, else nil.
// Writers of one record are ordered, and each writes what is true when it has its
// turn, so the last one leaves the truth.
func (e *Engine) writeRecord(id index.ID, file *os.File) error {
	stripe := &e.records[uint32(id)%uint32(len(e.records))]
	stripe.Lock()
	defer stripe.Unlock()
	e.mu.Lock()
	en := e.mu.ix.At(id)
	if !e.mu.ix.Linked(id) || en.Flags&flagUncommitted != 0 || en.Blob == 0 {
		e.mu.Unlock()
		return nil
	}
	r := recordOf(e.mu.ix, id, en)
	blob := BlobID(en.Blob)
	if f := e.mu.files[id]; f != nil && f.base == 0 && file == nil {
		if file = f.useLocked(); file != nil {
			defer f.unuse()
		}
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
	err := e.primary.Commit(blob, file, &r)
	if errors.Is(err, os.ErrClosed) {
		return nil // removed meanwhile
	}
	return err
}

func recordOf(ix *index.Index, id index.ID, en *index.Entry) Record {
	r := Record{
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
