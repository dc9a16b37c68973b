package catalog

import (
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"
)

// checkTable checks the invariants of t and returns its keys in order.
func checkTable(tb testing.TB, t *table) (keys []uint64) {
	tb.Helper()
	for p := range t.places {
		e := t.at(p)
		if e.empty() {
			if *e != (packed{}) {
				tb.Fatalf("place %d: empty but %v", p, *e)
			}
			continue
		}
		for q := t.home(e.key()); q != p; q = t.wrap(q + 1) {
			if t.at(q).empty() {
				tb.Fatalf("place %d: home is %d, but %d is empty", p, t.home(e.key()), q)
			}
		}
		if q, found := t.find(e.key()); !found || q != p {
			tb.Fatalf("place %d of %d: find says %d, %v", p, t.places, q, found)
		}
		keys = append(keys, e.key())
	}
	if uint64(len(keys)) != t.used || t.used >= max(t.places, 1) {
		tb.Fatalf("%d records in %d places, counted %d", len(keys), t.places, t.used)
	}
	slices.Sort(keys)
	return keys
}

// TestTable does random work on a table whose keys crowd at its start, at its end and in the middle,
// and compares with a sorted list.
func TestTable(t *testing.T) {
	for range 4 {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		testTable(t, rand.New(rand.NewPCG(seed, 1)))
	}
}

func testTable(t *testing.T, r *rand.Rand) {
	var tab table
	var want []uint64
	for step := range 6000 {
		key := r.Uint64() >> hashShift
		switch r.IntN(4) {
		case 0: // the ends: after each other
			key = (uint64(r.IntN(500)) - 250) << hashShift >> hashShift
		case 1:
			key = 1<<50 + uint64(r.IntN(300))
		}
		key <<= hashShift
		i, is := slices.BinarySearch(want, key)
		place, found := tab.find(key)
		if found != is {
			t.Fatalf("step %d: found %v, want %v", step, found, is)
		}
		remove := r.IntN(5) < 2
		if step > 4000 {
			remove = r.IntN(5) > 0
		}
		switch {
		case remove && is:
			tab.remove(place)
			want = slices.Delete(want, i, i+1)
			if places := tab.fitting(); places != tab.places {
				tab = tab.rebuilt(places)
			}
		case !remove && !is:
			if tab.full() {
				tab = tab.rebuilt(tab.larger())
				place, _ = tab.find(key)
			}
			tab.insert(place, record{key: key, seq: 1}.packed())
			want = slices.Insert(want, i, key)
		}
		if step%500 == 0 || step == 5999 {
			if got := checkTable(t, &tab); !slices.Equal(got, want) {
				t.Fatalf("step %d: contents differ", step)
			}
		}
	}
}

// TestSplit compares the places of blocks with a division, at the limits too.
func TestSplit(t *testing.T) {
	for _, places := range []uint64{1, 100, 5000, 1 << 20, 1<<32 - 1<<20} {
		each := layout(places)
		tab := table{each: each, inverse: ^uint64(0)/each + 1}
		for range 1000 {
			for _, p := range []uint64{rand.Uint64N(places + each), places, places / each * each, max(places/each*each, 1) - 1} {
				if b, i := tab.split(p); b != p/each || i != p%each {
					t.Fatalf("%d by %d: got %d, %d", p, each, b, i)
				}
			}
		}
	}
	if n := unsafe.Sizeof(shard{}); n != 128 {
		t.Errorf("a shard has %d bytes", n)
	}
}

// TestRecord packs the extremes of all fields, and random ones.
func TestRecord(t *testing.T) {
	most := record{^uint64(1<<hashShift - 1), ^uint64(0), largeSize, mostClasses - 1, MaxPacks - 1, 1<<unitBits - 1}
	all := []record{most, {seq: 1}, {key: most.key, seq: 1}, {seq: 1, size: most.size}, {seq: 1, class: most.class}, {seq: 1, pack: most.pack}, {seq: 1, unit: most.unit}}
	for range 1000 {
		all = append(all, record{rand.Uint64() & most.key, rand.Uint64() | 1, rand.Uint32() & most.size, rand.Uint32() & most.class, rand.Uint32() & most.pack, rand.Uint32() & most.unit})
	}
	for _, r := range all {
		p := r.packed()
		if got := p.load(); got != r || p.key() != r.key || p.empty() || p.pack() != r.pack {
			t.Fatalf("got %+v, want %+v", got, r)
		}
	}
}
