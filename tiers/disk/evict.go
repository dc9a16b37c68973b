package disk

import (
	"hash/maphash"
	"os"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/disk/port"
	"github.com/kvfs/kvfs/tiers/policy"
)

const (
	// maxSkips bounds how many blocks in use are passed over in one search for victims.
	maxSkips = 1024
	// maxAsked bounds how many victims in a row the Host may refuse in one eviction.
	maxAsked = 1024
	// maxRetries bounds how often a store without room waits for a job to end.
	maxRetries = 64
)

// enterLocked enters a live slot into the order of its class, as just used. It needs t.mu.
func (t *Tier) enterLocked(id slotID) {
	e := t.mu.table.at(id)
	s := t.mu.slabs[e.slab]
	t.mu.clock++
	e.used, s.used = t.mu.clock, t.mu.clock
	s.dev.mu.space.enter(s)
	t.countPinnedLocked(e, +1)
	t.orderLocked(id)
}

// countPinnedLocked counts a block that the user has pinned. It needs t.mu.
func (t *Tier) countPinnedLocked(e *slotInfo, sign int64) {
	if e.flags&flagPinned != 0 {
		t.mu.pinnedBytes += sign * e.size
	}
}

// orderLocked adds a slot to the policy of its class. It needs t.mu.
func (t *Tier) orderLocked(id slotID) {
	e := t.mu.table.at(id)
	s := t.mu.slabs[e.slab]
	hash := maphash.Bytes(t.mu.table.seed, t.mu.table.path(e))
	s.class.pol.Add(s.policyID(e.slot), hash, s.hdr.SlotBytes)
}

// leaveLocked is the inverse of enterLocked. It needs t.mu.
func (t *Tier) leaveLocked(id slotID) {
	e := t.mu.table.at(id)
	s := t.mu.slabs[e.slab]
	s.class.pol.Remove(s.policyID(e.slot))
	s.dev.mu.space.leave(s)
	t.countPinnedLocked(e, -1)
	t.mu.table.unlink(id)
	e.state = slotGone
}

// giveUpLocked drops a live block. Its key no longer leads to it, and its header will be freed. It
// needs t.mu.
func (t *Tier) giveUpLocked(id slotID) {
	t.leaveLocked(id)
	t.dirtyLocked(id)
}

// freeLocked frees a slot that was given up, if nothing needs it any more. It needs t.mu.
func (t *Tier) freeLocked(id slotID) {
	e := t.mu.table.at(id)
	if e.state != slotGone || e.pins > 0 || e.flags&flagQuarantine != 0 {
		return
	}
	s := t.mu.slabs[e.slab]
	if e.flags&flagZeroed == 0 && !s.dev.port.IsDown() {
		return
	}
	s.give(e.slot)
	t.mu.table.release(id)
}

// unpinLocked releases one pin of a slot. It needs t.mu.
func (t *Tier) unpinLocked(id slotID) {
	t.mu.table.at(id).pins--
	t.freeLocked(id)
}

