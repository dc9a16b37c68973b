package tiers

import (
	"context"
	"errors"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/policy"
	"github.com/kvfs/kvfs/tiers/room"
)

// space is the room of memory: reserving it, waiting for it, evicting and expiring blocks.
type space struct {
	*core

	wake    chan struct{} // capacity 1: tells the evictor that the high watermark was passed
	guessed allowance     // bytes that speculate reserved
}

// gone is the work left to do outside the lock after entries left the primary tier:
// to remove their files, and to take their names out of the kernel's cache.
type gone struct {
	blobs   []driver.BlobID
	dropped []driver.BlobID // those of blobs that no handle of the engine uses any more
	names   []goneName
	files   []*File        // no longer in use: to be closed
	emptied []*File        // their bytes are given up
	idle    []*File        // no handle is left
	records []index.ID     // to be written
	graves  []driver.Grave // names whose versions elsewhere are void, because this node has a version now
}

type goneName struct {
	parent, id index.ID
	name       string
	by         Process // as in Options.Invalidate
}

// finish does the work in g. The event log has the events already. The caller holds no lock.
func (e *core) finish(g *gone) {
	for _, f := range g.emptied {
		if err := f.giveUp(); err != nil && !errors.Is(err, os.ErrClosed) {
			e.log.Warn("give up a failed write", zap.Error(err))
		}
	}
	for _, f := range g.idle {
		f.closeIdle()
	}
	for _, id := range g.records {
		if err := e.attrs.writeRecord(id, nil); err != nil {
			e.log.Warn("record of a file", zap.Error(err))
		}
	}
	for _, f := range g.files {
		f.closeFile()
	}
	for _, b := range g.blobs {
		e.removeBlob(b)
	}
	for _, b := range g.dropped {
		e.opts.Dropped(b)
	}
	for _, n := range g.names {
		e.opts.Invalidate(n.by, n.parent, n.id, n.name)
	}
	if len(g.graves) > 0 {
		e.far.Bury(g.graves)
	}
}

// chargeLocked returns the bytes of memory that an entry costs now.
func (e *core) chargeLocked(id index.ID, en *index.Entry) int64 {
	if f := e.mu.files[id]; f != nil {
		return f.charge
	}
	if en.Blob == 0 {
		return 0 // not in memory
	}
	return chargeOf(en.Size)
}

// addUsedLocked changes the bytes charged to an entry by delta.
func (e *space) addUsedLocked(en *index.Entry, delta int64) {
	e.mu.room.Charge(e.mu.room.Group(en.Group), delta, en.Flags&flagCounted != 0)
	if delta < 0 {
		e.mu.room.Signal()
	}
}

// classifyLocked brings an entry's place in the accounts and in its policy in line with its
// flags. The entry counts as pinned while it is open, being written or pinned. It is in the
// policy while it is a committed block that may be evicted.
func (e *core) classifyLocked(id index.ID, en *index.Entry) {
	linked := e.mu.ix.Linked(id)
	resident := en.Blob != 0 || e.mu.files[id] != nil
	hold := en.Flags&(flagUncommitted|flagPinned|flagTemp|flagPlain) != 0 || e.mu.room.Group(en.Group).Pinned() || !linked || !resident
	if counted := resident && (hold || en.Opens > 0); counted != (en.Flags&flagCounted != 0) {
		if counted {
			en.Flags |= flagCounted
			e.mu.room.Pin(e.chargeLocked(id, en))
		} else {
			en.Flags &^= flagCounted
			e.mu.room.Pin(-e.chargeLocked(id, en))
			e.mu.room.Signal()
		}
	}
	if evictable := !hold; evictable != (en.Flags&flagPolicy != 0) {
		if evictable {
			en.Flags |= flagPolicy
			e.mu.room.Order(en.Group).Add(uint32(id), e.pathHashLocked(id), max(chargeOf(en.Size), 1))
		} else {
			en.Flags &^= flagPolicy
			e.mu.room.Order(en.Group).Remove(uint32(id))
		}
	}
}

