package slotmap

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/disk/format"
)

// newSlab takes a slab for slots of slotBytes into use, or fails the test if there is no room.
func newSlab(t *testing.T, sp *Space, slotBytes int64) *Slab {
	t.Helper()
	h, ok := sp.Reserve(slotBytes)
	if !ok {
		t.Fatalf("no room for slots of %d bytes: %d of %d in use", slotBytes, sp.fileBytes, sp.capacity)
	}
	s := &Slab{Space: sp, Header: h, Usable: h.Slots, Size: h.WantBytes()}
	sp.Grown()
	sp.Add(s)
	return s
}

// TestSpaceCapacity shows what counts towards the capacity, and that a device which was full is
// not asked again for a while.
func TestSpaceCapacity(t *testing.T) {
	sp := NewSpace(SpaceOptions{Capacity: 30 * format.PageBytes, SlabBytes: 9 * format.PageBytes, Policy: "lru"})
	sp.SetAside(7, 3*format.PageBytes)
	first := newSlab(t, sp, format.PageBytes) // 4 slots in 9 pages
	second := newSlab(t, sp, 2*format.PageBytes)
	if first.Header.Number != 8 || second.Header.Number != 9 || first.Header.Slots != 4 || first.Header.Epoch == second.Header.Epoch {
		t.Errorf("got %+v and %+v", first.Header, second.Header)
	}
	h, ok := sp.Reserve(format.PageBytes)
	if _, more := sp.Reserve(format.PageBytes); !ok || more {
		t.Errorf("a third slab of 9 pages in 30: %v, a fourth: %v", ok, more)
	}
	before := sp.fileBytes
	sp.Full(h.WantBytes(), "")
	const rest = ": the SSD tier goes on with 76.0 KiB of the 120.0 KiB that its size allows. Free room there, or lower its size"
	if sp.fileBytes != before-h.WantBytes() || !sp.isFull() || sp.fullReason != "its file system is full"+rest {
		t.Errorf("full: %d bytes, %q, full: %v", sp.fileBytes, sp.fullReason, sp.isFull())
	}
	sp.fullAt = time.Now().Add(-2 * fullRetry)
	if _, ok := sp.next(format.PageBytes); !ok {
		t.Error("may not grow after a while")
	}
	if sp.Full(0, "broken"); sp.fullReason != "broken"+rest {
		t.Errorf("got %q", sp.fullReason)
	}
	if sp.Grown(); sp.fullReason != "" || sp.isFull() {
		t.Errorf("grown, and yet %q", sp.fullReason)
	}
	sp.remove(first)
	if sp.Over() != 0 || sp.fileBytes != before-h.WantBytes() || len(sp.ByNumber()) != 1 {
		t.Errorf("%d bytes while the file is there, %d slabs", sp.fileBytes, len(sp.ByNumber()))
	}
	sp.Release(first.Size)
	sp.capacity = format.PageBytes
	if got := sp.Over(); got != second.Size+2*format.PageBytes {
		t.Errorf("%d bytes too many, want %d", got, second.Size+2*format.PageBytes)
	}
}

// TestSpaceNumbers shows that numbers are not used twice, also once the highest was seen.
func TestSpaceNumbers(t *testing.T) {
	sp := NewSpace(SpaceOptions{Capacity: 1 << 30, SlabBytes: 9 * format.PageBytes, Policy: "lru"})
	sp.SetAside(1, 0)
	sp.SetAside(format.MaxSlabNumber, 0)
	for _, want := range []uint32{0, 2, 3} {
		if s := newSlab(t, sp, format.PageBytes); s.Header.Number != want {
			t.Errorf("got number %d, want %d", s.Header.Number, want)
		}
	}
}

// TestSpaceLast shows that the last slab is as small as the rest of the capacity, but not tiny.
func TestSpaceLast(t *testing.T) {
	sp := NewSpace(SpaceOptions{Capacity: 28 * format.PageBytes, SlabBytes: 9 * format.PageBytes, Policy: "lru"})
	slots := uint32(0)
	for range 3 {
		slots += newSlab(t, sp, format.PageBytes).Header.Slots
	}
	if h, ok := sp.next(format.PageBytes); ok || slots != 12 { // one page is left
		t.Errorf("%d slots; another slab: %+v", slots, h)
	}
	sp.capacity += 4 * format.PageBytes
	if s := newSlab(t, sp, format.PageBytes); s.Header.Slots != 2 || sp.fileBytes != 32*format.PageBytes {
		t.Errorf("the last slab has %d slots, all have %d bytes", s.Header.Slots, sp.fileBytes)
	}
}

// fill gives n slots of a slab to blocks.
func fill(sp *Space, s *Slab, n uint32) {
	for slot := range n {
		s.take(slot)
		sp.enter(s)
	}
}

