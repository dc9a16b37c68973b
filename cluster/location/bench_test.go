package location

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// liveSlots is how many nodes hold the entries of the benchmarks.
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

func heapBytes() int64 {
	runtime.GC()
	runtime.GC() // the first one may have been under way
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkMemory reports the cost of an entry, by our own count and by the heap's. It also reports
// how long the garbage collector takes with it and stops others.
func BenchmarkMemory(b *testing.B) {
	for _, n := range []int{100_000, 1_000_000, 10_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				before := heapBytes()
				x := filled(n)
				heap := heapBytes() - before
				b.ReportMetric(float64(x.Stats().Bytes)/float64(n), "bytes/entry")
				b.ReportMetric(float64(heap)/float64(n), "heap-bytes/entry")
				start := time.Now()
				runtime.GC()
				b.ReportMetric(float64(time.Since(start).Microseconds()), "gc-µs")
				var s debug.GCStats
				debug.ReadGCStats(&s)
				b.ReportMetric(float64(s.Pause[0].Microseconds()), "gc-pause-µs")
				runtime.KeepAlive(x)
			}
		})
	}
}

// Benchmark measures single operations, each on another hash.
func Benchmark(b *testing.B) {
	for _, n := range []int{100_000, 1_000_000, 10_000_000} {
		x := filled(n)
		b.Run(fmt.Sprintf("LookupHit/%d", n), func(b *testing.B) { benchLookup(b, x, n, 0, 1) })
		b.Run(fmt.Sprintf("LookupMiss/%d", n), func(b *testing.B) { benchLookup(b, x, n, n, 0) })
		b.Run(fmt.Sprintf("LookupParallel/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(p *testing.PB) {
				buf := make([]Holder, 0, 4)
				for r := rand.New(rand.NewPCG(rand.Uint64(), 1)); p.Next(); {
					_, e := benchEntry(r.IntN(2 * n))
					buf = x.Lookup(e.Hash, buf[:0])
				}
			})
		})
		b.Run(fmt.Sprintf("PutAgain/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i = (i + 7919) % n {
				x.Put(benchEntry(i))
			}
		})
		b.Run(fmt.Sprintf("PutDelete/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for i := n; b.Loop(); i++ {
				slot, e := benchEntry(i)
				x.Put(slot, e)
				x.Delete(slot, e.Hash)
			}
		})
	}
}

func benchLookup(b *testing.B, x *Index, n, offset, want int) {
	b.ReportAllocs()
	buf := make([]Holder, 0, 4)
	for i := 0; b.Loop(); i = (i + 7919) % n {
		_, e := benchEntry(i + offset)
		if buf = x.Lookup(e.Hash, buf[:0]); len(buf) != want {
			b.Fatal(len(buf))
		}
	}
}

// BenchmarkFill measures Put into an index that grows to a million.
func BenchmarkFill(b *testing.B) {
	for b.Loop() {
		filled(1_000_000)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1e6, "ns/entry")
}

// BenchmarkNeighbour measures look-ups of hashes in the shard of a hash with thousands of holders.
func BenchmarkNeighbour(b *testing.B) {
	const n = 100_000
	x := filled(n)
	for slot := range Slot(MaxSlots) {
		x.Put(slot, Entry{Hash: 1, Seq: 1, Mode: 0o040755})
	}
	var near []uint64
	for i := range 50 * n {
		if _, e := benchEntry(i); x.shard(x.mix(e.Hash)) == x.shard(x.mix(1)) {
			near = append(near, e.Hash)
		}
	}
	buf := make([]Holder, 0, 4)
	for i := 0; b.Loop(); i = (i + 1) % len(near) {
		buf = x.Lookup(near[i], buf[:0])
	}
}

// BenchmarkDrop measures the loss of a holder of 100,000 among 10 million, and look-ups
// meanwhile.
func BenchmarkDrop(b *testing.B) {
	const n = 10_000_000
	for b.Loop() {
		b.StopTimer()
		x := filled(n)
		runtime.GC()
		var done atomic.Bool
		times := make(chan []time.Duration)
		go func() { // ends with done
			var all []time.Duration
			buf := make([]Holder, 0, 4)
			for i := 0; !done.Load(); i = (i + 7919) % n {
				_, e := benchEntry(i)
				start := time.Now()
				buf = x.Lookup(e.Hash, buf[:0])
				all = append(all, time.Since(start))
			}
			times <- all
		}()
		b.StartTimer()
		x.Drop(7)
		b.StopTimer()
		done.Store(true)
		all := <-times
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)*999/1000].Nanoseconds()), "lookup-99.9%-ns")
		if x.Count(7) != 0 || x.Count(8) != n/liveSlots {
			b.Fatal("dropped the wrong ones")
		}
		b.StartTimer()
	}
}
