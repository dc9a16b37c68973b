package catalog

import (
	"math/bits"
	"unsafe"
)

// A table consists of blocks, so that it grows and shrinks in small steps at any size. A block is
// leastBlock bytes, or that times a power of two in a larger table, which has less than mostBlocks
// blocks. The list of blocks then stays in the processor's cache, and a look-up costs one access to
// memory. Blocks have the sizes of Go's size classes, so hardly anything is lost between them.
const (
	leastBlock = 1 << 10
	mostBlocks = 64
)

// A table is full at fullMille of a thousand. It grows and shrinks by 1/stepPart, and shrinks if its
// load is at most looseMille after that. The load is between 0.87 and 0.945. So full a table makes
// a look-up compare 9 records on average, all side by side.
const (
	fullMille  = 945
	looseMille = 930
	stepPart   = 16
)

// table is a hash table with linear probing whose records are in order of key (Robin Hood hashing,
// as in cluster/location). It is a ring: records that do not fit at its end continue at its start.
//
// INVARIANT: no place from a record's home up to the record is empty.
// INVARIANT: along the ring, keys never go down within a run of taken places.
// INVARIANT: at least one place is empty, unless there are no blocks.
type table struct {
	blocks  []*packed // the first record of each
	inverse uint64    // of each, rounded up
	each    uint64    // records of a block
	places  uint64    // of all blocks; below 1<<32
	used    uint64
}

// layout returns how many records a block of a table of at least this many places has.
func layout(places uint64) (each uint64) {
	for block := uint64(leastBlock); ; block *= 2 {
		if each = block / recordBytes; places < each*mostBlocks {
			return each
		}
	}
}

// newTable returns an empty table of at least this many places.
func newTable(places uint64) table {
	if places == 0 {
		return table{}
	}
	each := layout(places)
	t := table{blocks: make([]*packed, (places+each-1)/each), each: each, inverse: ^uint64(0)/each + 1}
	for i := range t.blocks {
		t.blocks[i] = unsafe.SliceData(make([]packed, each))
	}
	t.places = uint64(len(t.blocks)) * each
	return t
}

// block returns the records of a block.
func (t *table) block(i uint64) []packed { return unsafe.Slice(t.blocks[i], t.each) }

// split returns the block of a place, and which of its records it is.
func (t *table) split(p uint64) (block, index uint64) {
	block, _ = bits.Mul64(p, t.inverse) // p / each: exact for numbers below 1<<32
	return block, p - block*t.each
}

func (t *table) at(p uint64) *packed {
	b, i := t.split(p)
	return (*packed)(unsafe.Add(unsafe.Pointer(t.blocks[b]), i*recordBytes))
}

// home returns the place of a key if no other record pushes it on. It rises with the key.
func (t *table) home(key uint64) uint64 {
	p, _ := bits.Mul64(key, t.places)
	return p
}

// wrap maps a place beyond the end back into the ring.
func (t *table) wrap(p uint64) uint64 {
	if p >= t.places {
		p -= t.places
	}
	return p
}

// find returns the place of key, or the place for it.
func (t *table) find(key uint64) (place uint64, found bool) {
	if t.places == 0 {
		return 0, false
	}
	home := t.home(key)
	place = home
	for steps := uint64(0); ; steps++ {
		e := t.at(place)
		if e.empty() {
			return place, false
		}
		if k := e.key(); k == key {
			return place, true
		} else if k > key || steps > place { // the second: the search went around the end
			pushed := place - t.home(k)
			if pushed > place { // so did the record
				pushed += t.places
			}
			if pushed < steps || pushed == steps && k > key {
				return place, false
			}
		}
		place = t.wrap(place + 1)
	}
}

// full reports whether there is no room for one more.
func (t *table) full() bool { return (t.used+1)*1000 > t.places*fullMille }

// insert puts r at place, which find returned, and pushes on the records there. The table must not
// be full.
func (t *table) insert(place uint64, r packed) {
	t.used++
	for b, i := t.split(place); ; i = 0 {
		block := t.block(b)
		for j := i; j < uint64(len(block)); j++ {
			if block[j].empty() {
				copy(block[i+1:j+1], block[i:j])
				block[i] = r
				return
			}
		}
		last := block[len(block)-1]
		copy(block[i+1:], block[i:])
		block[i] = r
		r = last
		if b++; b == uint64(len(t.blocks)) {
			b = 0
		}
	}
}

// remove empties place and moves the pushed records back.
func (t *table) remove(place uint64) {
	t.used--
	for {
		next := t.wrap(place + 1)
		e := t.at(next)
		if e.empty() || t.home(e.key()) == next {
			*t.at(place) = packed{}
			return
		}
		*t.at(place) = *e
		place = next
	}
}

// larger returns the number of places after one step.
func (t *table) larger() uint64 { return t.places + max(t.places/stepPart, 1) }

// fitting returns the number of places to which the table should shrink, step by step.
func (t *table) fitting() uint64 {
	places := t.places
	for places > 0 {
		next := smaller(places)
		if t.used*1000 > next*looseMille {
			break
		}
		places = next
	}
	return places
}

// smaller returns the number of places after one step down.
func smaller(places uint64) uint64 {
	each := layout(places)
	if places <= each {
		return 0
	}
	places -= max(places/stepPart, each)
	each = layout(places)
	return (places + each - 1) / each * each
}

// rebuilt returns a table of at least this many places with the records of t, which must leave one
// empty. It does not change t.
func (t *table) rebuilt(places uint64) table {
	n := newTable(places)
	first := uint64(0) // in the order: behind those that go on from the end of the ring
	for first < t.places {
		if e := t.at(first); e.empty() || t.home(e.key()) <= first {
			break
		}
		first++
	}
	next := uint64(0)
	for i := range t.places {
		e := t.at(t.wrap(first + i))
		if e.empty() {
			continue
		}
		key := e.key()
		place := max(next, n.home(key))
		if place >= n.places { // goes on at the start
			place, _ = n.find(key)
			n.insert(place, *e)
			next = n.places
			continue
		}
		*n.at(place) = *e
		n.used++
		next = place + 1
	}
	return n
}

// bytes returns the memory of the table without the struct.
func (t *table) bytes() int64 {
	block := int64(leastBlock)
	for block/recordBytes < int64(t.each) {
		block *= 2
	}
	return int64(len(t.blocks)) * (block + 8)
}
