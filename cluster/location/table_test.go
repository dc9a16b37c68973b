package location

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

// checkTable checks the invariants of t.
func checkTable(tb testing.TB, t *table) {
	tb.Helper()
	used := uint32(0)
	for p := range t.places {
		e := t.at(p)
		if e.empty() {
			if *e != (packed{}) {
				tb.Fatalf("place %d: empty but %+v", p, *e)
			}
			continue
		}
		used++
		for q := t.home(e.hash); q != p; q = t.wrap(q + 1) {
			if t.at(q).empty() {
				tb.Fatalf("place %d: home is %d, but %d is empty", p, t.home(e.hash), q)
			}
		}
		if q, found := t.find(e.hash, e.slot()); !found || q != p {
			tb.Fatalf("place %d of %d: find says %d, %v", p, t.places, q, found)
		}
	}
	if used != t.used || uint64(used) >= max(t.places, 1) {
		tb.Fatalf("%d entries in %d places, counted %d", used, t.places, t.used)
	}
}

// contents returns the entries of t in the order of a look-up by hash and slot.
func contents(t *table) []packed {
	var all []packed
	for _, b := range t.blocks {
		for _, e := range b {
			if !e.empty() {
				all = append(all, e)
			}
		}
	}
	slices.SortFunc(all, comparePacked)
	return all
}

func comparePacked(a, b packed) int {
	return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.slot(), b.slot()))
}

// TestTable does random work on a table whose hashes crowd at its start, at its end, and in the
// middle, with many holders each, and compares with a sorted list.
func TestTable(t *testing.T) {
	for range 8 {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		testTable(t, rand.New(rand.NewPCG(seed, 1)))
	}
}

func testTable(t *testing.T, r *rand.Rand) {
	var tab table
	var p pool
	var want []packed
	grow := func(places uint64, keep func(e *packed) bool) {
		old := tab
		tab = old.rebuilt(&p, places, keep)
		p.give(old)
	}
	crowds := []uint64{0, 1, 1 << 40, 1 << 54, 1<<55 + 7, 1<<56 - 2, 1<<56 - 1}
	slots := 1 + r.IntN(700)
	for step := range 6000 {
		e := packed{hash: crowds[r.IntN(len(crowds))], seq: r.Uint64()}
		if r.IntN(3) == 0 {
			e.hash = r.Uint64N(1 << 56)
		}
		e.rest = packRest(1, Slot(r.IntN(slots)), 1, false)
		i, is := slices.BinarySearchFunc(want, e, comparePacked)
		place, found := tab.find(e.hash, e.slot())
		if found != is {
			t.Fatalf("step %d: found %v, want %v", step, found, is)
		}
		switch {
		case r.IntN(3) == 0 && is:
			tab.remove(place)
			want = slices.Delete(want, i, i+1)
			if tab.loose() {
				grow(tab.smaller(), nil)
			}
		case is:
			*tab.at(place) = e
			want[i] = e
		case r.IntN(2000) == 0:
			gone := func(e packed) bool { return e.slot()%3 == 0 }
			want = slices.DeleteFunc(want, gone)
			grow(placesFor(len(want)), func(e *packed) bool { return !gone(*e) })
		default:
			if tab.full() {
				grow(tab.larger(), nil)
				place, _ = tab.find(e.hash, e.slot())
			}
			tab.insert(place, e)
			want = slices.Insert(want, i, e)
		}
		if step%500 == 0 {
			checkTable(t, &tab)
			if !slices.Equal(contents(&tab), want) {
				t.Fatalf("step %d: contents differ", step)
			}
		}
	}
	checkTable(t, &tab)
	if !slices.Equal(contents(&tab), want) {
		t.Fatal("contents differ")
	}
	grow(0, func(*packed) bool { return false })
	if tab.used != 0 || tab.blocks != nil {
		t.Fatalf("%d entries are left", tab.used)
	}
}
