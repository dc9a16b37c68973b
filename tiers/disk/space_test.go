package disk

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/disk/format"
)

// newSlab takes a slab for slots of SlotBytes into use, or fails the test if there is no room.
func newSlab(t *testing.T, sp *space, slotBytes int64) *slab {
	t.Helper()
	h, ok := sp.reserve(slotBytes)
	if !ok {
		t.Fatalf("no room for slots of %d bytes: %d of %d in use", slotBytes, sp.fileBytes, sp.capacity)
	}
	s := &slab{hdr: h, usable: h.Slots, size: h.WantBytes()}
	sp.grown()
	sp.add(s)
	return s
}

// TestSpaceCapacity shows what counts towards the capacity, and that a device which was full is
// not asked again for a while.
func TestSpaceCapacity(t *testing.T) {
	sp := newSpace(format.UUID{}, 30*format.PageBytes, 9*format.PageBytes, "lru")
	sp.setAside(7, 3*format.PageBytes)
	first := newSlab(t, sp, format.PageBytes) // 4 slots in 9 pages
	second := newSlab(t, sp, 2*format.PageBytes)
	if first.hdr.Number != 8 || second.hdr.Number != 9 || first.hdr.Slots != 4 || first.hdr.Epoch == second.hdr.Epoch {
		t.Errorf("got %+v and %+v", first.hdr, second.hdr)
	}
	h, ok := sp.reserve(format.PageBytes)
	if _, more := sp.reserve(format.PageBytes); !ok || more {
		t.Errorf("a third slab of 9 pages in 30: %v, a fourth: %v", ok, more)
	}
	before := sp.fileBytes
	sp.full(h.WantBytes(), syscall.ENOSPC)
	if sp.fileBytes != before-h.WantBytes() || sp.mayGrow(1) || sp.fullReason != "device full at 77824 bytes" {
		t.Errorf("full: %d bytes, %q, may grow: %v", sp.fileBytes, sp.fullReason, sp.mayGrow(1))
	}
	sp.fullAt = time.Now().Add(-2 * fullRetry)
	if !sp.mayGrow(1) {
		t.Error("may not grow after a while")
	}
	if sp.full(0, errors.New("broken")); sp.fullReason != "no new slab: broken" {
		t.Errorf("got %q", sp.fullReason)
	}
	sp.grown()
	sp.remove(first)
	if sp.over() != 0 || sp.fileBytes != before-h.WantBytes() || len(sp.byNumber()) != 1 {
		t.Errorf("%d bytes while the file is there, %d slabs", sp.fileBytes, len(sp.byNumber()))
	}
	sp.release(first.size)
	sp.capacity = format.PageBytes
	if got := sp.over(); got != second.size+2*format.PageBytes {
		t.Errorf("%d bytes too many, want %d", got, second.size+2*format.PageBytes)
	}
}

// TestSpaceNumbers shows that numbers are not used twice, also once the highest was seen.
func TestSpaceNumbers(t *testing.T) {
	sp := newSpace(format.UUID{}, 1<<30, 9*format.PageBytes, "lru")
	sp.setAside(1, 0)
	sp.setAside(format.MaxSlabNumber, 0)
	for _, want := range []uint32{0, 2, 3} {
		if s := newSlab(t, sp, format.PageBytes); s.hdr.Number != want {
			t.Errorf("got number %d, want %d", s.hdr.Number, want)
		}
	}
}

// TestSpaceOthers shows which slots a store takes from other classes: free ones of up to twice
// its size, or the slab that was used longest ago, of those that may be emptied.
func TestSpaceOthers(t *testing.T) {
	sp := newSpace(format.UUID{}, 1<<30, 100*format.PageBytes, "lru")
	large := newSlab(t, sp, 3*format.PageBytes)
	old, young := newSlab(t, sp, format.PageBytes), newSlab(t, sp, format.PageBytes)
	if c := sp.borrow(2 * format.PageBytes); c != large.class {
		t.Errorf("2 pages go into %+v, want slots of 3", c)
	}
	if c := sp.borrow(format.PageBytes + 1); c != large.class {
		t.Errorf("a page and a byte goes into %+v, want slots of 3 pages", c)
	}
	if c := sp.borrow(4 * format.PageBytes); c != nil {
		t.Errorf("4 pages go into slots of %d bytes", c.slotBytes)
	}
	for i, s := range []*slab{old, young} {
		s.used = uint32(i) - 1 // the clock goes round
		for slot := range s.usable {
			s.take(slot)
			sp.enter(s)
		}
	}
	idle := map[*slab]bool{old: true, young: true}
	for _, want := range []*slab{old, young, nil} {
		if got := sp.coldest(large.class, func(s *slab) bool { return idle[s] }); got != want {
			t.Errorf("got slab %+v, want %+v", got, want)
		}
		idle[want] = false
	}
	for slot := range old.usable {
		sp.leave(old)
		old.give(slot)
	}
	if got := sp.coldest(large.class, func(*slab) bool { return true }); got != old {
		t.Errorf("got slab %+v, want the empty one", got)
	}
	if got := sp.coldest(old.class, func(*slab) bool { return true }); got != large {
		t.Errorf("got slab %+v, want the one of another class", got)
	}
	if sp.blocks != int64(young.usable) || sp.usedBytes != sp.blocks*format.PageBytes {
		t.Errorf("%d blocks in %d bytes, want %d", sp.blocks, sp.usedBytes, young.usable)
	}
}
