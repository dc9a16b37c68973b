package disk

import (
	"cmp"
	"iter"
	"maps"
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/disk/port"
	"github.com/kvfs/kvfs/tiers/policy"
)

const (
	// exactClasses is how many classes of one device have exactly the size of their first block.
	// Sizes of later classes are rounded up to eighths of a power of two. So blocks of random sizes
	// do not make a class each.
	exactClasses = 16
	// fullRetry is how long a full device is not asked for a new slab.
	fullRetry = time.Minute
	// maxThefts bounds how many slabs one store may try to steal, beyond those that it takes.
	maxThefts = 4
)

// space accounts for the room of one device: its slabs and size classes, the bytes of their files
// against the capacity, and the numbers of the files. It does no I/O. It knows only the number of
// blocks.
//
// A slab comes and goes in these steps. The file is made or deleted between them:
//
//	reserve -> add       a new slab; or reserve -> full if there is no file for it
//	found   -> add       a slab that was there at the start, found alone if it is set aside
//	remove  -> release   a slab that is deleted; remove alone if its file could not be
//
// A file counts towards the capacity from reserve or found to release.
//
// Tier.mu guards all of it, and its slabs and classes: every change to a block changes it and the
// table of slots together.
type space struct {
	// Constant.
	uuid      format.UUID // of the directory
	capacity  int64       // of all slab files, bytes
	slabBytes int64       // of new slabs
	policy    string      // of new classes

	classes     []*class
	slabs       map[*slab]struct{} // in use
	aside       []uint32           // numbers of slabs that are set aside
	nextNumber  uint32
	fileBytes   int64 // of all slab files, those set aside included
	usedBytes   int64 // of slots that hold blocks
	blocks      int64
	quarantined int64     // slots
	fullAt      time.Time // when a slab could not be made; zero: the last one could
	fullReason  string
}

// newSpace returns the space of a directory without slabs.
func newSpace(id format.UUID, capacity, slabBytes int64, policy string) *space {
	return &space{uuid: id, capacity: capacity, slabBytes: slabBytes, policy: policy, slabs: make(map[*slab]struct{})}
}

// found counts a slab file that was there at the start.
func (sp *space) found(number uint32, bytes int64) {
	sp.nextNumber = max(sp.nextNumber, number+1)
	sp.fileBytes += bytes
}

// SetAside is found for a slab that is not used.
func (sp *space) setAside(number uint32, bytes int64) {
	sp.found(number, bytes)
	sp.aside = append(sp.aside, number)
}

// shape returns the header of a new slab for slots of SlotBytes in a file of up to FileBytes. If no
// slot fits, it returns one with a single slot. The header has no number. shape needs no lock.
func (sp *space) shape(slotBytes, fileBytes int64) format.SlabHeader {
	h := format.SlabHeader{UUID: sp.uuid, SlotBytes: slotBytes, Slots: max(format.SlotsFor(fileBytes, slotBytes), 1)}
	for h.Epoch == 0 {
		h.Epoch = rand.Uint64()
	}
	return h
}

// mayGrow reports whether another slab file of n bytes fits the capacity.
func (sp *space) mayGrow(n int64) bool {
	return sp.fileBytes+n <= sp.capacity && (sp.fullAt.IsZero() || time.Since(sp.fullAt) > fullRetry)
}

// reserve returns the header of a new slab for slots of SlotBytes. It returns false if the device
// is full.
func (sp *space) reserve(slotBytes int64) (h format.SlabHeader, ok bool) {
	h = sp.shape(slotBytes, sp.slabBytes)
	if !sp.mayGrow(h.WantBytes()) {
		return h, false
	}
	h.Number = sp.takeNumber()
	sp.fileBytes += h.WantBytes()
	return h, true
}

// takeNumber returns a number for a slab: one more than the highest ever seen, or if there is none,
// the lowest free one.
func (sp *space) takeNumber() uint32 {
	if sp.nextNumber <= format.MaxSlabNumber {
		sp.nextNumber++
		return sp.nextNumber - 1
	}
	used := make(map[uint32]bool)
	for s := range sp.slabs {
		used[s.hdr.Number] = true
	}
	for _, n := range sp.aside {
		used[n] = true
	}
	n := uint32(0)
	for used[n] {
		n++
	}
	return n
}

// full undoes a reserve whose file of so many bytes could not be made because of err. Further
// reserves fail for a while.
func (sp *space) full(bytes int64, err error) {
	sp.fileBytes -= bytes
	sp.fullAt = time.Now()
	sp.fullReason = "device full at " + sizeText(sp.fileBytes)
	if !port.IsFull(err) {
		sp.fullReason = "no new slab: " + err.Error()
	}
}

// grown records that a slab was made, so the device is no longer full.
func (sp *space) grown() { sp.fullAt = time.Time{} }

// add takes a slab into use, with all its slots free.
func (sp *space) add(s *slab) {
	sp.slabs[s] = struct{}{}
	sp.classOf(s.hdr.SlotBytes).add(s)
}

// remove takes a slab out of use. The slab has left its class.
func (sp *space) remove(s *slab) { delete(sp.slabs, s) }

// release gives back the bytes of a file that was deleted.
func (sp *space) release(bytes int64) { sp.fileBytes -= bytes }

// over returns by how much the files exceed the capacity.
func (sp *space) over() int64 { return max(sp.fileBytes-sp.capacity, 0) }

