package slotmap

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/policy"
)

const (
	// exactClasses is how many classes of one device have exactly the size of their first block.
	// Sizes of later classes are rounded up to eighths of a power of two. So blocks of random sizes
	// do not make a class each.
	exactClasses = 16
	// fullRetry is how long a full device is not asked for a new slab.
	fullRetry = time.Minute
	// smallestSlab: the last slab of a device may be smaller than the others, down to a quarter.
	smallestSlab = 4
)

// Space accounts for the room of one device: its slabs and size classes, the bytes of their files
// against the capacity, the numbers of the files, and the order of eviction, which is one for all
// classes. It does no I/O. It knows only the number of blocks.
//
// A slab comes and goes in these steps. The file is made or deleted between them:
//
//	Reserve -> AddSlab        a new slab; or Reserve -> Full if there is no file for it
//	Found -> AddSlab          a slab that was there at the start; SetAside if it is not used
//	DropEmpty -> Recut -> Add a slab that goes to another class
//	RemoveSlab -> Release     a slab that is deleted; RemoveSlab alone if its file could not be
//
// A file counts towards the capacity from Reserve or Found to Release.
type Space struct {
	// Constant.
	Device    int // index of the device, for the caller
	down      func() bool
	wake      func()
	uuid      format.UUID // of the directory
	capacity  int64       // of all slab files, bytes
	slabBytes int64       // of new slabs

	pol         policy.Policy // of all blocks, numbered by policyID
	byBase      []*Slab       // those in a class, ascending by base
	nextBase    uint32        // policy number of the next slab's slot 0
	bases       []span        // ranges of policy numbers below nextBase that are free, ascending
	classes     []*Class
	slabs       map[*Slab]struct{} // in use
	aside       []uint32           // numbers of slabs that are set aside
	nextNumber  uint32
	fileBytes   int64  // of all slab files, those set aside included
	usedBytes   int64  // of slots that hold blocks
	freed       uint64 // slots that became free, in total
	blocks      int64
	headers     headerList
	quarantined int64     // slots
	fullAt      time.Time // when a slab could not be made; zero: the last one could
	fullReason  string
}

// span is a range of policy numbers.
type span struct{ base, n uint32 }

// SpaceOptions configures a space.
type SpaceOptions struct {
	Device    int         // index of the device, for the caller
	Down      func() bool // reports whether the device is down: slots are then free without their headers
	Wake      func()      // called when there is a header to write; must not block
	UUID      format.UUID // of the directory
	Capacity  int64       // of all slab files, bytes
	SlabBytes int64       // of new slabs
	Policy    string      // see package policy
}

// NewSpace returns a space without slabs.
func NewSpace(o SpaceOptions) *Space {
	pol, err := policy.New(o.Policy, o.Capacity)
	if err != nil {
		panic("slot map: policy checked by Open: " + err.Error())
	}
	return &Space{
		Device: o.Device, down: o.Down, wake: o.Wake, uuid: o.UUID, capacity: o.Capacity, slabBytes: o.SlabBytes, pol: pol,
		slabs: make(map[*Slab]struct{}),
	}
}

// Found counts a slab file that was there at the start.
func (sp *Space) Found(number uint32, bytes int64) {
	sp.nextNumber = max(sp.nextNumber, number+1)
	sp.fileBytes += bytes
}

// SetAside is Found for a slab that is not used.
func (sp *Space) SetAside(number uint32, bytes int64) {
	sp.Found(number, bytes)
	sp.aside = append(sp.aside, number)
}

// Shape returns the header of a new slab for slots of slotBytes in a file of up to fileBytes. If no
// slot fits, it returns one with a single slot. The header has no number. Shape needs no lock.
func (sp *Space) Shape(slotBytes, fileBytes int64) format.SlabHeader {
	h := format.SlabHeader{UUID: sp.uuid, SlotBytes: slotBytes, Slots: max(format.SlotsFor(fileBytes, slotBytes), 1)}
	for h.Epoch == 0 {
		h.Epoch = rand.Uint64()
	}
	return h
}

