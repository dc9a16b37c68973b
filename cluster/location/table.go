package location

import (
	"math/bits"
	"sync"
)

// packed is an entry as it is stored:
//
//	hash  64 bits: the mixed hash (see Index.mix)
//	seq   64 bits
//	rest  size 38 | slot 14 | class 11 | memory 1, from the highest bit down
//
// A class of 0 says that the place is empty.
type packed struct {
	hash, seq, rest uint64
}

const (
	classBits = 11
	slotBits  = 14
	sizeBits  = 64 - sizeShift

	classShift = 1
	slotShift  = classShift + classBits
	sizeShift  = slotShift + slotBits

	classMask = 1<<classBits - 1
	slotMask  = 1<<slotBits - 1
)

func packRest(size int64, slot Slot, class uint16, memory bool) uint64 {
	r := uint64(size)<<sizeShift | uint64(slot)<<slotShift | uint64(class)<<classShift
	if memory {
		r |= 1
	}
	return r
}

func (e *packed) empty() bool   { return e.rest&(classMask<<classShift) == 0 }
func (e *packed) class() uint16 { return uint16(e.rest >> classShift & classMask) }
func (e *packed) slot() Slot    { return Slot(e.rest >> slotShift & slotMask) }
func (e *packed) size() int64   { return int64(e.rest >> sizeShift) }
func (e *packed) memory() bool  { return e.rest&1 != 0 }

// Tables consist of blocks. So they grow and shrink in small steps at any size, and the blocks of
// one table fit the next. A block has 32 entries in a small table and a larger power of two in a
// larger one, so a table has less than mostBlocks blocks. The headers of all tables then stay in
// the processor's cache, and a look-up costs one access to memory. Go has size classes for these
// sizes.
type block []packed

const (
	leastUnit  = 5 // log2 of entries of a block
	mostBlocks = 64

	entryBytes  = 24
	headerBytes = 24 // of a block
)

// layout returns how many blocks of how many entries (log2) a table of at least this many places
// has.
func layout(places uint64) (unit uint8, blocks int) {
	unit = leastUnit
	for places>>unit >= mostBlocks {
		unit++
	}
	return unit, int((places + 1<<unit - 1) >> unit)
}

// A table is full at fullTenths of ten. It grows and shrinks by 1/stepPart: a smaller step would
// save little and copy more often. It shrinks if its load is at most shrinkPercent after that, so
// it does not grow again at once. The load is between 0.82 and 0.9, or 27 to 30 bytes an entry.
const (
	fullTenths    = 9
	stepPart      = 16
	shrinkPercent = 87
	freshPercent  = 88 // after a removal of many
)

// nearEntries is how many entries find compares one by one before it leaps.
const nearEntries = 16

// table is a hash table with linear probing whose entries are in order of mixed hash, then of slot.
// It is a ring: entries that do not fit at its end continue at its start.
//
// INVARIANT: no place from an entry's home up to the entry is empty.
// INVARIANT: along the ring, homes never go down within a run of taken places, and
// entries of one home are in order.
// INVARIANT: at least one place is empty, unless there are no blocks.
type table struct {
	blocks []block
	places uint64 // of all blocks
	used   uint32
	unit   uint8 // log2 of the entries of each block
}

func (t *table) at(p uint64) *packed {
	return &t.blocks[p>>(t.unit&63)][p&(1<<(t.unit&63)-1)]
}

// home returns the place of an entry of that hash if no other pushes it on. It rises with the hash.
// The top bits chose the shard and are the same for all.
func (t *table) home(hash uint64) uint64 {
	p, _ := bits.Mul64(hash<<shardBits, t.places)
	return p
}

// wrap maps a place beyond the end back into the ring.
func (t *table) wrap(p uint64) uint64 {
	if p >= t.places {
		p -= t.places
	}
	return p
}

// before reports whether the entry at p comes before (hash, slot), whose home is
// steps before p. An empty place does not.
func (t *table) before(p, steps, hash uint64, slot Slot) bool {
	e := t.at(p)
	if e.empty() {
		return false
	}
	if e.hash == hash {
		return e.slot() < slot
	}
	pushed := p - t.home(e.hash)
	if pushed > p { // it began before the end of the ring
		pushed += t.places
	}
	return pushed > steps || pushed == steps && e.hash < hash
}

// find returns the first place, from the home of (hash, slot) on, whose entry does not come before
// it: its place, or the place for it.
//
// If the entry at some place comes before it, so do all from the home up to there, and none is
// empty, because otherwise that entry would stand further to the front. So find may leap: a hash
// with thousands of holders does not make its neighbours slow.
func (t *table) find(hash uint64, slot Slot) (place uint64, found bool) {
	if t.places == 0 {
		return 0, false
	}
	home := t.home(hash)
	steps := uint64(0)
	for steps < nearEntries && t.before(t.wrap(home+steps), steps, hash, slot) {
		steps++
	}
	if steps == nearEntries {
		low, high := steps-1, steps // low comes before it
		for t.before(t.wrap(home+high), high, hash, slot) {
			low, high = high, min(2*high, t.places-1)
		}
		for low+1 < high {
			if mid := (low + high) / 2; t.before(t.wrap(home+mid), mid, hash, slot) {
				low = mid
			} else {
				high = mid
			}
		}
		steps = high
	}
	place = t.wrap(home + steps)
	e := t.at(place)
	return place, e.hash == hash && e.slot() == slot && !e.empty()
}

// full reports whether there is no room for one more.
func (t *table) full() bool { return (uint64(t.used)+1)*10 > t.places*fullTenths }