// evictLocked evicts blocks in the order of pol until need bytes are gone or no more blocks may go. It returns the
// bytes freed. until is the earliest end of a lease that kept a block (nanoseconds since the epoch), 0 if none did.
// force evicts leased blocks too.
func (e *space) evictLocked(pol policy.Policy, need int64, reason fate.Reason, force bool, g *gone) (freed, until int64) {
	h := hunt{space: e, now: e.now(), need: need, force: force}
	if reason == fate.ReasonWatermark {
		h.idle = int64(watermarkIdle)
	}
	pol.Victims(h.judgeLocked)
	for _, id := range h.victims {
		en := e.mu.ix.At(id)
		e.mu.counters.Evicted++
		e.mu.counters.EvictedBytes += uint64(en.Size)
		e.evictOneLocked(id, en, reason, g)
	}
	return h.freed, h.until
}

// hunt is one search for blocks to evict.
type hunt struct {
	*space
	now, idle   int64 // nanoseconds; blocks used within idle stay; 0: no bound
	need, freed int64 // bytes
	force       bool
	until       int64 // earliest end of a lease that kept a block; 0: none did
	dirty       int   // blocks met that have no copy yet
	victims     []index.ID
}

// judgeLocked decides about the next block in the order of a policy.
func (h *hunt) judgeLocked(n uint32) policy.Verdict {
	if h.freed >= h.need {
		return policy.Stop
	}
	id := index.ID(n)
	en := h.mu.ix.At(id)
	if en.Opens > 0 || h.mu.files[id] != nil {
		return policy.Skip
	}
	if h.idle > 0 && h.now-max(en.Atime, en.Ctime) < h.idle {
		return policy.Stop // a skip would count as a use, and the blocks behind it are as young
	}
	if v, stays := h.uncopiedLocked(id, en); stays {
		return v
	}
	if en.Lease > h.now && !h.force && en.Tiers == 0 { // else another tier or node keeps the promise
		if h.until == 0 || en.Lease < h.until {
			h.until = en.Lease
		}
		return policy.Skip
	}
	en.Flags &^= flagPolicy
	h.freed += max(chargeOf(en.Size), 1) // an empty block frees a file
	h.victims = append(h.victims, id)
	return policy.Evict
}

// uncopiedLocked queues the copy of a block that has no copy in a tier of this node. stays: the block may not go
// before that, and v is the verdict on it.
func (h *hunt) uncopiedLocked(id index.ID, en *index.Entry) (v policy.Verdict, stays bool) {
	own := h.ownTiers(en)
	if h.lazy != 0 && own|en.Storing == 0 && !h.force {
		if v, ok := h.leaveLocked(id, en, h.need-h.freed); ok {
			return v, true
		}
	}
	if en.Storing == 0 && (own != 0 || len(h.tiers) == 0 || h.force || h.dirty <= maxDirty && !h.copies.cleanLocked(id, en, false)) {
		return 0, false
	}
	if h.dirty++; h.dirty > maxSearch && !h.force {
		return policy.Stop, true
	}
	return policy.Skip, true
}

// One search for victims has the first maxDirty blocks without a copy copied down. It skips at most maxSearch such
// blocks to find others that may go. That takes a millisecond or two under the lock.
const (
	maxDirty  = 4096
	maxSearch = 64 << 10
)

// leaveLocked queues a copy of a block to a tier that gets blocks only when they are evicted. leftLocked evicts the
// block when the copy is there. need is the number of bytes that still have to go. Copies under way come to no more
// than need or one job of a tier, whichever is more. ok is false if the block is not for such a tier.
func (e *space) leaveLocked(id index.ID, en *index.Entry, need int64) (v policy.Verdict, ok bool) {
	if e.leavingLocked() >= max(need, min(lane.StoreJobBytes, e.opts.CapacityBytes/64)) {
		return policy.Stop, true
	}
	switch {
	case !e.copies.cleanLocked(id, en, true):
		return 0, false
	case en.Storing == 0: // the queue is full
		return policy.Stop, true
	case en.Storing&e.lazy == 0:
		return 0, false
	}
	en.Flags &^= flagPolicy
	return policy.Evict, true
}

