package space

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/policy"
	"github.com/kvfs/kvfs/tiers/room"
	"github.com/kvfs/kvfs/tiers/state"
)

// space is the room of memory: reserving it, waiting for it, evicting and expiring blocks.
type space struct {
	*core

	wake chan struct{} // capacity 1: tells the evictor that the high watermark was passed

	quotas  sync.Mutex  // held while a quota changes, over many holds of the engine's lock; guards nothing else
	cgroups atomic.Bool // a control group has a quota
}

// evictLocked evicts blocks in the order of pol until need bytes are gone or no more blocks may go. It returns the
// bytes freed. until is the earliest end of a lease that kept a block (nanoseconds since the epoch), 0 if none did.
// force evicts leased blocks too.
func (sp *space) evictLocked(pol policy.Policy, need int64, reason fate.Reason, force bool, g *state.Gone) (freed, until int64) {
	h := hunt{space: sp, order: pol, now: sp.Now(), need: need, force: force}
	if reason == fate.ReasonWatermark {
		h.idle = int64(watermarkIdle)
	}
	pol.Victims(h.judgeLocked)
	for _, id := range h.victims {
		en := sp.Mu.Ix.At(id)
		sp.Mu.Counters.Evicted++
		sp.Mu.Counters.EvictedBytes += uint64(en.Size)
		sp.EvictOneLocked(id, en, reason, g)
	}
	return h.freed, h.until
}

// hunt is one search for blocks to evict.
type hunt struct {
	*space
	order       policy.Policy // which offers the blocks
	now, idle   int64         // nanoseconds; blocks used within idle stay; 0: no bound
	need, freed int64         // bytes
	force       bool
	until       int64 // earliest end of a lease that kept a block; 0: none did
	dirty       int   // blocks met that have no copy yet
	victims     []index.ID
}