// next returns the shape of the next new slab for slots of slotBytes. It is smaller than others if
// less of the capacity is left. ok is false if there is no room for one.
func (sp *Space) next(slotBytes int64) (h format.SlabHeader, ok bool) {
	room := sp.capacity - sp.fileBytes
	h = sp.Shape(slotBytes, sp.slabBytes)
	if h.WantBytes() > room && room >= sp.slabBytes/smallestSlab {
		h = sp.Shape(slotBytes, room)
	}
	return h, h.WantBytes() <= room && !sp.isFull()
}

// isFull reports whether the device had no room for a file a short while ago.
func (sp *Space) isFull() bool { return !sp.fullAt.IsZero() && time.Since(sp.fullAt) <= fullRetry }

// Reserve returns the header of a new slab for slots of slotBytes. It returns false if the device
// is full.
func (sp *Space) Reserve(slotBytes int64) (h format.SlabHeader, ok bool) {
	h, ok = sp.next(slotBytes)
	if !ok {
		return h, false
	}
	h.Number = sp.takeNumber()
	sp.fileBytes += h.WantBytes()
	return h, true
}

// Recut gives a slab without a class the header of one for slots of slotBytes. If the capacity has room
// for that, the slab gets the size of a new one: the caller makes its file longer, or Uncut undoes that.
// If the header wants less than the size, the caller may shorten the file, and then calls Trim. The number
// stays. Recut returns false, and changes nothing, if not even one slot fits.
func (sp *Space) Recut(s *Slab, slotBytes int64) (old int64, ok bool) {
	old = s.Size
	room := s.Size
	if !sp.isFull() {
		room += max(sp.capacity-sp.fileBytes, 0)
	}
	h := sp.Shape(slotBytes, min(room, sp.slabBytes))
	if h.WantBytes() > room {
		return old, false
	}
	h.Number = s.Header.Number
	s.Header, s.Usable, s.Size = h, h.Slots, max(s.Size, h.WantBytes())
	sp.fileBytes += s.Size - old
	return old, true
}

// Uncut undoes what Recut did to the size of a slab whose file could not be made longer.
func (sp *Space) Uncut(s *Slab, old int64) {
	sp.Full(s.Size-old, "")
	s.Size = old
}

// Trim records that the file of a slab is only as long as its header wants.
func (sp *Space) Trim(s *Slab) {
	sp.fileBytes -= s.Size - s.Header.WantBytes()
	s.Size = s.Header.WantBytes()
}