// TestSpaceOthers shows which room a store takes from other classes: free slots of up to twice its
// size, an empty slab, or the slab with the least to move among those whose blocks fit elsewhere.
func TestSpaceOthers(t *testing.T) {
	sp := NewSpace(SpaceOptions{Capacity: 1 << 30, SlabBytes: 100 * format.PageBytes, Policy: "lru"})
	large := newSlab(t, sp, 3*format.PageBytes)
	if c := sp.Borrow(2 * format.PageBytes); c != large.class {
		t.Errorf("2 pages go into %+v, want slots of 3", c)
	}
	if c := sp.Borrow(format.PageBytes + 1); c != large.class {
		t.Errorf("a page and a byte goes into %+v, want slots of 3 pages", c)
	}
	if c := sp.Borrow(4 * format.PageBytes); c != nil {
		t.Errorf("4 pages go into slots of %d bytes", c.slotBytes)
	}
	first, second := newSlab(t, sp, format.PageBytes), newSlab(t, sp, format.PageBytes) // of 49 slots
	if got := sp.Spare(large.class); got != first && got != second {
		t.Errorf("got slab %+v, want an empty one", got)
	}
	fill(sp, first, 20)
	fill(sp, second, 28)
	if got := sp.Spare(large.class); got != first {
		t.Errorf("got slab %+v, want the one with less to move", got)
	}
	first.take(40) // being stored
	if got := sp.Spare(large.class); got != second {
		t.Errorf("got slab %+v, want the one without a store under way", got)
	}
	for slot := uint32(28); slot < 49; slot++ {
		second.take(slot)
		sp.enter(second)
	}
	if got := sp.Spare(large.class); got != nil {
		t.Errorf("got slab %+v, whose blocks fit nowhere", got)
	}
	if got := sp.Spare(first.class); got != large {
		t.Errorf("got slab %+v, want the one of another class", got)
	}
	if sp.blocks != 20+49 || sp.usedBytes != sp.blocks*format.PageBytes {
		t.Errorf("%d blocks in %d bytes", sp.blocks, sp.usedBytes)
	}
}

// TestSpaceRecut shows that a slab which goes to another class has the size of a new one if there is
// room, keeps to its own if there is none, and is refused if no slot fits.
func TestSpaceRecut(t *testing.T) {
	sp := NewSpace(SpaceOptions{Capacity: 30 * format.PageBytes, SlabBytes: 9 * format.PageBytes, Policy: "lru"})
	s := newSlab(t, sp, 3*format.PageBytes) // 2 slots, 9 pages
	other := newSlab(t, sp, 3*format.PageBytes)
	s.Retire()
	if !s.DropEmpty() {
		t.Fatal("not empty")
	}
	pages := func() int64 { return sp.fileBytes / format.PageBytes }
	epoch := s.Header.Epoch
	old, ok := sp.Recut(s, 20*format.PageBytes)
	if ok || old != 9*format.PageBytes || pages() != 18 {
		t.Errorf("a slot of 20 pages in 21: %v, %d pages in all", ok, pages())
	}
	if _, ok = sp.Recut(s, 5*format.PageBytes); !ok || s.Header.Slots != 1 || s.Size != 9*format.PageBytes || pages() != 18 || s.Header.Epoch == epoch {
		t.Errorf("slots of 5 pages: %v, %+v, %d pages in all", ok, s.Header, pages())
	}
	if sp.Trim(s); s.Size != 7*format.PageBytes || pages() != 16 {
		t.Errorf("after Trim: %d bytes, %d pages in all", s.Size, pages())
	}
	if old, ok = sp.Recut(s, 10*format.PageBytes); !ok || s.Size != 12*format.PageBytes || pages() != 21 {
		t.Errorf("slots of 10 pages: %v, %+v, %d pages in all", ok, s.Header, pages())
	}
	if sp.Uncut(s, old); s.Size != 7*format.PageBytes || pages() != 16 || !sp.isFull() {
		t.Errorf("%d bytes, %d pages in all", s.Size, pages())
	}
	if _, ok = sp.Recut(s, format.PageBytes); !ok || s.Header.Slots != 3 || s.Size != 7*format.PageBytes || pages() != 16 {
		t.Errorf("slots of a page in a full device: %v, %+v, %d pages in all", ok, s.Header, pages())
	}
	if sp.Add(s); s.class.slotBytes != format.PageBytes || other.class.nfree != 2 {
		t.Errorf("%d free slots in the other class", other.class.nfree)
	}
}

// TestSpaceBases shows that policy numbers do not grow while slabs of different sizes replace each
// other, and that each slab has numbers of its own.
func TestSpaceBases(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	sp := NewSpace(SpaceOptions{Capacity: 1 << 30, SlabBytes: 100 * format.PageBytes, Policy: "lru"})
	var slabs []*Slab
	for i := range 3000 {
		if len(slabs) == 40 {
			j := rng.IntN(40)
			slabs[j].Retire()
			slabs[j].DropEmpty()
			sp.remove(slabs[j])
			sp.Release(slabs[j].Size)
			slabs = slices.Delete(slabs, j, j+1)
		}
		slabs = append(slabs, newSlab(t, sp, int64(1+i/40%2*9)*format.PageBytes)) // 49 slots, or 9
	}
	if limit := uint32(2 * 40 * 49); sp.nextBase > limit {
		t.Errorf("policy numbers up to %d, want at most %d", sp.nextBase, limit)
	}
	seen := make(map[uint32]bool)
	for _, s := range slabs {
		for slot := range s.Header.Slots {
			id := s.policyID(slot)
			if got, at := sp.byPolicyID(id); seen[id] || got != s || at != slot {
				t.Fatalf("number %d: twice %v, leads to slot %d, want %d", id, seen[id], at, slot)
			}
			seen[id] = true
		}
	}
}
