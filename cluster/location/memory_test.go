package location

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/sets"
)

// liveSlots is how many nodes hold the entries of a filled index.
const liveSlots = 100

// benchEntry returns the i-th of the entries of a filled index.
func benchEntry(i int) (Slot, Entry) {
	return Slot(i % liveSlots), Entry{
		Hash: uint64(i) * 0x9e3779b97f4a7c15, Seq: uint64(time.Hour) + uint64(i), Size: 4 << 20, Mode: 0o100644,
		UID: 1000, GID: 1000, Memory: i%2 == 0,
	}
}

// filled returns an index with entries up to n.
func filled(n int) *Index {
	x := New(Options{})
	for slot := range Slot(liveSlots) {
		x.SetLive(slot, true)
	}
	fill(x, 0, n)
	return x
}

func fill(x *Index, from, to int) {
	for i := from; i < to; i++ {
		x.Put(benchEntry(i))
	}
}

// mostBytes is what an entry may cost, all included.
const mostBytes = 32

// TestMemory fills an index and removes most of it (90 % of a million), by deleting and by dropping
// holders. At every size from 100,000 on, not only when it is full, an entry costs at most 32
// bytes, by our count and by the heap's.
func TestMemory(t *testing.T) {
	least, most := 100_000, 1_000_000
	if harness.RaceEnabled { // makes everything several times slower
		most /= 5
	}
	base := harness.HeapBytes()
	x := New(Options{})
	worst := map[string]float64{}
	check := func(what string, n int) {
		t.Helper()
		st := x.Stats()
		if st.Entries != int64(n) {
			t.Fatalf("%s: %d entries, want %d", what, st.Entries, n)
		}
		each := float64(st.Bytes) / float64(n)
		worst[what] = max(worst[what], each)
		if n >= least && each > mostBytes {
			t.Errorf("%s: %d entries take %.1f bytes each", what, n, each)
		}
	}
	checkHeap := func(what string, n int) {
		t.Helper()
		heap := harness.HeapBytes() - base
		t.Logf("%s: %d entries, %.2f bytes each by the heap, %.2f by Stats", what, n, float64(heap)/float64(n), float64(x.Stats().Bytes)/float64(n))
		if heap > int64(n)*mostBytes {
			t.Errorf("%s: %d entries take %.1f bytes each of the heap", what, n, float64(heap)/float64(n))
		}
		runtime.KeepAlive(x)
	}
	fill(x, 0, least)
	for n := least; n < most; {
		check("growing", n)
		if n == least || n == 150_000 {
			checkHeap("growing", n)
		}
		step := 1000
		fill(x, n, n+step)
		n += step
	}
	check("growing", most)
	checkHeap("grown", most)
	for n := most; n > least; {
		for range 1000 {
			n--
			slot, e := benchEntry(n)
			x.Delete(slot, e.Hash)
		}
		check("deleting", n)
	}
	checkHeap("most deleted", least)

	fill(x, least, most)
	checkHeap("filled again", most)
	for slot := range Slot(liveSlots * (most - least) / most) {
		x.Drop(slot)
	}
	check("dropped", least)
	checkHeap("most dropped", least)
	for slot := range Slot(liveSlots) {
		x.Drop(slot)
	}
	if st := x.Stats(); st.Entries != 0 || st.Bytes > 192<<10 {
		t.Errorf("empty: %+v", st)
	}
	t.Logf("the most at any size: %v", worst)
}

// TestNoAllocation looks up and puts without making garbage.
func TestNoAllocation(t *testing.T) {
	const n = 100_000
	x := filled(n)
	buf := make([]Holder, 0, 4)
	i := 0
	if got := testing.AllocsPerRun(1000, func() {
		slot, e := benchEntry(i)
		_, absent := benchEntry(i + n)
		if buf = x.Lookup(e.Hash, buf[:0]); len(buf) != 1 || buf[0] != (Holder{slot, e}) {
			t.Fatalf("%v, want %v at %d", buf, e, slot)
		}
		if buf = x.Lookup(absent.Hash, buf[:0]); len(buf) != 0 {
			t.Fatalf("%v, want none", buf)
		}
		x.Put(slot, e)
		i++
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

func TestMain(m *testing.M) {
	sets.Select()
	os.Exit(m.Run())
}
