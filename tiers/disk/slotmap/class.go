package slotmap

import (
	"cmp"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/disk/durable"
	"github.com/kvfs/kvfs/tiers/disk/format"
)

// Slab is a slab file in use. The fields above the line are constant once the slab is in the slot map;
// the caller sets all but ID, and uses File, Path and Sync as it likes.
type Slab struct {
	ID    uint32 // in the slot map
	Space *Space
	File  *directio.File
	Path  string
	Sync  durable.File
	// Changed says that the directory has a mark of the slab, or that the index does not describe it. Writes are under way.
	Changed atomic.Bool
	Writes  atomic.Int32
	// ------ set by the caller before AddSlab, and by Recut
	Size   int64             // of the file, bytes
	Header format.SlabHeader // constant while any slot is in use
	Usable uint32            // slots in use, counted from the first
	class  *Class
	base   uint32   // number of slot 0 in the policy of the space
	free   []uint64 // bitmap of free slots
	nfree  int
	slots  []SlotID // by slot; 0: free
	live   int      // slots that hold a block
	// retired: the slab is being emptied and gives out no slots
	retired bool
}

// Class is a size class of one device: slots of one size.
//
// INVARIANT: nfree is the sum of nfree of the slabs that are not retired.
type Class struct {
	slotBytes int64
	slabs     []*Slab // ascending by base
	nfree     int
	total     int  // slots that may be used
	cursor    int  // slab to look at first
	low       bool // the caller must evict ahead of need
}

const (
	// A block may waste a 32nd of its slot, or an eighth if there are many classes already. With an
	// eighth alone, a device that changes to somewhat smaller blocks would lose that much of its room.
	wasteShift     = 5
	manyWasteShift = 3
	// reserveBytes and reserveSlots bound what is evicted ahead of need.
	reserveBytes = 8 << 20
	reserveSlots = 64
)

// Reserve is how many slots of a class are held free ahead of need. A small class gets
// none, since the reserve would be a notable part of it.
func (c *Class) Reserve() int {
	return int(min(int64(c.total/64), reserveSlots, reserveBytes/c.slotBytes))
}

// add enters a slab into the class with all its slots free. Its base is set.
func (c *Class) add(s *Slab) {
	s.class = c
	s.slots = make([]SlotID, s.Header.Slots)
	s.free = make([]uint64, (s.Header.Slots+63)/64)
	for i := range s.Usable {
		s.free[i/64] |= 1 << (i % 64)
	}
	s.nfree = int(s.Usable)
	c.nfree += s.nfree
	c.total += int(s.Usable)
	at, _ := slices.BinarySearchFunc(c.slabs, s.base, compareBase)
	c.slabs = slices.Insert(c.slabs, at, s)
	c.cursor = at
}

func compareBase(s *Slab, base uint32) int { return cmp.Compare(s.base, base) }

// retire stops giving out slots of a slab.
func (c *Class) retire(s *Slab) {
	s.retired = true
	c.nfree -= s.nfree
}

// unretire is the inverse of retire.
func (c *Class) unretire(s *Slab) {
	s.retired = false
	c.nfree += s.nfree
}

// drop takes a retired slab, whose slots are all free, out of the class.
func (c *Class) drop(s *Slab) {
	c.slabs = slices.DeleteFunc(c.slabs, func(o *Slab) bool { return o == s })
	c.total -= int(s.Usable)
	s.class, s.retired = nil, false
}

// TakeRun takes up to n adjacent free slots. count is 0 if none is free. It continues where it last
// stopped. A batch then lies together, and so do the blocks evicted with it later.
func (c *Class) TakeRun(n int) (s *Slab, first uint32, count int) {
	if c.nfree == 0 {
		return nil, 0, 0
	}
	for i := range c.slabs {
		at := (c.cursor + i) % len(c.slabs)
		if s = c.slabs[at]; s.retired || s.nfree == 0 {
			continue
		}
		c.cursor = at
		first = s.firstFree()
		for count < n && first+uint32(count) < s.Usable && s.isFree(first+uint32(count)) {
			s.take(first + uint32(count))
			count++
		}
		return s, first, count
	}
	return nil, 0, 0
}

func (s *Slab) firstFree() uint32 {
	for i, w := range s.free {
		if w != 0 {
			return uint32(i*64 + bits.TrailingZeros64(w))
		}
	}
	panic("slot map: slab without a free slot")
}

func (s *Slab) isFree(slot uint32) bool { return s.free[slot/64]&(1<<(slot%64)) != 0 }

func (s *Slab) take(slot uint32) {
	s.free[slot/64] &^= 1 << (slot % 64)
	s.nfree--
	if !s.retired {
		s.class.nfree--
	}
}

// give makes a slot free again.
func (s *Slab) give(slot uint32) {
	s.slots[slot] = 0
	s.free[slot/64] |= 1 << (slot % 64)
	s.nfree++
	if !s.retired {
		s.class.nfree++
	}
}

// RunsLow reports, once until TakeLow, that the class has fewer free slots than its reserve.
func (c *Class) RunsLow() bool {
	if c.low || c.nfree >= c.Reserve() {
		return false
	}
	c.low = true
	return true
}

// SlotBytes returns the size of the slots.
func (c *Class) SlotBytes() int64 { return c.slotBytes }

// Live returns how many blocks a slab holds.
func (s *Slab) Live() int { return s.live }

// Retire keeps a slab from giving out slots, until Unretire or DropEmpty.
func (s *Slab) Retire() { s.class.retire(s) }

// Unretire is the inverse of Retire.
func (s *Slab) Unretire() { s.class.unretire(s) }

// Empty reports whether all slots of a slab are free.
func (s *Slab) Empty() bool { return s.nfree == int(s.Usable) }

// DropEmpty takes a retired slab out of its class. It returns false, and does nothing, if not all its
// slots are free.
func (s *Slab) DropEmpty() bool {
	if !s.Empty() {
		return false
	}
	s.Space.drop(s)
	return true
}

// policyID is the number of a slot in the policy of its space.
func (s *Slab) policyID(slot uint32) uint32 { return s.base + slot }
