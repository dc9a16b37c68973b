package disk

import (
	"errors"
	"syscall"
	"testing"
	"time"
)

// newSlab takes a slab for slots of slotBytes into use, or fails the test if there is no room.
func newSlab(t *testing.T, sp *space, slotBytes int64) *slab {
	t.Helper()
	h, ok := sp.reserve(slotBytes)
	if !ok {
		t.Fatalf("no room for slots of %d bytes: %d of %d in use", slotBytes, sp.fileBytes, sp.capacity)
	}
	s := &slab{hdr: h, usable: h.slots, size: h.wantBytes()}
	sp.grown()
	sp.add(s)
	return s
}

// TestSpaceCapacity shows what counts towards the capacity, and that a device which was full is
// not asked again for a while.
func TestSpaceCapacity(t *testing.T) {
	sp := newSpace(uuid{}, 30*pageBytes, 9*pageBytes, "lru")
	sp.setAside(7, 3*pageBytes)
	first := newSlab(t, sp, pageBytes) // 4 slots in 9 pages
	second := newSlab(t, sp, 2*pageBytes)
	if first.hdr.number != 8 || second.hdr.number != 9 || first.hdr.slots != 4 || first.hdr.epoch == second.hdr.epoch {
		t.Errorf("got %+v and %+v", first.hdr, second.hdr)
	}
	h, ok := sp.reserve(pageBytes)
	if _, more := sp.reserve(pageBytes); !ok || more {
		t.Errorf("a third slab of 9 pages in 30: %v, a fourth: %v", ok, more)
	}
	before := sp.fileBytes
	sp.full(h.wantBytes(), syscall.ENOSPC)
	if sp.fileBytes != before-h.wantBytes() || sp.mayGrow(1) || sp.fullReason != "device full at 77824 bytes" {
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
	if sp.over() != 0 || sp.fileBytes != before-h.wantBytes() || len(sp.byNumber()) != 1 {
		t.Errorf("%d bytes while the file is there, %d slabs", sp.fileBytes, len(sp.byNumber()))
	}
	sp.release(first.size)
	sp.capacity = pageBytes
	if got := sp.over(); got != second.size+2*pageBytes {
		t.Errorf("%d bytes too many, want %d", got, second.size+2*pageBytes)
	}
}

// TestSpaceNumbers shows that numbers are not used twice, also once the highest was seen.
func TestSpaceNumbers(t *testing.T) {
	sp := newSpace(uuid{}, 1<<30, 9*pageBytes, "lru")
	sp.setAside(1, 0)
	sp.setAside(maxSlabNumber, 0)
	for _, want := range []uint32{0, 2, 3} {
		if s := newSlab(t, sp, pageBytes); s.hdr.number != want {
			t.Errorf("got number %d, want %d", s.hdr.number, want)
		}
	}
}

// TestSpaceOthers shows which slots a store takes from other classes: free ones of up to twice
// its size, or the slab that was used longest ago, of those that may be emptied.
func TestSpaceOthers(t *testing.T) {
	sp := newSpace(uuid{}, 1<<30, 100*pageBytes, "lru")
	large := newSlab(t, sp, 3*pageBytes)
	old, young := newSlab(t, sp, pageBytes), newSlab(t, sp, pageBytes)
	if c := sp.borrow(2 * pageBytes); c != large.class {
		t.Errorf("2 pages go into %+v, want slots of 3", c)
	}
	if c := sp.borrow(pageBytes + 1); c != large.class {
		t.Errorf("a page and a byte goes into %+v, want slots of 3 pages", c)
	}
	if c := sp.borrow(4 * pageBytes); c != nil {
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
	if sp.blocks != int64(young.usable) || sp.usedBytes != sp.blocks*pageBytes {
		t.Errorf("%d blocks in %d bytes, want %d", sp.blocks, sp.usedBytes, young.usable)
	}
}