// insert puts e at place, which find returned, and pushes on the entries there. The table must not
// be full.
func (t *table) insert(place uint64, e packed) {
	t.used++
	b, i := place>>t.unit, place&(1<<t.unit-1)
	for {
		blk := t.blocks[b]
		for j := i; j < uint64(len(blk)); j++ {
			if blk[j].empty() {
				copy(blk[i+1:j+1], blk[i:j])
				blk[i] = e
				return
			}
		}
		last := blk[len(blk)-1]
		copy(blk[i+1:], blk[i:])
		blk[i] = e
		e, i = last, 0
		if b++; b == uint64(len(t.blocks)) {
			b = 0
		}
	}
}

// remove empties place and moves the pushed entries back.
func (t *table) remove(place uint64) {
	t.used--
	for {
		next := t.wrap(place + 1)
		e := t.at(next)
		if e.empty() || t.home(e.hash) == next {
			*t.at(place) = packed{}
			return
		}
		*t.at(place) = *e
		place = next
	}
}

// run calls fn for the entries of hash in order of slots.
func (t *table) run(hash uint64, fn func(e *packed)) {
	place, _ := t.find(hash, 0)
	for range t.used {
		e := t.at(place)
		if e.hash != hash || e.empty() {
			return
		}
		fn(e)
		place = t.wrap(place + 1)
	}
}

// larger and smaller return the number of places after one step.
func (t *table) larger() uint64 { return t.places + max(1<<leastUnit, t.places/stepPart) }

func (t *table) smaller() uint64 {
	if t.places == 0 {
		return 0
	}
	unit, blocks := layout(t.places - max(1<<t.unit, t.places/stepPart))
	return uint64(blocks) << unit
}

// loose reports whether the table should shrink by one step.
func (t *table) loose() bool {
	return t.places > 0 && uint64(t.used)*100 <= t.smaller()*shrinkPercent
}

// placesFor returns the number of places for n entries.
func placesFor(n int) uint64 { return (uint64(n)*100 + freshPercent - 1) / freshPercent }

// rebuilt returns a table of at least this many places with the entries of t that keep accepts,
// which must leave room; nil keeps all. It does not change t.
func (t *table) rebuilt(p *pool, places uint64, keep func(e *packed) bool) table {
	n := p.table(places)
	first := uint64(0) // in the order: behind those that go on from the end of the ring
	for first < t.places {
		if e := t.at(first); e.empty() || t.home(e.hash) <= first {
			break
		}
		first++
	}
	next := uint64(0)
	take := func(e *packed) {
		if e.empty() || keep != nil && !keep(e) {
			return
		}
		place := max(next, n.home(e.hash))
		if place >= n.places { // goes on at the start
			place, _ = n.find(e.hash, e.slot())
			n.insert(place, *e)
			next = n.places
			return
		}
		*n.at(place) = *e
		n.used++
		next = place + 1
	}
	for p := first; p < t.places; p++ {
		take(t.at(p))
	}
	for p := range first {
		take(t.at(p))
	}
	return n
}

// bytes returns the memory of the table without the struct.
func (t *table) bytes() int64 {
	return int64(t.places)*entryBytes + int64(len(t.blocks))*headerBytes
}

// pool keeps some blocks for the next table, so that growing makes little garbage.
type pool struct {
	mu   sync.Mutex
	free [64][]block // by unit
	kept uint64      // places in free
	used uint64      // places that tables have
}

// A pool keeps one place for poolPart that tables have, and poolMin: enough for a
// table, and under a hundredth of the whole.
const (
	poolPart = 2 * shards / 3
	poolMin  = 256
)

// table returns an empty table of at least this many places.
func (p *pool) table(places uint64) table {
	if places == 0 {
		return table{}
	}
	unit, n := layout(places)
	t := table{blocks: make([]block, n), unit: unit, places: uint64(n) << unit}
	p.mu.Lock()
	free := p.free[unit]
	had := copy(t.blocks, free[max(0, len(free)-n):])
	rest := len(free) - had
	clear(free[rest:])
	p.free[unit] = free[:rest]
	p.kept -= uint64(had) << unit
	p.used += t.places
	p.mu.Unlock()
	for i := range t.blocks {
		if i < had {
			clear(t.blocks[i])
		} else {
			t.blocks[i] = make(block, 1<<unit)
		}
	}
	return t
}

// taken returns how many places tables have.
func (p *pool) taken() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// give takes back the blocks of t. No goroutine may use them any more.
func (p *pool) give(t table) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used -= t.places
	most := p.used/poolPart + poolMin
	for unit := range p.free { // blocks of other sizes go first: no table needs them now
		if uint8(unit) != t.unit && p.kept+t.places > most {
			p.kept -= uint64(len(p.free[unit])) << unit
			p.free[unit] = nil
		}
	}
	for _, b := range t.blocks {
		if p.kept+uint64(len(b)) > most {
			break
		}
		p.free[t.unit] = append(p.free[t.unit], b)
		p.kept += uint64(len(b))
	}
	for n := len(p.free[t.unit]); n > 0 && p.kept > most; n-- {
		p.free[t.unit][n-1] = nil
		p.free[t.unit] = p.free[t.unit][:n-1]
		p.kept -= 1 << t.unit
	}
}

// bytes returns the memory of the pool.
func (p *pool) bytes() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := int64(p.kept) * entryBytes
	for _, free := range p.free {
		n += int64(cap(free)) * headerBytes
	}
	return n
}
