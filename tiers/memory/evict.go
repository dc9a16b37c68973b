package memory

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/names"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/policy"
	"github.com/kvfs/kvfs/tiers/room"
	"github.com/kvfs/kvfs/tiers/state"
)

// Memory has what the primary tier holds: it reserves memory, waits for it, evicts and expires blocks. All methods may be
// called in parallel.
type Memory struct {
	*state.State
	names *names.Names

	// Clean queues a copy of a block that is about to be evicted, and reports whether the copy is under way or its turn
	// will come. If other nodes have copies, the copy goes to a device of this node, if there is one, because the others
	// may evict theirs at any time. leaving: the block leaves memory when the copy is there. The caller holds the lock.
	// Clean is set before all calls.
	Clean func(id index.ID, en *index.Entry, leaving bool) bool

	wake chan struct{} // capacity 1: tells the evictor that the high watermark was passed

	quotas  sync.Mutex  // held while a quota changes, over many holds of the engine's lock; guards nothing else
	cgroups atomic.Bool // a control group has a quota
}

// New returns a Memory without accounts: OpenRoom follows.
func New(st *state.State, nm *names.Names) *Memory {
	return &Memory{State: st, names: nm, wake: make(chan struct{}, 1)}
}

// evictLocked evicts blocks in the order of pol until need bytes are gone or no more blocks may go. It returns the
// bytes freed. until is the earliest end of a lease that kept a block (nanoseconds since the epoch), 0 if none did.
// force evicts leased blocks too.
func (mem *Memory) evictLocked(pol policy.Policy, need int64, reason outcome.Reason, force bool, g *state.Gone) (freed, until int64) {
	h := hunt{Memory: mem, order: pol, now: mem.Now(), need: need, force: force}
	if reason == outcome.ReasonWatermark {
		h.idle = int64(watermarkIdle)
	}
	pol.Victims(h.judgeLocked)
	for _, id := range h.victims {
		en := mem.Mu.Ix.At(id)
		mem.Mu.Counters.Evicted++
		mem.Mu.Counters.EvictedBytes += uint64(en.Size())
		mem.EvictOneLocked(id, en, reason, g)
	}
	return h.freed, h.until
}

// hunt is one search for blocks to evict.
type hunt struct {
	*Memory
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
	if en.Opens() > 0 || h.Mu.Files[id] != nil {
		return policy.Skip
	}
	if h.idle > 0 && h.now-max(en.Atime(), en.Ctime()) < h.idle {
		return policy.Stop // a skip would count as a use, and the blocks behind it are as young
	}
	if v, stays := h.uncopiedLocked(id, en); stays {
		return v
	}
	if en.Lease() > h.now && !h.force && en.Tiers() == 0 { // else another tier or node keeps the promise
		if h.until == 0 || en.Lease() < h.until {
			h.until = en.Lease()
		}
		return policy.Skip
	}
	h.ApplyLocked(catalog.Leaving{ID: id, By: h.order})
	h.freed += max(catalog.ChargeOf(en.Size()), 1) // an empty block frees a file
	h.victims = append(h.victims, id)
	return policy.Evict
}