// all returns the slabs in use, in no order.
func (sp *space) all() iter.Seq[*slab] { return maps.Keys(sp.slabs) }

// byNumber returns the slabs in use in the order of their numbers.
func (sp *space) byNumber() []*slab {
	return slices.SortedFunc(sp.all(), func(a, b *slab) int { return cmp.Compare(a.hdr.Number, b.hdr.Number) })
}

// enter counts a slot of s that now holds a block.
func (sp *space) enter(s *slab) {
	s.live++
	sp.blocks++
	sp.usedBytes += s.hdr.SlotBytes
}

// leave is the inverse of enter.
func (sp *space) leave(s *slab) {
	s.live--
	sp.blocks--
	sp.usedBytes -= s.hdr.SlotBytes
}

// quarantine counts a slot that is not used any more.
func (sp *space) quarantine() { sp.quarantined++ }

// thefts returns how many slabs a store in a slot of SlotBytes may try.
func (sp *space) thefts(slotBytes int64) int {
	h := sp.shape(slotBytes, sp.slabBytes)
	return maxThefts + int(2*h.WantBytes()/sp.slabBytes)
}

// borrow returns a class for larger blocks. A block of size bytes should take one of its slots:
// they are free and not needed there, which is better than to evict. It returns nil if there is
// none.
func (sp *space) borrow(size int64) *class {
	need := max(format.AlignUp(size), format.PageBytes)
	var best *class
	for _, c := range sp.classes {
		if c.slotBytes >= need && c.slotBytes <= 2*need && c.nfree > c.reserve() && (best == nil || c.slotBytes < best.slotBytes) {
			best = c
		}
	}
	return best
}

// takeLow returns the classes that have run low, once each.
func (sp *space) takeLow() (low []*class) {
	for _, c := range sp.classes {
		if c.low {
			c.low = false
			low = append(low, c)
		}
	}
	return low
}

// missing returns how many slots to evict for the reserve of a class. It is 0 if there is room for
// another slab.
func (sp *space) missing(c *class) int {
	if h := sp.shape(c.slotBytes, sp.slabBytes); sp.mayGrow(h.WantBytes()) {
		return 0
	}
	return max(c.reserve()-c.nfree, 0)
}

// coldest returns the slab that class c can best take from the others: one without blocks, else the
// least recently used one for which idle returns true. It is nil if there is none.
func (sp *space) coldest(c *class, idle func(*slab) bool) *slab {
	var slabs []*slab
	for _, o := range sp.classes {
		if o == c {
			continue
		}
		for _, s := range o.slabs {
			if !s.retired && s.live+s.nfree == int(s.usable) {
				slabs = append(slabs, s)
			}
		}
	}
	slices.SortFunc(slabs, func(a, b *slab) int {
		if (a.live == 0) != (b.live == 0) {
			return cmp.Compare(a.live, b.live)
		}
		return cmp.Compare(int32(a.used-b.used), 0)
	})
	for _, s := range slabs {
		if idle(s) {
			return s
		}
	}
	return nil
}

// fill sets the fields of a status about room.
func (sp *space) fill(out *DeviceDetail) {
	out.UsedBytes, out.SlabFileBytes, out.Blocks = sp.usedBytes, sp.fileBytes, sp.blocks
	out.Slabs, out.SetAside, out.QuarantinedSlots = len(sp.slabs), len(sp.aside), sp.quarantined
	for _, c := range sp.classes {
		out.Classes = append(out.Classes, ClassDetail{SlotBytes: c.slotBytes, Slots: c.total, Used: c.total - c.nfree})
	}
	slices.SortFunc(out.Classes, func(a, b ClassDetail) int { return cmp.Compare(a.SlotBytes, b.SlotBytes) })
}

// slotBytesFor returns the slot size of the class for a block of size bytes.
func (sp *space) slotBytesFor(size int64) int64 {
	need := max(format.AlignUp(size), format.PageBytes)
	best := int64(0)
	exact := 0
	for _, c := range sp.classes {
		if len(c.slabs) > 0 {
			exact++
		}
		if c.slotBytes >= need && c.slotBytes <= need+need>>wasteShift && (best == 0 || c.slotBytes < best) {
			best = c.slotBytes
		}
	}
	if best != 0 {
		return best
	}
	if exact >= exactClasses {
		return roundToEighth(need)
	}
	return need
}

// roundToEighth rounds n up to an eighth of the power of two below it. n is a multiple of a page.
func roundToEighth(n int64) int64 {
	step := max(int64(1)<<(bits.Len64(uint64(n))-1)>>wasteShift, format.PageBytes)
	return (n + step - 1) / step * step
}

// classOf returns the class of a slot size, and makes it if there is none. Classes without slabs
// make way.
func (sp *space) classOf(slotBytes int64) *class {
	for _, c := range sp.classes {
		if c.slotBytes == slotBytes {
			return c
		}
	}
	sp.classes = slices.DeleteFunc(sp.classes, func(c *class) bool { return len(c.slabs) == 0 && !c.low })
	pol, err := policy.New(sp.policy, sp.capacity)
	if err != nil {
		panic("disk: policy checked by Open: " + err.Error())
	}
	c := &class{slotBytes: slotBytes, pol: pol}
	sp.classes = append(sp.classes, c)
	return c
}
