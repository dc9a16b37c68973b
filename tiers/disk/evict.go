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
func (d *device) makeRoom(r *roomRequest) error {
	t := d.tier
	var size int64 // of the largest: the classes may have changed since the request
	for _, f := range r.flights {
		size = max(size, f.source.size)
	}
	if shape := d.mu.space.Shape(max(format.AlignUp(size), format.PageBytes), 0); shape.WantBytes() > d.capacity {
		return block.ErrTooLarge
	}
	for range maxRetries {
		t.mu.Lock()
		ended := t.mu.ended
		t.mu.Unlock()
		ok, err := d.tryRoom(r, size)
		if ok || err == nil {
			return err
		}
		if d.port.IsDown() || !t.awaitJob(d, ended) {
			return err
		}
	}
	return block.ErrNoSpace
}

// awaitJob waits until one more call of Done has returned. Blocks of a job stay pinned until then,
// although its caller may know the result already. It returns false if no such call is running and
// none has returned since ended was read.
func (t *Tier) awaitJob(d *device, ended uint64) bool {
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
	case <-d.port.Down:
	}
	return true
}

// tryRoom is one attempt of makeRoom. ok says that r has slots. With ErrNoSpace nothing can be
// evicted now.
func (d *device) tryRoom(r *roomRequest, size int64) (ok bool, err error) {
	t := d.tier
	thefts := 0
	for !d.port.IsDown() {
		t.mu.Lock()
		slotBytes := d.mu.space.SlotBytesFor(size)
		c := d.mu.space.ClassOf(slotBytes)
		if d.bindSomeLocked(c, r) {
			t.mu.Unlock()
			return true, nil
		}
		limit := d.mu.space.Thefts(slotBytes)
		steal := thefts < limit && t.mu.ledger.BetterSteal(d.mu.space, c)
		t.mu.Unlock()
		if d.grow(slotBytes) || d.port.IsDown() {
			continue
		}
		t.mu.Lock()
		other := d.mu.space.Borrow(size)
		borrowed := other != nil && d.bindSomeLocked(other, r)
		t.mu.Unlock()
		if borrowed {
			return true, nil
		}
		if !steal && d.evict(c, max(len(r.flights), c.Reserve())) > 0 {
			continue
		}
		if thefts++; thefts > limit || !d.steal(c, slotBytes) {
			if steal && d.evict(c, len(r.flights)) > 0 {
				continue
			}
			return false, block.ErrNoSpace
		}
	}
	return false, block.ErrUnavailable
}

// evictAhead brings the classes that run low back to their reserve.
func (d *device) evictAhead() {
	t := d.tier
	t.mu.Lock()
	low := d.mu.space.TakeLow()
	t.mu.Unlock()
	for _, c := range low {
		t.mu.Lock()
		n := d.mu.space.Missing(c)
		t.mu.Unlock()
		if n > 0 {
			d.evict(c, n)
		}
	}
}

// evict evicts about n blocks of a class and writes their headers. It evicts at least one if the
// Host gives up any of the first maxAsked. It returns how many slots became free.
func (d *device) evict(c *ledger.Class, n int) int {
	t := d.tier
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
	_ = d.headers.flush() // retried later; the slots are not free until then
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
func (d *device) steal(c *ledger.Class, slotBytes int64) bool {
	t := d.tier
	t.mu.Lock()
	s, victims := t.mu.ledger.Steal(d.mu.space, c)
	t.mu.Unlock()
	if s == nil {
		return false
	}
	t.askHost(victims, true)
	_ = d.headers.flush() // retried later; the slots are not free until then
	t.mu.Lock()
	// Either a block stays or is being read, or the device went down. In the second case the blocks
	// come back at the next start.
	if d.port.IsDown() || !s.DropEmpty() {
		s.Unretire()
		t.mu.Unlock()
		return true
	}
	shape := d.mu.space.Shape(slotBytes, s.Size)
	t.mu.Unlock()
	if shape.WantBytes() > s.Size {
		d.deleteSlab(s)
		return true
	}
	return d.reshape(s, shape)
}

// reshape gives an empty slab to the class of another slot size. A new epoch makes the old table
// void.
func (d *device) reshape(s *ledger.Slab, shape format.SlabHeader) bool {
	t := d.tier
	t.mu.Lock()
	s.Reshape(shape)
	t.mu.Unlock()
	if err := d.writeSlabHeader(s); err != nil {
		d.deleteSlab(s)
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	d.mu.space.Add(s)
	return true
}

// deleteSlab deletes the file of a slab that has left its class. If that fails, the file still
// counts towards the capacity.
func (d *device) deleteSlab(s *ledger.Slab) {
	t := d.tier
	t.mu.Lock()
	t.mu.ledger.RemoveSlab(s)
	t.mu.Unlock()
	d.syncer.Drop(&s.Sync)
	err := d.port.Call(port.ByKeeper, func() error { return os.Remove(s.Path) })
	if err != nil {
		t.log.Warn("slab not deleted", zap.String("device", d.dir), zap.Uint32("slab", s.Header.Number), zap.Error(err))
		return
	}
	d.syncer.Renamed()
	t.mu.Lock()
	defer t.mu.Unlock()
	d.mu.space.Release(s.Size)
}

// lostAll tells the Host that all blocks of a device are gone, and forgets them. It runs once,
// after the device went down.
func (d *device) lostAll() {
	t := d.tier
	t.mu.Lock()
	host := t.mu.host
	slabs := d.mu.space.ByNumber()
	t.mu.Unlock()
	for _, s := range slabs {
		t.mu.Lock()
		keys := t.mu.ledger.Forget(s)
		t.mu.Unlock()
		for _, key := range keys {
			if host != nil {
				host.Lost(key, block.ErrUnavailable)
			}
		}
	}
}
