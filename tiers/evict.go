package tiers

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/kvfs/kvfs/tiers/event"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
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

// gone is what must be done outside the lock after entries left the primary
// tier: their files removed, their names taken out of the kernel's cache.
type gone struct {
	blobs   []driver.BlobID
	dropped []driver.BlobID // of them, those that no handle of ours uses any more
	names   []goneName
	files   []*File        // no longer in use: to be closed
	emptied []*File        // their bytes are given up
	idle    []*File        // nobody has them open
	records []index.ID     // to be written
	graves  []driver.Grave // names whose versions elsewhere are void, where something here has them now
}

type goneName struct {
	parent, id index.ID
	name       string
	by         Process // as in Options.Invalidate
}

// finish does what g lists. The log has told of it already. The caller holds no lock.
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

// chargeLocked is what an entry costs now.
func (e *core) chargeLocked(id index.ID, en *index.Entry) int64 {
	if f := e.mu.files[id]; f != nil {
		return f.charge
	}
	if en.Blob == 0 {
		return 0 // in no memory
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

// classifyLocked brings an entry's place in the accounts and in its policy in
// line with its flags: counted as pinned while it is open, being written or
// pinned; in the policy while it is a committed block that may be evicted.
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

// evictLocked evicts blocks in the order of pol until need bytes are gone or
// nothing more may go, and returns how many bytes went. until is the earliest
// time at which a lease that stood in the way ends, 0 if none did; force evicts
// within leases too.
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
	now, idle   int64 // idle: what was used within that time stays; 0: no bound
	need, freed int64 // bytes
	force       bool
	until       int64 // a lease that was met ends then, the first of them; 0: none
	dirty       int   // blocks met that have no copy yet
	victims     []index.ID
}

// judgeLocked says what becomes of the next block in the order of a policy.
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
		return policy.Stop // to pass over it would count as a use, and those behind it are as young
	}
	if v, stays := h.uncopiedLocked(id, en); stays {
		return v
	}
	if en.Lease > h.now && !h.force && en.Tiers == 0 { // else another tier keeps the promise, or another node
		if h.until == 0 || en.Lease < h.until {
			h.until = en.Lease
		}
		return policy.Skip
	}
	en.Flags &^= flagPolicy
	h.freed += max(chargeOf(en.Size), 1) // an empty file frees a file
	h.victims = append(h.victims, id)
	return policy.Evict
}

// uncopiedLocked sees to the copy of a block that has none in a tier of this node, and says what becomes of the block
// if it stays for that.
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

// Of blocks that still have to be copied down one search for victims sees to the
// first maxDirty, and passes over maxSearch to find some that may go: a
// millisecond or two under the lock.
const (
	maxDirty  = 4096
	maxSearch = 64 << 10
)

// leaveLocked has a block copied to a tier that gets it only when it is evicted; leftLocked evicts it when it is there.
// need is how much has to go yet: no more is copied than that, or what one job of a tier may be. False: it is not
// for such a tier.
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

// leavingLocked returns the bytes of the blocks that are copied because they leave memory.
func (e *core) leavingLocked() (bytes int64) {
	for _, s := range e.tiers {
		bytes += s.LeavingLocked()
	}
	return bytes
}

// leftLocked evicts a block that leaveLocked had copied, unless it was used meanwhile.
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

// evictOneLocked takes a block out of memory. If no other tier has it, it is lost,
// and its name goes.
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

// dropNameLocked takes the name of a file away and gives up its bytes as soon as
// nobody uses them.
func (e *names) dropNameLocked(id index.ID, en *index.Entry, kind event.Kind, why fate.Cause, g *gone) {
	ix := e.mu.ix
	limbo := false
	if ix.Linked(id) {
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
		if en.Flags&flagUncommitted == 0 && en.Mode&modeType != modeDir {
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
		} else if why.Reason == fate.ReasonUnlink && en.Flags&flagTemp == 0 && en.Mode&modeType != modeDir {
			e.elsewhere.buryLocked(id, why.Reason) // it may have been committed empty before
		}
		e.copies.voidStoresLocked(id, en)
		e.copies.removeCopiesLocked(id, en)
		if en.Lookups > 0 {
			g.names = append(g.names, goneName{parent: parent, id: id, name: name})
		}
		ix.Unlink(id)
		e.elsewhere.strayLocked(parent, ix.At(parent))
		if p := e.mu.promotions[id]; p != nil { // the number may go to another file
			delete(e.mu.promotions, id)
			e.mu.orphans[p] = struct{}{}
		}
	}
	if en.Blob != 0 && !limbo {
		g.blobs = append(g.blobs, driver.BlobID(en.Blob))
	}
	e.classifyLocked(id, en)
	e.reapLocked(id, en, g)
}

// reapLocked frees what an entry without a name still holds, as far as its
// handles and the kernel's references allow.
func (e *core) reapLocked(id index.ID, en *index.Entry, g *gone) {
	if e.mu.ix.Linked(id) || en.Opens > 0 || id == index.Root {
		e.elsewhere.settleRemoteLocked(id, en, g)
		return
	}
	if en.Flags&flagLimbo != 0 {
		if en.Lookups == 0 { // nobody can ask for it any more
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

// victims has the engine's blocks go for room. force: within leases, too.
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

// roomLocked evicts until the group may take n bytes more, and says whether it may. until is when the first lease
// ends that stood in the way; 0: none did. force is for a writer that has waited as long as it may: then even leased
// blocks go.
func (e *space) roomLocked(gr *room.Group, n int64, force bool, g *gone) (ok bool, until int64) {
	return e.mu.room.Make(gr, n, force, e.victims(force, g))
}

// quotaLocked evicts blocks of the group until its quota leaves n bytes, and says
// whether it does.
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

// speculate reserves what a file will need if it is like the others of its
// group. Together such guesses may take half of the capacity, so that a few
// thousand idle handles cannot keep out a write that is really coming.
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

// reserve charges n more bytes to the entry, evicting what it must, and waits up
// to WriteTimeout for pins to go. started says that bytes of this file were
// accepted already, so that it may use the headroom rather than fail. It fails
// with ErrNoSpace, ErrQuota, ErrTooLarge, or ctx's error.
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

// grantLocked charges n more bytes to f if there is room, or can be made; see reserve.
func (e *space) grantLocked(gr *room.Group, f *File, n int64, started, force bool, g *gone) (ok bool, until int64) {
	if e.mu.room.Hopeless(gr, f.charge, n) != nil {
		return false, 0 // nobody else is to go for it
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

// waitSpace waits for the signal, the time, or ctx; only the last is an error.
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

// evictBatch bounds what one hold of the lock evicts in the background.
const evictBatch = 64 << 20

// watermarkIdle is how long a block must have rested before it is evicted ahead
// of need. Where memory turns over faster, writers evict by themselves; and where
// all else is pinned, the block just written is not the one to go.
const watermarkIdle = time.Second

// runEvictor brings use down to the low watermark each time it is woken, so that
// writers seldom evict inline.
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
			if over { // into the headroom
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