// JudgeLocked decides about the next block in the order of a policy.
func (h *hunt) judgeLocked(n uint32) policy.Verdict {
	if h.freed >= h.need {
		return policy.Stop
	}
	id := index.ID(n)
	en := h.Mu.Ix.At(id)
	if en.Opens > 0 || h.Mu.Files[id] != nil {
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
	h.takeLocked(id, en)
	h.freed += max(state.ChargeOf(en.Size), 1) // an empty block frees a file
	h.victims = append(h.victims, id)
	return policy.Evict
}

// takeLocked takes a block that goes out of the other orders that it is in.
func (h *hunt) takeLocked(id index.ID, en *index.Entry) {
	en.Flags &^= index.FlagPolicy
	h.Mu.Room.Unrank(state.BillOf(h.Mu.Room, en), uint32(id), h.order)
}

// uncopiedLocked queues the copy of a block that has no copy in a tier of this node. stays: the block may not go
// before that, and v is the verdict on it.
func (h *hunt) uncopiedLocked(id index.ID, en *index.Entry) (v policy.Verdict, stays bool) {
	own := h.OwnTiers(en)
	if h.Lazy != 0 && own|en.Storing == 0 && !h.force {
		if v, ok := h.leaveLocked(id, en, h.need-h.freed); ok {
			if v == policy.Evict {
				h.takeLocked(id, en)
			}
			return v, true
		}
	}
	if en.Storing == 0 && (own != 0 || len(h.Tiers) == 0 || h.force || h.dirty <= maxDirty && !h.lower.CleanLocked(id, en, false)) {
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
func (sp *space) leaveLocked(id index.ID, en *index.Entry, need int64) (v policy.Verdict, ok bool) {
	if sp.leavingLocked() >= max(need, min(lane.StoreJobBytes, sp.Opts.CapacityBytes/64)) {
		return policy.Stop, true
	}
	switch {
	case !sp.lower.CleanLocked(id, en, true):
		return 0, false
	case en.Storing == 0: // the queue is full
		return policy.Stop, true
	case en.Storing&sp.Lazy == 0:
		return 0, false
	}
	return policy.Evict, true
}

// EvictOneLocked takes a block out of memory. If no other tier has it, the block is lost, and its name is removed.
func (sp *space) EvictOneLocked(id index.ID, en *index.Entry, reason fate.Reason, g *state.Gone) {
	if en.Tiers == 0 {
		if len(sp.Tiers) > 0 {
			sp.Mu.Counters.Lost++
			for _, s := range sp.Tiers {
				if s.Opts.Cascade != state.CascadeOff && en.Flags&(index.FlagRefused|index.FlagOnceSeen) == 0 {
					s.StatsLocked().CascadeDropped++
				}
			}
		}
		sp.names.DropNameLocked(id, en, event.Evicted, fate.Cause{Reason: reason}, g)
		return
	}
	sp.AddUsedLocked(en, -state.ChargeOf(en.Size))
	g.Blobs = append(g.Blobs, driver.BlobID(en.Blob))
	g.Dropped = append(g.Dropped, driver.BlobID(en.Blob))
	en.Blob = 0
	sp.RecountLocked(state.Resident, state.Hollow)
	sp.EventLocked(event.Evicted, id, fate.Cause{Reason: reason})
	sp.ClassifyLocked(id, en)
	sp.elsewhere.SettleRemoteLocked(id, en, g)
}

// victims returns the functions by which package room evicts blocks. force evicts leased blocks too.
func (sp *space) victims(force bool, g *state.Gone) room.Victims {
	return room.Victims{
		Spare: func() { sp.writing.ClearLimboLocked(g) },
		Evict: func(order policy.Policy, need int64, quota bool) (freed, until int64) {
			reason := fate.ReasonCapacity
			if quota {
				reason = fate.ReasonQuota
			}
			return sp.evictLocked(order, need, reason, force, g)
		},
	}
}

// RoomLocked evicts until those who pay may take n bytes more, and reports whether it may. until is the earliest end of a
// lease that kept a block, 0 if none did. force evicts leased blocks too: for a writer that has waited as long as it
// may.
func (sp *space) RoomLocked(b room.Bill, n int64, force bool, g *state.Gone) (ok bool, until int64) {
	return sp.Mu.Room.Make(b, n, force, sp.victims(force, g))
}

// QuotaLocked evicts blocks of those who pay until their quotas leave n bytes, and reports whether they do.
func (sp *space) QuotaLocked(b room.Bill, n int64, force bool, g *state.Gone) bool {
	ok, _ := sp.Mu.Room.MakeInQuotas(b, n, sp.victims(force, g))
	return ok
}

// TryReserve charges n more bytes to an entry, whose write side f is, if room can be made without waiting.
func (sp *space) TryReserve(id index.ID, f state.WriteSide, n int64) bool {
	var g state.Gone
	sp.Gauge(n, false)
	sp.Mu.Lock()
	en := sp.Mu.Ix.At(id)
	ok, _ := sp.RoomLocked(state.BillOf(sp.Mu.Room, en), n, false, &g)
	if ok {
		f.AddChargeLocked(n)
		state.Resize(sp.State, en, n)
	}
	high := sp.Mu.Room.High(0)
	sp.Mu.Unlock()
	sp.Finish(&g)
	if high {
		sp.WakeEvictor()
	}
	return ok
}

// Reserve charges n more bytes to an entry, whose write side f is. It evicts if it must, and waits up to WriteTimeout for pins to go.
// started: the engine has accepted bytes of this file already, so the file may use the headroom rather than fail.
// It fails with ErrNoSpace, ErrQuota, ErrTooLarge, or ctx's error.
func (sp *space) Reserve(ctx context.Context, id index.ID, f state.WriteSide, n int64, started bool) error {
	if n <= 0 {
		return nil
	}
	deadline := sp.Opts.Now().Add(sp.Opts.WriteTimeout)
	for waited := false; ; waited = true {
		var g state.Gone
		var err error
		left := deadline.Sub(sp.Opts.Now())
		sp.Gauge(n, left <= 0)
		sp.Mu.Lock()
		b := state.BillOf(sp.Mu.Room, sp.Mu.Ix.At(id))
		ok, until := sp.grantLocked(b, id, f, n, started, left <= 0, &g)
		if !ok {
			if err = sp.Mu.Room.Refusal(b, f.ChargeLocked(), n, left); err != nil {
				sp.Mu.Counters.NoSpace++
			}
		}
		high, overQuota := sp.Mu.Room.High(0), b.Over(n)
		space, wait := sp.Mu.Room.Space(), sp.Mu.Room.Wait(left)
		sp.Mu.Unlock()
		sp.Finish(&g)
		switch {
		case ok && high:
			sp.WakeEvictor()
			return nil
		case ok:
			return nil
		case err != nil:
			return &block.Error{Op: "reserve", Tier: "memory", Err: err}
		}
		if !waited && !overQuota {
			sp.Full(n, until)
		}
		if until > 0 {
			wait = min(wait, time.Duration(until-sp.Now())+time.Millisecond)
		}
		if err := state.WaitSpace(ctx, space, wait); err != nil {
			return err
		}
	}
}

// grantLocked charges n more bytes to f if there is room, or room can be made; see reserve.
func (sp *space) grantLocked(b room.Bill, id index.ID, f state.WriteSide, n int64, started, force bool, g *state.Gone) (ok bool, until int64) {
	if sp.Mu.Room.Hopeless(b, f.ChargeLocked(), n) != nil {
		return false, 0 // no other block need go for it
	}
	ok, until = sp.RoomLocked(b, n, force, g)
	if !ok && started && !b.Over(n) && sp.Mu.Room.Overruns(n) {
		ok = true
		sp.Mu.Counters.Overruns++
	}
	if ok {
		f.AddChargeLocked(n)
		state.Resize(sp.State, sp.Mu.Ix.At(id), n)
	}
	return ok, until
}

// WakeEvictor has blocks evicted in the background, down to the low watermark.
func (sp *space) WakeEvictor() {
	select {
	case sp.wake <- struct{}{}:
	default:
	}
}

// evictBatch bounds the bytes that one hold of the lock evicts in the background.
const evictBatch = 64 << 20

// watermarkIdle is how long a block must have rested before it is evicted ahead of need. If memory turns over faster,
// writers evict by themselves. If all other blocks are pinned, the block just written stays.
const watermarkIdle = time.Second

// RunEvictor evicts down to the low watermark each time it is woken, so that
// writers seldom evict inline. It returns when ctx ends.
func (sp *space) RunEvictor(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-sp.wake:
		}
		for freed := int64(1); freed > 0 && ctx.Err() == nil; {
			var g state.Gone
			sp.Mu.Lock()
			freed = 0
			reason := fate.ReasonWatermark
			excess, over := sp.Mu.Room.Excess()
			if over { // memory in use reaches into the headroom
				reason = fate.ReasonCapacity
			}
			if excess > 0 {
				freed, _ = sp.evictLocked(sp.Mu.Room.Shared(), min(excess, evictBatch), reason, false, &g)
			}
			sp.Mu.Unlock()
			sp.Finish(&g)
		}
	}
}

// leavingLocked returns the bytes of blocks that are being copied because they leave memory.
func (sp *space) leavingLocked() (bytes int64) {
	for _, s := range sp.Tiers {
		bytes += s.LeavingLocked()
	}
	return bytes
}
