package catalog

import (
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

const (
	mostBytes = 32 // a block, packs and all included
	perPack   = 64 // blocks in a pack: of 1 MiB each
	perDir    = 1000
)

// benchPath returns the path of the i-th block, and benchEntry its entry.
func benchPath(i int) string { return fmt.Sprintf("model/%06x/%016x", i/perDir, i) }

func benchKey(i int) block.Key {
	return block.Key{Group: "model", Hash: block.Hash(fmt.Sprintf("%06x/%016x", i/perDir, i))}
}

func benchEntry(i int) Entry {
	return Entry{Seq: 1<<60 + uint64(i), Size: 1 << 20, Mode: 0o644, UID: 1000, GID: 1000, Pack: uint32(i / perPack), Offset: int64(i%perPack) * (1<<20 + 128)}
}

var benchDirs = []driver.DirAttrs{{Mode: 0o755}, {Mode: 0o755}}

// fill puts blocks and their packs.
func fill(tb testing.TB, c *Catalog, from, to int) {
	tb.Helper()
	for i := from; i < to; i++ {
		if i%perPack == 0 {
			c.AddPack(Pack{Time: int64(i), Index: 64 << 20, Size: 65 << 20})
		}
		if !c.Put(benchPath(i), benchEntry(i), benchDirs) {
			tb.Fatalf("%d is refused", i)
		}
	}
}

// numbers returns the numbers from one up to another.
func numbers(from, to uint32) (all []uint32) {
	for ; from < to; from++ {
		all = append(all, from)
	}
	return all
}

// refs names packs by their numbers, those that exist.
func refs(c *Catalog, numbers ...uint32) (list []Ref) {
	for _, n := range numbers {
		if p, ok := c.Pack(n); ok {
			list = append(list, Ref{Number: n, Time: p.Time, Writer: p.Writer})
		}
	}
	return list
}

// TestMemory fills a catalog and removes most of it, block by block and by packs. At every size from
// 100,000 on, a block costs at most 32 bytes, by our count and by the heap's.
func TestMemory(t *testing.T) {
	least, most := 1600*perPack, 1_000_000/perPack*perPack
	if harness.RaceEnabled { // makes everything several times slower
		most = 150_000 / perPack * perPack
	}
	base := harness.HeapBytes()
	c := New(Options{})
	worst := map[string]float64{}
	check := func(what string, n int) {
		t.Helper()
		st := c.Stats()
		if st.Blocks != int64(n) {
			t.Fatalf("%s: %d blocks, want %d", what, st.Blocks, n)
		}
		each := float64(st.TableBytes+st.PackBytes+st.DirBytes) / float64(n)
		worst[what] = max(worst[what], each)
		if each > mostBytes {
			t.Errorf("%s: %d blocks take %.1f bytes each", what, n, each)
		}
	}
	checkHeap := func(what string, n int) {
		t.Helper()
		heap, st := harness.HeapBytes()-base, c.Stats()
		t.Logf("%s: %d blocks, %.2f bytes each by the heap; by Stats %.2f tables, %.2f packs, %.2f directories", what, n, float64(heap)/float64(n),
			float64(st.TableBytes)/float64(n), float64(st.PackBytes)/float64(n), float64(st.DirBytes)/float64(n))
		if heap > int64(n)*mostBytes {
			t.Errorf("%s: %d blocks take %.1f bytes each of the heap", what, n, float64(heap)/float64(n))
		}
		runtime.KeepAlive(c)
	}
	fill(t, c, 0, least)
	checkHeap("growing", least)
	for n := least; n < most; {
		step := min(1000, most-n)
		fill(t, c, n, n+step)
		n += step
		check("growing", n)
	}
	checkHeap("grown", most)
	for n := most; n > least; {
		for range min(1000, n-least) {
			n--
			if !c.Forget(benchPath(n), uint32(n/perPack)) {
				t.Fatalf("%d is not there", n)
			}
			if n%perPack == 0 {
				c.Drop(refs(c, uint32(n/perPack))...)
			}
		}
		check("deleting", n)
	}
	checkHeap("most deleted", least)
	fill(t, c, least, most)
	if n := c.Drop(refs(c, numbers(uint32(least/perPack), uint32(most/perPack))...)...); n != most-least {
		t.Fatalf("dropped %d blocks", n)
	}
	check("dropped", least)
	checkHeap("most dropped", least)
	c.Drop(refs(c, numbers(0, uint32(least/perPack))...)...)
	if st := c.Stats(); st.Blocks != 0 || st.Dirs != 0 || st.Packs != 0 || st.TableBytes != 0 || st.LiveBytes != 0 || st.PackedBytes != 0 {
		t.Errorf("empty: %+v", st)
	}
	t.Logf("the most at any size: %v", worst)
}

// TestNoAllocation gets and puts without making garbage.
func TestNoAllocation(t *testing.T) {
	const n = 10_000
	c := New(Options{})
	fill(t, c, 0, n)
	i := 0
	paths, keys := make([]string, 2*n), make([]block.Key, 2*n)
	for i := range paths {
		paths[i], keys[i] = benchPath(i), benchKey(i)
	}
	if got := testing.AllocsPerRun(1000, func() {
		if e, ok := c.Get(keys[i]); !ok || e != benchEntry(i) {
			t.Fatalf("%+v", e)
		}
		if e, ok := c.Get(keys[i+n]); ok {
			t.Fatalf("%+v", e)
		}
		if c.Put(paths[i], benchEntry(i), benchDirs) {
			t.Fatal("it was put again")
		}
		i++
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

// TestTombBound: no more removals are remembered than are allowed, the first are forgotten first.
func TestTombBound(t *testing.T) {
	now := int64(1)
	c := New(Options{MaxTombs: 10, Now: func() time.Time { return time.Unix(0, now) }})
	c.AddPack(Pack{Index: Align, Size: 1000})
	for i := range 25 {
		c.Remove(fmt.Sprint(i), 5, math.MaxInt64, 100)
	}
	if st := c.Stats(); st.Tombs != 10 || st.TombsDropped != 15 {
		t.Errorf("got %+v", st)
	}
	for i := range 25 {
		if got := c.Put(fmt.Sprint(i), Entry{Seq: 5}, nil); got != (i < 15) {
			t.Errorf("%d: got %v", i, got)
		}
	}
	now = 100
	if !c.Put("24", Entry{Seq: 1}, nil) || c.Stats().Tombs != 0 {
		t.Errorf("got %+v", c.Stats())
	}
}

// TestClassBound: blocks of more classes than there are numbers are refused, and leave nothing.
func TestClassBound(t *testing.T) {
	c := New(Options{})
	c.tree.most = chunkItems
	n, _ := c.AddPack(Pack{Index: Align, Size: 1000})
	for i := range chunkItems + 10 {
		if got := c.Put(fmt.Sprintf("a/b/%d/c", i), Entry{Seq: 1, Size: 1, Pack: n}, nil); got != (i < chunkItems) {
			t.Fatalf("%d: got %v", i, got)
		}
	}
	p, _ := c.Pack(n)
	if st := c.Stats(); st.Blocks != chunkItems || st.LiveBytes != chunkItems || st.Dirs != chunkItems+2 || st.Refused != 10 || p.Blocks != chunkItems {
		t.Errorf("got %+v, %+v", st, p)
	}
	if !c.Forget("a/b/7/c", n) || !c.Put("a/x", Entry{Seq: 1, Pack: n}, nil) {
		t.Error("a number that was given back is of no use")
	}
	if n := c.Drop(refs(c, n)...); n != chunkItems || c.Stats().Dirs != 0 {
		t.Errorf("%d are dropped, %+v", n, c.Stats())
	}
}

// TestDropReused shows that who drops a pack does not drop the one that has its number by now.
func TestDropReused(t *testing.T) {
	c := New(Options{})
	n, _ := c.AddPack(Pack{Time: 1, Writer: 1, Index: Align, Size: 1 << 20})
	first := refs(c, n)
	c.Drop(first...)
	for _, p := range []Pack{{Time: 2, Writer: 1, Index: Align, Size: 1 << 20}, {Time: 1, Writer: 2, Index: Align, Size: 1 << 20}} {
		again, _ := c.AddPack(p)
		if again != n || !c.Put("g/x", Entry{Seq: 1, Size: 1, Pack: n}, nil) {
			t.Fatalf("pack %d, want %d", again, n)
		}
		if dropped := c.Drop(first...); dropped != 0 {
			t.Errorf("%d blocks of a pack of time %d and writer %d are dropped", dropped, p.Time, p.Writer)
		}
		if dropped := c.Drop(refs(c, n)...); dropped != 1 {
			t.Errorf("%d blocks are dropped, want 1", dropped)
		}
	}
}
