package catalog

import (
	"fmt"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
)

// Benchmark measures single operations in a catalog of n blocks, each on another path.
func Benchmark(b *testing.B) {
	for _, n := range []int{1_000_000, 10_000_000} {
		c := New(Options{})
		fill(b, c, 0, n)
		const some = 1 << 18
		present, absent, paths := make([]block.Key, some), make([]block.Key, some), make([]string, some)
		at := func(i int) int { return i * 7919 % n }
		for i := range some {
			present[i], absent[i], paths[i] = benchKey(at(i)), benchKey(n+at(i)), benchPath(n+at(i))
		}
		b.Run(fmt.Sprintf("GetPresent/%d", n), func(b *testing.B) { benchGet(b, c, present, true) })
		b.Run(fmt.Sprintf("GetAbsent/%d", n), func(b *testing.B) { benchGet(b, c, absent, false) })
		b.Run(fmt.Sprintf("GetParallel/%d", n), func(b *testing.B) {
			b.RunParallel(func(p *testing.PB) {
				for i := 0; p.Next(); i++ {
					c.Get(present[i%some])
				}
			})
		})
		b.Run(fmt.Sprintf("PutForget/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i = (i + 1) % some {
				e := benchEntry(at(i))
				c.Put(paths[i], e, benchDirs)
				c.Forget(paths[i], e.Pack)
			}
		})
	}
}

func benchGet(b *testing.B, c *Catalog, keys []block.Key, want bool) {
	b.ReportAllocs()
	for i := 0; b.Loop(); i = (i + 1) % len(keys) {
		if _, ok := c.Get(keys[i]); ok != want {
			b.Fatal(ok)
		}
	}
}

// BenchmarkFill measures Put into a catalog that grows to a million, with its paths made.
func BenchmarkFill(b *testing.B) {
	const n = 1_000_000
	for b.Loop() {
		fill(b, New(Options{}), 0, n)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/block")
}

// BenchmarkDrop measures the loss of a pack, with its blocks among 10 million.
func BenchmarkDrop(b *testing.B) {
	c := New(Options{})
	fill(b, c, 0, 10_000_000)
	for i := uint32(0); b.Loop(); i++ {
		if c.Drop(refs(c, i)...) != perPack {
			b.Fatal(i)
		}
	}
}
