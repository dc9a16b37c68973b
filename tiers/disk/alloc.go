package disk

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/disk/durable"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/policy"
)

// slab is a slab file in use. Tier.mu guards the fields below the line.
type slab struct {
	id   uint32 // index in Tier.mu.slabs
	dev  *device
	file *directio.File
	path string
	size int64 // of the file, bytes
	sync durable.File
	// ------
	hdr    format.SlabHeader // constant while any slot is in use
	usable uint32            // slots in use, counted from the first
	class  *class
	base   uint32   // number of slot 0 in the class's policy
	free   []uint64 // bitmap of free slots
	nfree  int
	slots  []slotID // by slot; 0: free
	live   int      // slots that hold a block
	used   uint32   // clock at the last use of any block
	// retired: the slab is being removed and gives out no slots
	retired bool
}

// class is a size class of one device: slots of one size, and the eviction order of their blocks.
//
// INVARIANT: nfree is the sum of nfree of the slabs that are not retired.
type class struct {
	slotBytes int64
	slabs     []*slab // ascending by base
	pol       policy.Policy
	nfree     int
	total     int    // slots that may be used
	next      uint32 // policy number of the next slab's slot 0
	bases     []span // ranges of policy numbers that removed slabs have left
	cursor    int    // slab to look at first
	low       bool   // the keeper must evict ahead of need
}

// span is a range of policy numbers.
type span struct{ base, n uint32 }

const (
	// wasteShift: a block may waste an eighth of its slot.
	wasteShift = 3
	// reserveBytes and reserveSlots bound what is evicted ahead of need.
	reserveBytes = 8 << 20
	reserveSlots = 64
)

// reserve is how many slots of a class the keeper holds free ahead of need. A small class gets
// none, since the reserve would be a notable part of it.
func (c *class) reserve() int {
	return int(min(int64(c.total/64), reserveSlots, reserveBytes/c.slotBytes))
}

// add enters a slab into the class with all its slots free.
func (c *class) add(s *slab) {
	s.class = c
	s.base = c.takeBase(s.hdr.Slots)
	s.slots = make([]slotID, s.hdr.Slots)
	s.free = make([]uint64, (s.hdr.Slots+63)/64)
	for i := range s.usable {
		s.free[i/64] |= 1 << (i % 64)
	}
	s.nfree = int(s.usable)
	c.nfree += s.nfree
	c.total += int(s.usable)
	at, _ := slices.BinarySearchFunc(c.slabs, s.base, compareBase)
	c.slabs = slices.Insert(c.slabs, at, s)
	c.cursor = at
}

func compareBase(s *slab, base uint32) int { return cmp.Compare(s.base, base) }

func (c *class) takeBase(n uint32) uint32 {
	for i, sp := range c.bases {
		if sp.n >= n {
			if c.bases[i] = (span{sp.base + n, sp.n - n}); sp.n == n {
				c.bases = slices.Delete(c.bases, i, i+1)
			}
			return sp.base
		}
	}
	base := c.next
	c.next += n
	return base
}

// retire stops giving out slots of a slab.
func (c *class) retire(s *slab) {
	s.retired = true
	c.nfree -= s.nfree
}

// unretire is the inverse of retire.
func (c *class) unretire(s *slab) {
	s.retired = false
	c.nfree += s.nfree
}

// drop takes a retired slab, whose slots are all free, out of the class.
func (c *class) drop(s *slab) {
	c.slabs = slices.DeleteFunc(c.slabs, func(o *slab) bool { return o == s })
	c.bases = append(c.bases, span{s.base, s.hdr.Slots})
	c.total -= int(s.usable)
	s.class, s.retired = nil, false
}

// takeRun takes up to n adjacent free slots. count is 0 if none is free. It continues where it last
// stopped. A batch then lies together, and so do the blocks evicted with it later.
func (c *class) takeRun(n int) (s *slab, first uint32, count int) {
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
		for count < n && first+uint32(count) < s.usable && s.isFree(first+uint32(count)) {
			s.take(first + uint32(count))
			count++
		}
		return s, first, count
	}
	return nil, 0, 0
}

func (s *slab) firstFree() uint32 {
	for i, w := range s.free {
		if w != 0 {
			return uint32(i*64 + bits.TrailingZeros64(w))
		}
	}
	panic("disk: slab without a free slot")
}

func (s *slab) isFree(slot uint32) bool { return s.free[slot/64]&(1<<(slot%64)) != 0 }

func (s *slab) take(slot uint32) {
	s.free[slot/64] &^= 1 << (slot % 64)
	s.nfree--
	if !s.retired {
		s.class.nfree--
	}
}

// give makes a slot free again.
func (s *slab) give(slot uint32) {
	s.slots[slot] = 0
	s.free[slot/64] |= 1 << (slot % 64)
	s.nfree++
	if !s.retired {
		s.class.nfree++
	}
}

// policyID is the number of a slot in the policy of its class.
func (s *slab) policyID(slot uint32) uint32 { return s.base + slot }

// byPolicyID returns the slot that a number of the class's policy stands for.
func (c *class) byPolicyID(id uint32) (s *slab, slot uint32) {
	at, found := slices.BinarySearchFunc(c.slabs, id, compareBase)
	if !found {
		at--
	}
	s = c.slabs[at]
	return s, id - s.base
}