// leavingLocked returns the bytes of blocks that are being copied because they leave memory.
func (e *core) leavingLocked() (bytes int64) {
	for _, s := range e.tiers {
		bytes += s.LeavingLocked()
	}
	return bytes
}

// leftLocked evicts a block after the copy that leaveLocked queued, unless the block was used meanwhile.
func (e *copies) leftLocked(s *secondary, op *lane.Store, g *gone) {
	if !op.Leaving || !e.mu.ix.Valid(op.ID) {
		return
	}
	en := e.mu.ix.At(op.ID)
	if en.Seq != op.Seq || en.Tiers&s.bit == 0 || en.Blob == 0 || en.Flags&(flagPolicy|flagPinned) != 0 ||
		en.Opens > 0 || e.mu.files[op.ID] != nil || !e.mu.ix.Linked(op.ID) {
		return
	}
	e.mu.counters.Evicted++
	e.mu.counters.EvictedBytes += uint64(en.Size)
	e.space.evictOneLocked(op.ID, en, fate.ReasonCapacity, g)
}

// evictOneLocked takes a block out of memory. If no other tier has it, the block is lost, and its name is removed.
func (e *space) evictOneLocked(id index.ID, en *index.Entry, reason fate.Reason, g *gone) {
	if en.Tiers == 0 {
		if len(e.tiers) > 0 {
			e.mu.counters.Lost++
			for _, s := range e.tiers {
				if s.opts.Cascade != CascadeOff && en.Flags&(flagRefused|flagOnceSeen) == 0 {
					s.StatsLocked().CascadeDropped++
				}
			}
		}
		e.names.dropNameLocked(id, en, event.Evicted, fate.Cause{Reason: reason}, g)
		return
	}
	e.addUsedLocked(en, -chargeOf(en.Size))
	g.blobs = append(g.blobs, driver.BlobID(en.Blob))
	g.dropped = append(g.dropped, driver.BlobID(en.Blob))
	en.Blob = 0
	e.mu.blocks--
	e.mu.hollow++
	e.eventLocked(event.Evicted, id, fate.Cause{Reason: reason})
	e.classifyLocked(id, en)
	e.elsewhere.settleRemoteLocked(id, en, g)
}

// dropNameLocked takes the name of a file away. It gives up the bytes as soon as no handle and no kernel uses them.
func (e *names) dropNameLocked(id index.ID, en *index.Entry, kind event.Kind, why fate.Cause, g *gone) {
	limbo := e.mu.ix.Linked(id) && e.unnameLocked(id, en, kind, why, g)
	if en.Blob != 0 && !limbo {
		g.blobs = append(g.blobs, driver.BlobID(en.Blob))
	}
	e.classifyLocked(id, en)
	e.reapLocked(id, en, g)
}

// unnameLocked takes the name of an entry out of the index, and everything that hangs on the name. It reports whether
// the bytes stay in limbo.
func (e *names) unnameLocked(id index.ID, en *index.Entry, kind event.Kind, why fate.Cause, g *gone) (limbo bool) {
	ix := e.mu.ix
	parent, name := ix.Parent(id), ix.Name(id)
	k := nameKey{parent, name}
	if why.Reason == fate.ReasonReplaced {
		limbo = e.drafts.limboLocked(id, en, k, g)
		if en.Lookups > 0 {
			e.mu.formerly[id] = k
		}
	} else {
		e.drafts.leaveLimboNamedLocked(k, g)
	}
	if en.Mode&modeType != modeDir {
		e.tellDroppedLocked(id, en, kind, why)
	}
	e.copies.voidStoresLocked(id, en)
	e.copies.removeCopiesLocked(id, en)
	if en.Lookups > 0 {
		g.names = append(g.names, goneName{parent: parent, id: id, name: name})
	}
	ix.Unlink(id)
	e.elsewhere.strayLocked(parent, ix.At(parent))
	if p := e.mu.promotions[id]; p != nil {
		e.loads.orphanLocked(p) // another file may get the id
	}
	return limbo
}

