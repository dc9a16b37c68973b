package ledger

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
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
	// maxThefts bounds how many slabs one store may try to steal, beyond those that it takes.
	maxThefts = 4
)

// Space accounts for the room of one device: its slabs and size classes, the bytes of their files
// against the capacity, and the numbers of the files. It does no I/O. It knows only the number of
// blocks.
//
// A slab comes and goes in these steps. The file is made or deleted between them:
//
//	Reserve -> AddSlab        a new slab; or Reserve -> Full if there is no file for it
//	Found -> AddSlab          a slab that was there at the start; SetAside if it is not used
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
	policy    string      // of new classes

	classes     []*Class
	slabs       map[*Slab]struct{} // in use
	aside       []uint32           // numbers of slabs that are set aside
	nextNumber  uint32
	fileBytes   int64 // of all slab files, those set aside included
	usedBytes   int64 // of slots that hold blocks
	blocks      int64
	headers     headerList
	quarantined int64     // slots
	fullAt      time.Time // when a slab could not be made; zero: the last one could
	fullReason  string
}

// SpaceOptions configures a space.
type SpaceOptions struct {
	Device    int         // index of the device, for the caller
	Down      func() bool // reports whether the device is down: slots are then free without their headers
	Wake      func()      // called when there is a header to write; must not block
	UUID      format.UUID // of the directory
	Capacity  int64       // of all slab files, bytes
	SlabBytes int64       // of new slabs
	Policy    string      // of new classes; see package policy
}

// NewSpace returns a space without slabs.
func NewSpace(o SpaceOptions) *Space {
	return &Space{
		Device: o.Device, down: o.Down, wake: o.Wake, uuid: o.UUID, capacity: o.Capacity, slabBytes: o.SlabBytes, policy: o.Policy,
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

// mayGrow reports whether another slab file of n bytes fits the capacity.
func (sp *Space) mayGrow(n int64) bool {
	return sp.fileBytes+n <= sp.capacity && (sp.fullAt.IsZero() || time.Since(sp.fullAt) > fullRetry)
}

// Reserve returns the header of a new slab for slots of slotBytes. It returns false if the device
// is full.
func (sp *Space) Reserve(slotBytes int64) (h format.SlabHeader, ok bool) {
	h = sp.Shape(slotBytes, sp.slabBytes)
	if !sp.mayGrow(h.WantBytes()) {
		return h, false
	}
	h.Number = sp.takeNumber()
	sp.fileBytes += h.WantBytes()
	return h, true
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
// while. An empty reason means that the device is full.
func (sp *Space) Full(bytes int64, reason string) {
	sp.fileBytes -= bytes
	sp.fullAt = time.Now()
	sp.fullReason = cmp.Or(reason, fmt.Sprintf("device full at %d bytes", sp.fileBytes))
}

// Grown records that a slab was made, so the device is no longer full.
func (sp *Space) Grown() { sp.fullAt = time.Time{} }

// Add takes a slab into use, with all its slots free.
func (sp *Space) Add(s *Slab) {
	sp.slabs[s] = struct{}{}
	sp.ClassOf(s.Header.SlotBytes).add(s)
}

// remove takes a slab out of use. The slab has left its class.
func (sp *Space) remove(s *Slab) { delete(sp.slabs, s) }

// Release gives back the bytes of a file that was deleted.
func (sp *Space) Release(bytes int64) { sp.fileBytes -= bytes }

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

// Thefts returns how many slabs a store in a slot of slotBytes may try.
func (sp *Space) Thefts(slotBytes int64) int {
	h := sp.Shape(slotBytes, sp.slabBytes)
	return maxThefts + int(2*h.WantBytes()/sp.slabBytes)
}

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
// another slab.
func (sp *Space) Missing(c *Class) int {
	if h := sp.Shape(c.slotBytes, sp.slabBytes); sp.mayGrow(h.WantBytes()) {
		return 0
	}
	return max(c.Reserve()-c.nfree, 0)
}

// coldest returns the slab that class c can best take from the others: one without blocks, else the
// least recently used one for which idle returns true. It is nil if there is none.
func (sp *Space) coldest(c *Class, idle func(*Slab) bool) *Slab {
	var slabs []*Slab
	for _, o := range sp.classes {
		if o == c {
			continue
		}
		for _, s := range o.slabs {
			if !s.retired && s.live+s.nfree == int(s.Usable) {
				slabs = append(slabs, s)
			}
		}
	}
	slices.SortFunc(slabs, func(a, b *Slab) int {
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

// Usage is what a space holds.
type Usage struct {
	UsedBytes   int64 // of slots that hold blocks
	FileBytes   int64 // of all slab files
	Blocks      int64
	Slabs       int          // in use
	SetAside    int          // slabs
	Quarantined int64        // slots
	FullReason  string       // why there was no new slab the last time; may be outdated
	Classes     []ClassUsage // by size
}

// ClassUsage is what a class holds. Slots that are free, or about to be, are not used.
type ClassUsage struct {
	SlotBytes   int64
	Slots, Used int
}

// Usage returns what the space holds.
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

// ClassOf returns the class of a slot size, and makes it if there is none. Classes without slabs
// make way.
func (sp *Space) ClassOf(slotBytes int64) *Class {
	for _, c := range sp.classes {
		if c.slotBytes == slotBytes {
			return c
		}
	}
	sp.classes = slices.DeleteFunc(sp.classes, func(c *Class) bool { return len(c.slabs) == 0 && !c.low })
	pol, err := policy.New(sp.policy, sp.capacity)
	if err != nil {
		panic("ledger: policy checked by Open: " + err.Error())
	}
	c := &Class{slotBytes: slotBytes, pol: pol}
	sp.classes = append(sp.classes, c)
	return c
}
