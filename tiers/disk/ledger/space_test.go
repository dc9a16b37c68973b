package ledger

import (
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
	s := &Slab{Header: h, Usable: h.Slots, Size: h.WantBytes()}
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
	if sp.fileBytes != before-h.WantBytes() || sp.mayGrow(1) || sp.fullReason != "device full at 77824 bytes" {
		t.Errorf("full: %d bytes, %q, may grow: %v", sp.fileBytes, sp.fullReason, sp.mayGrow(1))
	}
	sp.fullAt = time.Now().Add(-2 * fullRetry)
	if !sp.mayGrow(1) {
		t.Error("may not grow after a while")
	}
	if sp.Full(0, "no new slab: broken"); sp.fullReason != "no new slab: broken" {
		t.Errorf("got %q", sp.fullReason)
	}
	sp.Grown()
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

// TestSpaceOthers shows which slots a store takes from other classes: free ones of up to twice
// its size, or the slab that was used longest ago, of those that may be emptied.
func TestSpaceOthers(t *testing.T) {
	sp := NewSpace(SpaceOptions{Capacity: 1 << 30, SlabBytes: 100 * format.PageBytes, Policy: "lru"})
	large := newSlab(t, sp, 3*format.PageBytes)
	old, young := newSlab(t, sp, format.PageBytes), newSlab(t, sp, format.PageBytes)
	if c := sp.Borrow(2 * format.PageBytes); c != large.class {
		t.Errorf("2 pages go into %+v, want slots of 3", c)
	}
	if c := sp.Borrow(format.PageBytes + 1); c != large.class {
		t.Errorf("a page and a byte goes into %+v, want slots of 3 pages", c)
	}
	if c := sp.Borrow(4 * format.PageBytes); c != nil {
		t.Errorf("4 pages go into slots of %d bytes", c.slotBytes)
	}
	for i, s := range []*Slab{old, young} {
		s.used = uint32(i) - 1 // the clock goes round
		for slot := range s.Usable {
			s.take(slot)
			sp.enter(s)
		}
	}
	idle := map[*Slab]bool{old: true, young: true}
	for _, want := range []*Slab{old, young, nil} {
		if got := sp.coldest(large.class, func(s *Slab) bool { return idle[s] }); got != want {
			t.Errorf("got slab %+v, want %+v", got, want)
		}
		idle[want] = false
	}
	for slot := range old.Usable {
		sp.leave(old)
		old.give(slot)
	}
	if got := sp.coldest(large.class, func(*Slab) bool { return true }); got != old {
		t.Errorf("got slab %+v, want the empty one", got)
	}
	if got := sp.coldest(old.class, func(*Slab) bool { return true }); got != large {
		t.Errorf("got slab %+v, want the one of another class", got)
	}
	if sp.blocks != int64(young.Usable) || sp.usedBytes != sp.blocks*format.PageBytes {
		t.Errorf("%d blocks in %d bytes, want %d", sp.blocks, sp.usedBytes, young.Usable)
	}
}