// tellDroppedLocked counts a file that is about to lose its name, and tells followers and other nodes.
func (e *names) tellDroppedLocked(id index.ID, en *index.Entry, kind event.Kind, why fate.Cause) {
	if en.Flags&flagUncommitted != 0 {
		if why.Reason == fate.ReasonUnlink && en.Flags&flagTemp == 0 {
			e.elsewhere.buryLocked(id, why.Reason) // it may have been committed while it was empty
		}
		return
	}
	if en.Blob != 0 || e.mu.files[id] != nil {
		e.mu.blocks--
	} else {
		e.mu.hollow--
	}
	if e.kindLocked(en) == draft.Block {
		e.eventLocked(kind, id, why)
		if kind == event.Removed {
			e.elsewhere.buryLocked(id, why.Reason)
		}
	}
}

// reapLocked frees the memory, the file and the id of an entry without a name, as
// far as its handles and the kernel's references allow.
func (e *core) reapLocked(id index.ID, en *index.Entry, g *gone) {
	if e.mu.ix.Linked(id) || en.Opens > 0 || id == index.Root {
		e.elsewhere.settleRemoteLocked(id, en, g)
		return
	}
	if en.Flags&flagLimbo != 0 {
		if en.Lookups == 0 { // no kernel can ask for it any more
			e.drafts.leaveLimboLocked(id, g)
		}
		return
	}
	f := e.mu.files[id]
	if f != nil && f.waits {
		return
	}
	if charge := e.chargeLocked(id, en); charge > 0 {
		e.space.addUsedLocked(en, -charge)
	}
	en.Size = 0
	if en.Blob != 0 {
		g.dropped = append(g.dropped, driver.BlobID(en.Blob))
		en.Blob = 0
	}
	if f != nil {
		f.charge = 0
		e.drafts.dropFileLocked(f)
		g.files = append(g.files, f)
	}
	if en.Lookups == 0 {
		delete(e.mu.formerly, id)
		if en.Flags&flagCounted != 0 {
			en.Flags &^= flagCounted // its charge is 0
		}
		if en.Mode&modeType != modeDir {
			e.mu.room.Leave(en.Group)
		}
		e.mu.ix.Free(id)
	}
}

// victims returns the functions by which package room evicts blocks. force evicts leased blocks too.
func (e *space) victims(force bool, g *gone) room.Victims {
	return room.Victims{
		Spare: func() { e.drafts.clearLimboLocked(g) },
		Evict: func(order policy.Policy, need int64, quota bool) (freed, until int64) {
			reason := fate.ReasonCapacity
			if quota {
				reason = fate.ReasonQuota
			}
			return e.evictLocked(order, need, reason, force, g)
		},
	}
}

// roomLocked evicts until the group may take n bytes more, and reports whether it may. until is the earliest end of a
// lease that kept a block, 0 if none did. force evicts leased blocks too: for a writer that has waited as long as it
// may.
func (e *space) roomLocked(gr *room.Group, n int64, force bool, g *gone) (ok bool, until int64) {
	return e.mu.room.Make(gr, n, force, e.victims(force, g))
}

// quotaLocked evicts blocks of the group until its quota leaves n bytes, and reports whether it does.
func (e *space) quotaLocked(gr *room.Group, n int64, force bool, g *gone) bool {
	ok, _ := e.mu.room.MakeInGroup(gr, n, e.victims(force, g))
	return ok
}

// tryReserve charges n more bytes to f if room can be made without waiting.
func (e *space) tryReserve(f *File, n int64) bool {
	var g gone
	e.gauge(n, false)
	e.mu.Lock()
	en := e.mu.ix.At(f.id)
	ok, _ := e.roomLocked(e.mu.room.Group(en.Group), n, false, &g)
	if ok {
		f.charge += n
		e.addUsedLocked(en, n)
	}
	high := e.mu.room.High(0)
	e.mu.Unlock()
	e.finish(&g)
	if high {
		e.wakeEvictor()
	}
	return ok
}