// makeRoom gets slots for r: a free one, a new slab, or what eviction frees. It fails with
// ErrNoSpace, or with ErrTooLarge if no slab could hold the block.
func (d *device) makeRoom(r *roomRequest) error {
	t := d.tier
	var size int64 // of the largest: the classes may have changed since the request
	for _, f := range r.flights {
		size = max(size, f.source.size)
	}
	if shape := d.mu.space.shape(max(format.AlignUp(size), format.PageBytes), 0); shape.WantBytes() > d.capacity {
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
		slotBytes := d.mu.space.slotBytesFor(size)
		c := d.mu.space.classOf(slotBytes)
		if d.bindSomeLocked(c, r) {
			t.mu.Unlock()
			return true, nil
		}
		limit := d.mu.space.thefts(slotBytes)
		steal := thefts < limit && d.betterStealLocked(c)
		t.mu.Unlock()
		if d.grow(slotBytes) || d.port.IsDown() {
			continue
		}
		t.mu.Lock()
		other := d.mu.space.borrow(size)
		borrowed := other != nil && d.bindSomeLocked(other, r)
		t.mu.Unlock()
		if borrowed {
			return true, nil
		}
		if !steal && d.evict(c, max(len(r.flights), c.reserve())) > 0 {
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
	low := d.mu.space.takeLow()
	t.mu.Unlock()
	for _, c := range low {
		t.mu.Lock()
		n := d.mu.space.missing(c)
		t.mu.Unlock()
		if n > 0 {
			d.evict(c, n)
		}
	}
}

// victim is a block that the Host is asked about.
type victim struct {
	id  slotID
	key block.Key
}

// evict evicts about n blocks of a class and writes their headers. It evicts at least one if the
// Host gives up any of the first maxAsked. It returns how many slots became free.
func (d *device) evict(c *class, n int) int {
	t := d.tier
	t.mu.Lock()
	free := c.nfree
	t.mu.Unlock()
	limit := maxAsked // a small class asks about each block only once
	for asked, evicted := 0, 0; evicted == 0 && asked < limit; {
		t.mu.Lock()
		victims := t.chooseLocked(c, n)
		limit = min(limit, c.pol.Len()+len(victims))
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
	return c.nfree - free
}

// chooseLocked takes victims out of the policy of a class and pins them. It needs t.mu.
func (t *Tier) chooseLocked(c *class, n int) (victims []victim) {
	skips := 0
	c.pol.Victims(func(pid uint32) policy.Verdict {
		s, slot := c.byPolicyID(pid)
		id := s.slots[slot]
		e := t.mu.table.at(id)
		switch {
		case len(victims) == n || skips == maxSkips:
			return policy.Stop
		case e.pins > 0 || e.flags&flagPinned != 0:
			skips++
			return policy.Skip
		}
		victims = append(victims, t.markLocked(id))
		return policy.Evict
	})
	return victims
}

// markLocked pins a slot while the Host is asked about it. It needs t.mu.
func (t *Tier) markLocked(id slotID) victim {
	e := t.mu.table.at(id)
	e.flags = e.flags&^flagUpdated | flagEvicting
	e.pins++
	return victim{id, parsePath(t.mu.table.path(e))}
}

// leavingLocked reports whether the Host is being asked about a slot, or has agreed to its
// eviction. The copy cannot be relied on then. It needs t.mu.
func (t *Tier) leavingLocked(id slotID) bool { return t.mu.table.at(id).flags&flagEvicting != 0 }

// askHost evicts the victims that the Host gives up, puts the others back, and unpins them all. It
// returns how many were evicted. With all, it stops at the first refusal, since evicting fewer than
// all would be useless.
func (t *Tier) askHost(victims []victim, all bool) (evicted int) {
	host := t.host()
	leave := make([]bool, len(victims))
	for i, v := range victims {
		if leave[i] = host == nil || host.MayEvict(v.key); all && !leave[i] {
			break
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, v := range victims {
		e := t.mu.table.at(v.id)
		// The Host agreed for one name. The block may have been renamed since, and the Host has not
		// agreed for the new name.
		ok := leave[i] && e.flags&flagUpdated == 0
		e.flags &^= flagEvicting | flagUpdated
		switch {
		case e.state != slotLive: // removed meanwhile
		case ok:
			t.giveUpLocked(v.id)
			evicted++
		default:
			t.orderLocked(v.id)
		}
		t.unpinLocked(v.id)
	}
	t.counters.evicted.Add(uint64(evicted))
	return evicted
}

// betterStealLocked reports whether a slab of another class should make room for class c. That is
// so if c has nothing to evict, or if the slab was used less recently than all of c. It needs
// Tier.mu.
func (d *device) betterStealLocked(c *class) bool {
	var oldest slotID
	c.pol.Victims(func(pid uint32) policy.Verdict {
		s, slot := c.byPolicyID(pid)
		oldest = s.slots[slot]
		return policy.Stop
	})
	if oldest == 0 {
		return true
	}
	cold := d.mu.space.coldest(c, d.tier.idleLocked)
	if cold == nil {
		return false
	}
	return cold.live == 0 || int32(cold.used-d.tier.mu.table.at(oldest).used) < 0
}

// idleLocked reports whether all blocks of a slab may be evicted, as far as the tier knows. It
// needs t.mu.
func (t *Tier) idleLocked(s *slab) bool {
	for _, id := range s.slots {
		if id == 0 {
			continue
		}
		if e := t.mu.table.at(id); e.state != slotLive || e.pins > 0 || e.flags&flagPinned != 0 {
			return false
		}
	}
	return true
}

// steal empties the coldest slab of another class and gives the slab, or its capacity, to class c.
// It reports whether to try again for a slot.
func (d *device) steal(c *class, slotBytes int64) bool {
	t := d.tier
	t.mu.Lock()
	s := d.mu.space.coldest(c, d.tier.idleLocked)
	if s == nil {
		t.mu.Unlock()
		return false
	}
	s.class.retire(s)
	var victims []victim
	for _, id := range s.slots {
		if id != 0 {
			s.class.pol.Remove(s.policyID(t.mu.table.at(id).slot))
			victims = append(victims, t.markLocked(id))
		}
	}
	t.mu.Unlock()
	t.askHost(victims, true)
	_ = d.headers.flush() // retried later; the slots are not free until then
	t.mu.Lock()
	// Either a block stays or is being read, or the device went down. In the second case the blocks
	// come back at the next start.
	if s.nfree != int(s.usable) || d.port.IsDown() {
		s.class.unretire(s)
		t.mu.Unlock()
		return true
	}
	s.class.drop(s)
	shape := d.mu.space.shape(slotBytes, s.size)
	t.mu.Unlock()
	if shape.WantBytes() > s.size {
		d.deleteSlab(s)
		return true
	}
	return d.reshape(s, shape)
}

// reshape gives an empty slab to the class of another slot size. A new epoch makes the old table
// void.
func (d *device) reshape(s *slab, shape format.SlabHeader) bool {
	t := d.tier
	shape.Number = s.hdr.Number
	t.mu.Lock()
	s.hdr, s.usable = shape, shape.Slots
	t.mu.Unlock()
	if err := d.writeSlabHeader(s); err != nil {
		d.deleteSlab(s)
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	d.mu.space.add(s)
	return true
}

// deleteSlab deletes the file of a slab that has left its class. If that fails, the file still
// counts towards the capacity.
func (d *device) deleteSlab(s *slab) {
	t := d.tier
	t.mu.Lock()
	t.mu.slabs[s.id] = nil
	d.mu.space.remove(s)
	t.mu.Unlock()
	d.syncer.Drop(&s.sync)
	err := d.port.Call(port.ByKeeper, func() error { return os.Remove(s.path) })
	if err != nil {
		t.log.Warn("slab not deleted", zap.String("device", d.dir), zap.Uint32("slab", s.hdr.Number), zap.Error(err))
		return
	}
	d.syncer.Renamed()
	t.mu.Lock()
	defer t.mu.Unlock()
	d.mu.space.release(s.size)
}

// lostAll tells the Host that all blocks of a device are gone, and forgets them. It runs once,
// after the device went down.
func (d *device) lostAll() {
	t := d.tier
	t.mu.Lock()
	host := t.mu.host
	slabs := d.mu.space.byNumber()
	t.mu.Unlock()
	for _, s := range slabs {
		for _, key := range t.forget(s) {
			if host != nil {
				host.Lost(key, block.ErrUnavailable)
			}
		}
	}
}

// forget drops all blocks of a slab from memory and returns their keys.
func (t *Tier) forget(s *slab) (keys []block.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range s.slots {
		if id == 0 {
			continue
		}
		e := t.mu.table.at(id)
		if e.state == slotLive {
			keys = append(keys, parsePath(t.mu.table.path(e)))
			t.leaveLocked(id)
			t.freeLocked(id)
		}
	}
	return keys
}
