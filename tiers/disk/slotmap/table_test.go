package slotmap

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/driver"
)

// TestSlotTable drives the table of slots against a map, through several rounds of
// linear hashing, and checks at the end that all memory of keys and owners was
// given back.
func TestSlotTable(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	table := newSlotTable()
	want := map[string]SlotID{}
	attrs := func(n int) *driver.Attrs {
		return &driver.Attrs{Seq: uint64(n) + 1, Mode: uint32(n % 5), Mtime: int64(n), Dirs: make([]driver.DirAttrs, n%3)}
	}
	drop := func(path string) {
		table.unlink(want[path])
		table.release(want[path])
		delete(want, path)
	}
	var paths []string
	for n := range 15_000 {
		path := fmt.Sprintf("g%d/%0*d", n%7, 1+rng.IntN(40)*rng.IntN(40), n)
		id := table.alloc([]byte(path))
		table.setAttrs(table.at(id), attrs(n))
		table.link(id)
		want[path] = id
		paths = append(paths, path)
		if n%3 == 0 {
			at := rng.IntN(len(paths))
			drop(paths[at])
			paths = slices.Delete(paths, at, at+1)
		}
	}
	for i, path := range paths {
		id := table.find([]byte(path))
		if id != want[path] {
			t.Fatalf("find %s: got %d, want %d", path, id, want[path])
		}
		if got := format.ParsePath(table.path(table.at(id))).Path(); got != path {
			t.Fatalf("path of %d: got %s, want %s", id, got, path)
		}
		a := table.attrs(table.at(id))
		if n := int(a.Seq) - 1; a.Mode != uint32(n%5) || len(a.Dirs) != n%3 || a.Mtime != int64(n) {
			t.Fatalf("attributes of %s: %+v", path, a)
		}
		if i%2 == 0 && table.find([]byte(path+"x")) != 0 {
			t.Fatalf("found %sx, which was never there", path)
		}
	}
	if table.linked != uint32(len(paths)) {
		t.Errorf("linked: got %d, want %d", table.linked, len(paths))
	}
	for _, path := range paths {
		drop(path)
	}
	if n := len(table.owners.byText); n != 0 {
		t.Errorf("%d owners left, want none", n)
	}
	chunks := len(table.keys.chunks)
	for _, path := range paths {
		table.alloc([]byte(path))
	}
	if got := len(table.keys.chunks); got > chunks {
		t.Errorf("chunks of keys: grew from %d to %d although all keys had been dropped", chunks, got)
	}
}

// TestSizeClasses shows that a block wastes at most a 32nd of its slot, and an eighth once
// there are many classes, whatever sizes come, that the first of a kind fits exactly, and that random sizes do not
// make a class each.
func TestSizeClasses(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	sp := NewSpace(SpaceOptions{Capacity: 1 << 40, SlabBytes: 1 << 30, Policy: "lru"})
	classes := map[int64]bool{}
	for i := range 5000 {
		size := int64(1) << rng.IntN(30)
		size += rng.Int64N(size)
		need := max(format.AlignUp(size), format.PageBytes)
		slot := sp.SlotBytesFor(size)
		most := need / 32
		if len(classes) >= exactClasses {
			most = max(need/8, format.PageBytes)
		}
		if slot < need || slot > need+most || slot%format.PageBytes != 0 {
			t.Fatalf("block of %d bytes: slot of %d", size, slot)
		}
		if i == 0 && slot != need {
			t.Errorf("first block of %d bytes: slot of %d, want %d", size, slot, need)
		}
		if !classes[slot] {
			classes[slot] = true
			sp.ClassOf(slot).slabs = []*Slab{{}}
		}
	}
	if len(classes) > 16*9+exactClasses {
		t.Errorf("%d classes", len(classes))
	}
}

// TestTakeRun shows that slots are given out in runs, that a freed slot is found
// again, and that policy numbers lead back to slots across slabs.
func TestTakeRun(t *testing.T) {
	sp := NewSpace(SpaceOptions{Capacity: 1 << 30, SlabBytes: 1 << 20, Policy: "lru"})
	c := sp.ClassOf(format.PageBytes)
	var slabs []*Slab
	for range 3 {
		s := &Slab{Space: sp, Header: format.SlabHeader{SlotBytes: format.PageBytes, Slots: 70}, Usable: 65}
		sp.Add(s)
		slabs = append(slabs, s)
	}
	taken := 0
	for {
		s, first, n := c.TakeRun(40)
		if n == 0 {
			break
		}
		taken += n
		for i := range uint32(n) {
			if got, slot := sp.byPolicyID(s.policyID(first + i)); got != s || slot != first+i {
				t.Fatalf("policy number of slot %d leads to slot %d", first+i, slot)
			}
		}
	}
	if taken != 3*65 || c.nfree != 0 {
		t.Errorf("took %d slots, %d left, want 195 and 0", taken, c.nfree)
	}
	slabs[1].give(33)
	if s, first, n := c.TakeRun(5); s != slabs[1] || first != 33 || n != 1 {
		t.Errorf("took %d from %d, want the slot given back", n, first)
	}
	c.retire(slabs[0])
	slabs[0].give(3)
	if _, _, n := c.TakeRun(1); n != 0 {
		t.Error("a retired slab gave out a slot")
	}
}
