package disk

import (
	"os"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/disk/ledger"
	"github.com/kvfs/kvfs/tiers/disk/port"
)

const (
	// maxAsked bounds how many victims in a row the Host may refuse in one eviction.
	maxAsked = 1024
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
func (k *keeper) tryRoom(r *roomRequest, size int64) (ok bool, err error) {
	t := k.tier
	thefts := 0
	for !k.port.IsDown() {
		t.mu.Lock()
		slotBytes := k.space.SlotBytesFor(size)
		c := k.space.ClassOf(slotBytes)
		if k.bindSomeLocked(c, r) {
			t.mu.Unlock()
			return true, nil
		}
		limit := k.space.Thefts(slotBytes)
		steal := thefts < limit && t.mu.ledger.BetterSteal(k.space, c)
		t.mu.Unlock()
		if k.grow(slotBytes) || k.port.IsDown() {
			continue
		}
		t.mu.Lock()
		other := k.space.Borrow(size)
		borrowed := other != nil && k.bindSomeLocked(other, r)
		t.mu.Unlock()
		if borrowed {
			return true, nil
		}
		if !steal && k.evict(c, max(len(r.flights), c.Reserve())) > 0 {
			continue
		}
		if thefts++; thefts > limit || !k.steal(c, slotBytes) {
			if steal && k.evict(c, len(r.flights)) > 0 {
				continue
			}
			return false, block.ErrNoSpace
		}
	}
	return false, block.ErrUnavailable
}

// evictAhead brings the classes that run low back to their reserve.
func (k *keeper) evictAhead() {
	t := k.tier
	t.mu.Lock()
	low := k.space.TakeLow()
	t.mu.Unlock()
	for _, c := range low {
		t.mu.Lock()
		n := k.space.Missing(c)
		t.mu.Unlock()
		if n > 0 {
			k.evict(c, n)
		}
	}
}

// evict evicts about n blocks of a class and writes their headers. It evicts at least one if the
// Host gives up any of the first maxAsked. It returns how many slots became free.
func (k *keeper) evict(c *ledger.Class, n int) int {
	t := k.tier
	t.mu.Lock()
	free := c.Free()
	t.mu.Unlock()
	limit := maxAsked // a small class asks about each block only once
	for asked, evicted := 0, 0; evicted == 0 && asked < limit; {
		t.mu.Lock()
		victims := t.mu.ledger.Choose(c, n)
		limit = min(limit, c.Ordered()+len(victims))
		t.mu.Unlock()
		if len(victims) == 0 {
			break
		}
		evicted = t.askHost(victims, false)
		asked += len(victims)
	}
	_ = k.headers.flush() // retried later; the slots are not free until then
	t.mu.Lock()
	defer t.mu.Unlock()
	return c.Free() - free
}

// askHost evicts the victims that the Host gives up, puts the others back, and unpins them all. It
// returns how many were evicted. With all, it stops at the first refusal, since evicting fewer than
// all would be useless.
func (t *Tier) askHost(victims []ledger.Victim, all bool) (evicted int) {
	host := t.host()
	leave := make([]bool, len(victims))
	for i, v := range victims {
		if leave[i] = host == nil || host.MayEvict(v.Key); all && !leave[i] {
			break
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	evicted = t.mu.ledger.Settle(victims, leave)
	t.counters.evicted.Add(uint64(evicted))
	return evicted
}

// steal empties the coldest slab of another class and gives the slab, or its capacity, to class c.
// It reports whether to try again for a slot.
func (k *keeper) steal(c *ledger.Class, slotBytes int64) bool {
	t := k.tier
	t.mu.Lock()
	s, victims := t.mu.ledger.Steal(k.space, c)
	t.mu.Unlock()
	if s == nil {
		return false
	}
	t.askHost(victims, true)
	_ = k.headers.flush() // retried later; the slots are not free until then
	t.mu.Lock()
	// Either a block stays or is being read, or the device went down. In the second case the blocks
	// come back at the next start.
	if k.port.IsDown() || !s.DropEmpty() {
		s.Unretire()
		t.mu.Unlock()
		return true
	}
	shape := k.space.Shape(slotBytes, s.Size)
	t.mu.Unlock()
	if shape.WantBytes() > s.Size {
		k.deleteSlab(s)
		return true
	}
	return k.reshape(s, shape)
}

// reshape gives an empty slab to the class of another slot size. A new epoch makes the old table
// void.
func (k *keeper) reshape(s *ledger.Slab, shape format.SlabHeader) bool {
	t := k.tier
	t.mu.Lock()
	s.Reshape(shape)
	t.mu.Unlock()
	if err := k.writeSlabHeader(s); err != nil {
		k.deleteSlab(s)
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	k.space.Add(s)
	return true
}

// deleteSlab deletes the file of a slab that has left its class. If that fails, the file still
// counts towards the capacity.
func (k *keeper) deleteSlab(s *ledger.Slab) {
	t := k.tier
	t.mu.Lock()
	t.mu.ledger.RemoveSlab(s)
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