// uncopiedLocked queues the copy of a block that has no copy in a tier of this node. stays: the block may not go
// before that, and v is the verdict on it.
func (h *hunt) uncopiedLocked(id index.ID, en *index.Entry) (v policy.Verdict, stays bool) {
	own := h.OwnTiers(en)
	if h.Lazy != 0 && own|en.Storing() == 0 && !h.force {
		if v, ok := h.leaveLocked(id, en, h.need-h.freed); ok {
			if v == policy.Evict {
				h.ApplyLocked(catalog.Leaving{ID: id, By: h.order})
			}
			return v, true
		}
	}
	if en.Storing() == 0 && (own != 0 || len(h.Tiers) == 0 || h.force || h.dirty <= maxDirty && !h.Clean(id, en, false)) {
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
func (mem *Memory) leaveLocked(id index.ID, en *index.Entry, need int64) (v policy.Verdict, ok bool) {
	leaving := int64(0)
	for _, s := range mem.Tiers {
		leaving += s.LeavingLocked()
	}
	if leaving >= max(need, min(lane.StoreJobBytes, mem.Opts.CapacityBytes/64)) {
		return policy.Stop, true
	}
	switch {
	case !mem.Clean(id, en, true):
		return 0, false
	case en.Storing() == 0: // the queue is full
		return policy.Stop, true
	case en.Storing()&mem.Lazy == 0:
		return 0, false
	}
	return policy.Evict, true
}

// EvictOneLocked takes a block out of memory. If no other tier has it, the block is lost, and its name is removed.
func (mem *Memory) EvictOneLocked(id index.ID, en *index.Entry, reason outcome.Reason, g *state.Gone) {
	if en.Tiers() == 0 {
		if len(mem.Tiers) > 0 {
			mem.Mu.Counters.Lost++
			for _, s := range mem.Tiers {
				if s.Opts.Cascade != state.CascadeOff && en.Flags()&(index.FlagRefused|index.FlagOnceSeen) == 0 {
					s.StatsLocked().CascadeDropped++
				}
			}
		}
		mem.names.EvictNameLocked(id, en, outcome.Cause{Reason: reason}, g)
		return
	}
	mem.ChangeLocked(catalog.Evicted{ID: id, Why: outcome.Cause{Reason: reason}}, nil, g)
	mem.names.SettleRemoteLocked(id, en, g)
}

// victims returns the functions by which package room evicts blocks. force evicts leased blocks too.
func (mem *Memory) victims(force bool, g *state.Gone) room.Victims {
	return room.Victims{
		Evict: func(order policy.Policy, need int64, quota bool) (freed, until int64) {
			reason := outcome.ReasonCapacity
			if quota {
				reason = outcome.ReasonQuota
			}
			return mem.evictLocked(order, need, reason, force, g)
		},
	}
}

// RoomLocked evicts until those who pay may take n bytes more, and reports whether it may. until is the earliest end of a
// lease that kept a block, 0 if none did. force evicts leased blocks too: for a writer that has waited as long as it
// may.
func (mem *Memory) RoomLocked(b room.Bill, n int64, force bool, g *state.Gone) (ok bool, until int64) {
	return mem.Mu.Room.Make(b, n, force, mem.victims(force, g))
}

// QuotaLocked evicts blocks of those who pay until their quotas leave n bytes, and reports whether they do.
func (mem *Memory) QuotaLocked(b room.Bill, n int64, force bool, g *state.Gone) bool {
	ok, _ := mem.Mu.Room.MakeInQuotas(b, n, mem.victims(force, g))
	return ok
}

// TryReserve charges n more bytes to a file that is being written, if room can be made without waiting.
func (mem *Memory) TryReserve(id index.ID, n int64) bool {
	var g state.Gone
	mem.Gauge(n, false)
	mem.Mu.Lock()
	en := mem.Mu.Ix.At(id)
	ok, _ := mem.RoomLocked(mem.Mu.Bill(en), n, false, &g)
	if ok {
		mem.ApplyLocked(catalog.Reserved{ID: id, N: n})
	}
	high := mem.Mu.Room.High(0)
	mem.Mu.Unlock()
	mem.Finish(&g)
	if high {
		mem.WakeEvictor()
	}
	return ok
}

// Reserve charges n more bytes to a file that is being written. It evicts if it must, and waits up to WriteTimeout for pins to go.
// started: the engine has accepted bytes of this file already, so the file may use the headroom rather than fail.
// It fails with ErrNoSpace, ErrQuota, ErrTooLarge, or ctx's error.
func (mem *Memory) Reserve(ctx context.Context, id index.ID, n int64, started bool) error {
	if n <= 0 {
		return nil
	}
	deadline := mem.Opts.Now().Add(mem.Opts.WriteTimeout)
	var moves uint64 // at the beginning of the wait
	for waited := false; ; waited = true {
		var g state.Gone
		var err error
		left := deadline.Sub(mem.Opts.Now())
		mem.Gauge(n, left <= 0)
		mem.Mu.Lock()
		en := mem.Mu.Ix.At(id)
		b := mem.Mu.Bill(en)
		ok, until := mem.grantLocked(b, id, en, n, started, left <= 0, &g)
		if !ok {
			if err = mem.Mu.Room.Refusal(b, mem.Mu.Charge(id, en), n, left); err != nil {
				mem.Mu.Counters.NoSpace++
			}
		}
		high, overQuota := mem.Mu.Room.High(0), b.Over(n)
		space, wait := mem.Mu.Room.Space(), mem.Mu.Room.Wait(left)
		if !waited {
			moves = mem.MovesLocked()
		}
		mem.Mu.Unlock()
		mem.Finish(&g)
		switch {
		case ok:
			if waited && left <= 0 {
				mem.Waited(moves)
			}
			if high {
				mem.WakeEvictor()
			}
			return nil
		case err != nil:
			return &block.Error{Op: "reserve", Tier: "memory", Err: err}
		}
		if !waited && !overQuota {
			mem.Full(n, until)
		}
		if until > 0 {
			wait = min(wait, time.Duration(until-mem.Now())+time.Millisecond)
		}
		if err := state.WaitSpace(ctx, space, wait); err != nil {
			return err
		}
	}
}

// Waited follows a wait for room that has lasted WriteTimeout, in vain. moves: MovesLocked at its beginning. If all tiers were
// copying, and no copy has ended meanwhile, nobody waits for copies until one does: a writer takes leased blocks and those
// without a copy at once, and a read is a miss.
func (mem *Memory) Waited(moves uint64) {
	mem.Mu.Lock()
	defer mem.Mu.Unlock()
	if mem.copyingLocked() {
		mem.Mu.Room.Stall(moves)
	}
}

// MovesLocked returns Room.Moves if all tiers are copying, else a number that it never has.
func (mem *Memory) MovesLocked() uint64 {
	if mem.copyingLocked() {
		return mem.Mu.Room.Moves()
	}
	return math.MaxUint64
}

// StalledLocked reports whether a wait for copies is in vain; see Waited.
func (mem *Memory) StalledLocked() bool { return mem.Mu.Room.Stalled() && mem.copyingLocked() }

// copyingLocked reports whether all tiers that get copies have some under way.
func (mem *Memory) copyingLocked() bool {
	some := false
	for _, s := range mem.Tiers {
		if s.Opts.Cascade == state.CascadeOff {
			continue
		}
		if some = s.BusyLocked(); !some {
			break
		}
	}
	return some
}

// grantLocked charges n more bytes to a file if there is room, or room can be made; see reserve.
func (mem *Memory) grantLocked(b room.Bill, id index.ID, en *index.Entry, n int64, started, force bool, g *state.Gone) (ok bool, until int64) {
	if mem.Mu.Room.Hopeless(b, mem.Mu.Charge(id, en), n) != nil {
		return false, 0 // no other block need go for it
	}
	ok, until = mem.RoomLocked(b, n, force, g)
	if !ok && !force && mem.StalledLocked() {
		ok, until = mem.Mu.Room.Make(b, n, false, mem.victims(true, g)) // no more than it needs
	}
	if !ok && started && !b.Over(n) && mem.Mu.Room.Overruns(n) {
		ok = true
		mem.Mu.Counters.Overruns++
	}
	if ok {
		mem.ApplyLocked(catalog.Reserved{ID: id, N: n})
	}
	return ok, until
}

// WakeEvictor has blocks evicted in the background, down to the low watermark.
func (mem *Memory) WakeEvictor() {
	select {
	case mem.wake <- struct{}{}:
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
func (mem *Memory) RunEvictor(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-mem.wake:
		}
		for freed := int64(1); freed > 0 && ctx.Err() == nil; {
			var g state.Gone
			mem.Mu.Lock()
			freed = 0
			reason := outcome.ReasonWatermark
			excess, over := mem.Mu.Room.Excess()
			if over { // memory in use reaches into the headroom
				reason = outcome.ReasonCapacity
			}
			if excess > 0 {
				freed, _ = mem.evictLocked(mem.Mu.Room.Shared(), min(excess, evictBatch), reason, false, &g)
			}
			mem.Mu.Unlock()
			mem.Finish(&g)
		}
	}
}

// ExpireLocked removes the files that are past their time to live.
func (mem *Memory) ExpireLocked(g *state.Gone) {
	now := mem.Now()
	for id := mem.Mu.Ix.Due(now); id != 0; id = mem.Mu.Ix.Due(now) {
		en := mem.Mu.Ix.At(id)
		if !mem.Mu.Ix.Linked(id) || !en.Committed() {
			continue
		}
		mem.Mu.Counters.Expired++
		mem.names.DropNameLocked(id, en, outcome.Cause{Reason: outcome.ReasonExpired}, g)
	}
}