// speculate reserves n bytes for f: the size of the other blocks of its group. It
// reports whether it could. All such guesses together take at most half of the
// capacity, so that a few thousand idle handles cannot keep out a real write.
func (e *space) speculate(f *File, n int64) bool {
	e.mu.Lock()
	ok := e.guessed.take(n, e.opts.CapacityBytes/2)
	if ok {
		f.guessed += n
	}
	e.mu.Unlock()
	if ok && !e.tryReserve(f, n) {
		e.mu.Lock()
		e.guessed.give(n)
		f.guessed -= n
		e.mu.Unlock()
		return false
	}
	return ok
}

// reserve charges n more bytes to the entry. It evicts if it must, and waits up to WriteTimeout for pins to go.
// started: the engine has accepted bytes of this file already, so the file may use the headroom rather than fail.
// reserve fails with ErrNoSpace, ErrQuota, ErrTooLarge, or ctx's error.
func (e *space) reserve(ctx context.Context, id index.ID, f *File, n int64, started bool) error {
	if n <= 0 {
		return nil
	}
	deadline := e.opts.Now().Add(e.opts.WriteTimeout)
	for waited := false; ; waited = true {
		var g gone
		var err error
		left := deadline.Sub(e.opts.Now())
		e.gauge(n, left <= 0)
		e.mu.Lock()
		gr := e.mu.room.Group(e.mu.ix.At(id).Group)
		ok, until := e.grantLocked(gr, f, n, started, left <= 0, &g)
		if !ok {
			if err = e.mu.room.Refusal(gr, f.charge, n, left); err != nil {
				e.mu.counters.NoSpace++
			}
		}
		high, overQuota := e.mu.room.High(0), gr.Over(n)
		space, wait := e.mu.room.Space(), e.mu.room.Wait(left)
		e.mu.Unlock()
		e.finish(&g)
		switch {
		case ok && high:
			e.wakeEvictor()
			return nil
		case ok:
			return nil
		case err != nil:
			return &block.Error{Op: "reserve", Tier: "memory", Err: err}
		}
		if !waited && !overQuota {
			e.full(n, until)
		}
		if until > 0 {
			wait = min(wait, time.Duration(until-e.now())+time.Millisecond)
		}
		if err := waitSpace(ctx, space, wait); err != nil {
			return err
		}
	}
}

// grantLocked charges n more bytes to f if there is room, or room can be made; see reserve.
func (e *space) grantLocked(gr *room.Group, f *File, n int64, started, force bool, g *gone) (ok bool, until int64) {
	if e.mu.room.Hopeless(gr, f.charge, n) != nil {
		return false, 0 // no other block need go for it
	}
	ok, until = e.roomLocked(gr, n, force, g)
	if !ok && started && !gr.Over(n) && e.mu.room.Overruns(n) {
		ok = true
		e.mu.counters.Overruns++
	}
	if ok {
		f.charge += n
		e.addUsedLocked(e.mu.ix.At(f.id), n)
	}
	return ok, until
}

// waitSpace waits for space, for the time d, or for ctx. Only the end of ctx is an error.
func waitSpace(ctx context.Context, space <-chan struct{}, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-space:
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

func (e *space) wakeEvictor() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// evictBatch bounds the bytes that one hold of the lock evicts in the background.
const evictBatch = 64 << 20

// watermarkIdle is how long a block must have rested before it is evicted ahead of need. If memory turns over faster,
// writers evict by themselves. If all other blocks are pinned, the block just written stays.
const watermarkIdle = time.Second

// runEvictor evicts down to the low watermark each time it is woken, so that
// writers seldom evict inline. It returns when ctx ends.
func (e *space) runEvictor(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
		}
		for freed := int64(1); freed > 0 && ctx.Err() == nil; {
			var g gone
			e.mu.Lock()
			freed = 0
			reason := fate.ReasonWatermark
			excess, over := e.mu.room.Excess()
			if over { // memory in use reaches into the headroom
				reason = fate.ReasonCapacity
			}
			if excess > 0 {
				freed, _ = e.evictLocked(e.mu.room.Shared(), min(excess, evictBatch), reason, false, &g)
			}
			e.mu.Unlock()
			e.finish(&g)
		}
	}
}
