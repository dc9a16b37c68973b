package disk

import (
	"os"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/disk/port"
	"github.com/kvfs/kvfs/tiers/disk/slotmap"
)

const (
	// maxAsked bounds how many victims in a row the Host may refuse in one eviction.
	maxAsked = 1024
	// maxFailures bounds how many slabs one store tries in vain to take over.
	maxFailures = 4
	// maxRetries bounds how often a store without room waits for a job to end.
	maxRetries = 64
)

// makeRoom gets slots for r: a free one, a new slab, or what eviction frees. It fails with
// ErrNoSpace, or with ErrTooLarge if no slab could hold the block.
func (k *keeper) makeRoom(r *roomRequest) error {
	t := k.tier
	var size int64 // of the largest: the classes may have changed since the request
	for _, f := range r.flights {
		size = max(size, f.source.size)
	}
	if shape := k.space.Shape(max(format.AlignUp(size), format.PageBytes), 0); shape.WantBytes() > k.capacity {
		return block.ErrTooLarge
	}
	for range maxRetries {
		t.mu.Lock()
		ended := t.mu.ended
		t.mu.Unlock()
		ok, err := k.tryRoom(r, size)
		if ok || err == nil {
			return err
		}
		if k.port.IsDown() || !t.awaitJob(k.port.Down, ended) {
			return err
		}
	}
	return block.ErrNoSpace
}

// awaitJob waits until one more call of Done has returned. Blocks of a job stay pinned until then,
// although its caller may know the result already. It returns false if no such call is running and
// none has returned since ended was read. It does not wait for a device that is down.
func (t *Tier) awaitJob(down <-chan struct{}, ended uint64) bool {
	t.mu.Lock()
	changed, some := t.mu.ended != ended, t.mu.ending > 0
	if t.mu.endedNext == nil {
		t.mu.endedNext = make(chan struct{})
	}
	wait := t.mu.endedNext
	t.mu.Unlock()
	if changed || !some {
		return changed
	}
	select {
	case <-wait:
	case <-down:
	}
	return true
}

// tryRoom is one attempt of makeRoom. ok says that r has slots. With ErrNoSpace nothing can be
// evicted now.
//
// What evicts nothing comes first: a free slot, a new slab, an empty slab of another class, a free slot
// of somewhat larger ones, a slab of another class whose blocks fit into its other slabs. Then the
// blocks go that are the first in the order of eviction, whatever their sizes, until one of these
// helps. So which blocks are evicted does not depend on the classes.
func (k *keeper) tryRoom(r *roomRequest, size int64) (ok bool, err error) {
	t := k.tier
	var evicted int64 // bytes since the last slab
	failures := 0     // to take over a slab
	for !k.port.IsDown() {
		t.mu.Lock()
		slotBytes := k.space.SlotBytesFor(size)
		c := k.space.ClassOf(slotBytes)
		bound := k.bindSomeLocked(c, r)
		limit := k.space.MaxWaste(c)
		t.mu.Unlock()
		if bound {
			return true, nil
		}
		if k.grow(slotBytes) {
			continue
		}
		spare, live := k.spare(c)
		if spare != nil && live == 0 && k.takeOver(spare, slotBytes) {
			evicted = 0
			continue
		}
		if k.borrow(r, size) {
			return true, nil
		}
		if spare != nil && failures < maxFailures && !k.port.IsDown() {
			if k.takeOver(spare, slotBytes) {
				evicted = 0
			} else {
				failures++
			}
			continue
		}
		bytes := int64(max(len(r.flights), c.Reserve())) * slotBytes
		if evicted > limit || !k.evict(bytes) {
			return false, block.ErrNoSpace
		}
		evicted += bytes
	}
	return false, block.ErrUnavailable
}

// spare returns a slab that class c can have without an eviction, and how many blocks it holds; or nil.
func (k *keeper) spare(c *slotmap.Class) (s *slotmap.Slab, live int) {
	k.tier.mu.Lock()
	defer k.tier.mu.Unlock()
	if s = k.space.Spare(c); s != nil {
		live = s.Live()
	}
	return s, live
}

// borrow gives r slots of a class for larger blocks, if there are any that it does not need.
func (k *keeper) borrow(r *roomRequest, size int64) bool {
	k.tier.mu.Lock()
	defer k.tier.mu.Unlock()
	other := k.space.Borrow(size)
	return other != nil && k.bindSomeLocked(other, r)
}

// evictAhead brings the classes that run low back to their reserve.
func (k *keeper) evictAhead() {
	t := k.tier
	t.mu.Lock()
	var bytes int64
	for _, c := range k.space.TakeLow() {
		bytes += int64(k.space.Missing(c)) * c.SlotBytes()
	}
	t.mu.Unlock()
	if bytes > 0 {
		k.evict(bytes)
	}
}

// evict evicts blocks whose slots have about so many bytes, and writes their headers. It evicts at
// least one if the Host gives up any of the first maxAsked. It reports whether a slot became free.
func (k *keeper) evict(bytes int64) bool {
	t := k.tier
	t.mu.Lock()
	freed := k.space.Freed()
	t.mu.Unlock()
	limit := maxAsked // where there are few blocks, each is asked about only once
	for asked, evicted := 0, 0; evicted == 0 && asked < limit; {
		t.mu.Lock()
		victims := t.mu.slots.Choose(k.space, bytes)
		limit = min(limit, k.space.Ordered()+len(victims))
		t.mu.Unlock()
		if len(victims) == 0 {
			break
		}
		evicted = t.askHost(victims)
		asked += len(victims)
	}
	_ = k.headers.flush() // retried later; the slots are not free until then
	t.mu.Lock()
	defer t.mu.Unlock()
	return k.space.Freed() != freed
}

// askHost evicts the victims that the Host gives up, puts the others back, and unpins them all. It
// returns how many were evicted.
func (t *Tier) askHost(victims []slotmap.Victim) (evicted int) {
	host := t.host()
	leave := make([]bool, len(victims))
	for i, v := range victims {
		leave[i] = host == nil || host.MayEvict(v.Key)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	evicted = t.mu.slots.Settle(victims, leave)
	t.counters.evicted.Add(uint64(evicted))
	return evicted
}

// deleteSlab deletes the file of a slab that has left its class. If that fails, the file still
// counts towards the capacity.
func (k *keeper) deleteSlab(s *slotmap.Slab) {
	t := k.tier
	t.mu.Lock()
	t.mu.slots.RemoveSlab(s)
	t.mu.Unlock()
	k.syncer.Drop(&s.Sync)
	err := k.port.Call(port.ByKeeper, func() error { return os.Remove(s.Path) })
	if err != nil {
		t.log.Warn("slab not deleted", zap.String("device", k.dir), zap.Uint32("slab", s.Header.Number), zap.Error(err))
		return
	}
	k.syncer.Renamed()
	t.mu.Lock()
	defer t.mu.Unlock()
	k.space.Release(s.Size)
}