// takeNumber returns a number for a slab: one more than the highest ever seen, or if there is none,
// the lowest free one.
func (sp *Space) takeNumber() uint32 {
	if sp.nextNumber <= format.MaxSlabNumber {
		sp.nextNumber++
		return sp.nextNumber - 1
	}
	used := make(map[uint32]bool)
	for s := range sp.slabs {
		used[s.Header.Number] = true
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

// Full undoes a Reserve whose file of so many bytes could not be made. Further reserves fail for a
// while. An empty reason means that its file system is full.
func (sp *Space) Full(bytes int64, reason string) {
	sp.fileBytes -= bytes
	sp.fullAt = time.Now()
	sp.fullReason = fmt.Sprintf("%s: the SSD tier goes on with %s of the %s that its size allows. Free room there, or lower its size",
		cmp.Or(reason, "its file system is full"), format.Size(sp.fileBytes), format.Size(sp.capacity))
}

// Grown records that a slab was made, so the device is no longer full.
func (sp *Space) Grown() { sp.fullAt, sp.fullReason = time.Time{}, "" }

// Add takes a slab into use, with all its slots free.
func (sp *Space) Add(s *Slab) {
	sp.slabs[s] = struct{}{}
	s.base = sp.takeBase(s.Header.Slots)
	at, _ := slices.BinarySearchFunc(sp.byBase, s.base, compareBase)
	sp.byBase = slices.Insert(sp.byBase, at, s)
	sp.ClassOf(s.Header.SlotBytes).add(s)
}

// drop takes a retired slab, whose slots are all free, out of its class.
func (sp *Space) drop(s *Slab) {
	sp.byBase = slices.DeleteFunc(sp.byBase, func(o *Slab) bool { return o == s })
	sp.giveBase(span{s.base, s.Header.Slots})
	s.class.drop(s)
}

// giveBase gives back a range of policy numbers. It joins adjacent ranges, so that slabs of other
// classes, with more slots, find room: the memory of the policy is that of the highest number.
func (sp *Space) giveBase(sn span) {
	at, _ := slices.BinarySearchFunc(sp.bases, sn.base, func(o span, base uint32) int { return cmp.Compare(o.base, base) })
	if at < len(sp.bases) && sn.base+sn.n == sp.bases[at].base {
		sn.n += sp.bases[at].n
		sp.bases = slices.Delete(sp.bases, at, at+1)
	}
	if at > 0 && sp.bases[at-1].base+sp.bases[at-1].n == sn.base {
		at--
		sn = span{sp.bases[at].base, sp.bases[at].n + sn.n}
		sp.bases = slices.Delete(sp.bases, at, at+1)
	}
	if sn.base+sn.n == sp.nextBase {
		sp.nextBase = sn.base
		return
	}
	sp.bases = slices.Insert(sp.bases, at, sn)
}

func (sp *Space) takeBase(n uint32) uint32 {
	for i, sn := range sp.bases {
		if sn.n >= n {
			if sp.bases[i] = (span{sn.base + n, sn.n - n}); sn.n == n {
				sp.bases = slices.Delete(sp.bases, i, i+1)
			}
			return sn.base
		}
	}
	base := sp.nextBase
	sp.nextBase += n
	return base
}

// byPolicyID returns the slot that a number of the policy stands for.
func (sp *Space) byPolicyID(id uint32) (s *Slab, slot uint32) {
	at, found := slices.BinarySearchFunc(sp.byBase, id, compareBase)
	if !found {
		at--
	}
	s = sp.byBase[at]
	return s, id - s.base
}

// remove takes a slab out of use. The slab has left its class.
func (sp *Space) remove(s *Slab) { delete(sp.slabs, s) }

// Release gives back the bytes of a file that was deleted.
func (sp *Space) Release(bytes int64) {
	sp.fileBytes -= bytes
	sp.fullAt = time.Time{} // there is room again
}

// Over returns by how much the files exceed the capacity.
func (sp *Space) Over() int64 { return max(sp.fileBytes-sp.capacity, 0) }

// All returns the slabs in use, in no order.
func (sp *Space) All() iter.Seq[*Slab] { return maps.Keys(sp.slabs) }

// ByNumber returns the slabs in use in the order of their numbers.
func (sp *Space) ByNumber() []*Slab {
	return slices.SortedFunc(sp.All(), func(a, b *Slab) int { return cmp.Compare(a.Header.Number, b.Header.Number) })
}

// enter counts a slot of s that now holds a block.
func (sp *Space) enter(s *Slab) {
	s.live++
	sp.blocks++
	sp.usedBytes += s.Header.SlotBytes
}

// leave is the inverse of enter.
func (sp *Space) leave(s *Slab) {
	s.live--
	sp.blocks--
	sp.usedBytes -= s.Header.SlotBytes
}

// quarantine counts a slot that is not used any more.
func (sp *Space) quarantine() { sp.quarantined++ }

// Borrow returns a class for larger blocks. A block of size bytes should take one of its slots:
// they are free and not needed there, which is better than to evict. It returns nil if there is
// none.
func (sp *Space) Borrow(size int64) *Class {
	need := max(format.AlignUp(size), format.PageBytes)
	var best *Class
	for _, c := range sp.classes {
		if c.slotBytes >= need && c.slotBytes <= 2*need && c.nfree > c.Reserve() && (best == nil || c.slotBytes < best.slotBytes) {
			best = c
		}
	}
	return best
}

// TakeLow returns the classes that have run low, once each.
func (sp *Space) TakeLow() (low []*Class) {
	for _, c := range sp.classes {
		if c.low {
			c.low = false
			low = append(low, c)
		}
	}
	return low
}

// Missing returns how many slots to evict for the reserve of a class. It is 0 if there is room for
// another slab, or if one of another class can be had.
func (sp *Space) Missing(c *Class) int {
	missing := max(c.Reserve()-c.nfree, 0)
	if missing == 0 {
		return 0
	}
	if _, ok := sp.next(c.slotBytes); ok || sp.Spare(c) != nil {
		return 0
	}
	return missing
}

// Spare returns the slab of another class that class c can have without an eviction: its blocks fit
// into the free slots of the other slabs of that class. Of several it is the one with the least bytes to
// move, so one without blocks if there is any. It is nil if there is none.
func (sp *Space) Spare(c *Class) (spare *Slab) {
	least := int64(math.MaxInt64)
	for _, o := range sp.classes {
		if o == c {
			continue
		}
		for _, s := range o.slabs {
			settled := s.live+s.nfree == int(s.Usable) // no slot is being stored, or freed
			bytes := int64(s.live) * o.slotBytes
			if !s.retired && settled && s.live <= o.nfree-s.nfree && bytes < least {
				spare, least = s, bytes
			}
		}
	}
	return spare
}

// MaxWaste returns how many bytes may have to be evicted before class c gets a slot: each of the
// other classes can have almost a slab of free slots.
func (sp *Space) MaxWaste(c *Class) int64 {
	h := sp.Shape(c.slotBytes, sp.slabBytes)
	waste := 2 * h.WantBytes()
	for _, o := range sp.classes {
		waste += 2 * max(sp.slabBytes, o.slotBytes)
	}
	return waste
}

// Freed returns how many slots became free so far.
func (sp *Space) Freed() uint64 { return sp.freed }

// Ordered returns how many blocks are in the order of eviction.
func (sp *Space) Ordered() int { return sp.pol.Len() }

// Usage is what a space holds.
type Usage struct {
	UsedBytes   int64 // of slots that hold blocks
	FileBytes   int64 // of all slab files
	Blocks      int64
	Slabs       int          // in use
	SetAside    int          // slabs
	Quarantined int64        // slots
	FullReason  string       // why there was no new slab the last time; empty if there was
	Classes     []ClassUsage // by size
}

// ClassUsage is what a class holds. Slots that are free, or about to be, are not used.
type ClassUsage struct {
	SlotBytes   int64
	Slots, Used int
}

// Usage returns what the space holds. Like all of Space it needs the lock of its Map.
func (sp *Space) Usage() Usage {
	u := Usage{
		UsedBytes: sp.usedBytes, FileBytes: sp.fileBytes, Blocks: sp.blocks, Slabs: len(sp.slabs),
		SetAside: len(sp.aside), Quarantined: sp.quarantined, FullReason: sp.fullReason,
	}
	for _, c := range sp.classes {
		u.Classes = append(u.Classes, ClassUsage{SlotBytes: c.slotBytes, Slots: c.total, Used: c.total - c.nfree})
	}
	slices.SortFunc(u.Classes, func(a, b ClassUsage) int { return cmp.Compare(a.SlotBytes, b.SlotBytes) })
	return u
}

// SlotBytesFor returns the slot size of the class for a block of size bytes.
func (sp *Space) SlotBytesFor(size int64) int64 {
	need := max(format.AlignUp(size), format.PageBytes)
	exact := 0
	for _, c := range sp.classes {
		if len(c.slabs) > 0 {
			exact++
		}
	}
	shift := wasteShift
	if exact >= exactClasses {
		shift = manyWasteShift
	}
	best := int64(0)
	for _, c := range sp.classes {
		if c.slotBytes >= need && c.slotBytes <= need+need>>shift && (best == 0 || c.slotBytes < best) {
			best = c.slotBytes
		}
	}
	switch {
	case best != 0:
		return best
	case exact >= exactClasses:
		return roundToEighth(need)
	}
	return need
}

// roundToEighth rounds n up to an eighth of the power of two below it. n is a multiple of a page.
func roundToEighth(n int64) int64 {
	step := max(int64(1)<<(bits.Len64(uint64(n))-1)>>manyWasteShift, format.PageBytes)
	return (n + step - 1) / step * step
}

// ClassOf returns the class of a slot size, and makes it if there is none. Classes without slabs
// make way.
func (sp *Space) ClassOf(slotBytes int64) *Class {
	for _, c := range sp.classes {
		if c.slotBytes == slotBytes {
			return c
		}
	}
	sp.classes = slices.DeleteFunc(sp.classes, func(c *Class) bool { return len(c.slabs) == 0 && !c.low })
	c := &Class{slotBytes: slotBytes}
	sp.classes = append(sp.classes, c)
	return c
}
