package index

import (
	"encoding/hex"
	"math/rand/v2"
	"runtime"
	"testing"
)

const million = 1 << 20

// blockName returns a name as vLLM's native layout has them: 64 hex digits and
// ".bin", 68 bytes.
func blockName(p []byte, i uint64) string {
	r := rand.NewPCG(i, 1)
	var raw [32]byte
	for j := range raw {
		raw[j] = byte(r.Uint64())
	}
	return string(append(hex.AppendEncode(p[:0], raw[:]), ".bin"...))
}

// fill returns an index with n files in one directory, and their names.
func fill(n int) (*Index, ID, []string) {
	x := New()
	dir := add(x, Root, "group", dirMode)
	names := make([]string, n)
	buf := make([]byte, 0, 80)
	for i := range names {
		names[i] = blockName(buf, uint64(i))
		add(x, dir, names[i], fileMode)
	}
	return x, dir, names
}

func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkMemory reports what an entry costs at a million entries with names
// of 68 bytes: by our own count, and by the heap's.
func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		before := heapBytes()
		x := New()
		buf := make([]byte, 0, 80)
		for i := range uint64(million) {
			add(x, Root, blockName(buf, i), fileMode)
		}
		heap := heapBytes() - before
		b.ReportMetric(float64(x.Bytes())/million, "bytes/entry")
		b.ReportMetric(float64(heap)/million, "heap-bytes/entry")
		runtime.KeepAlive(x)
	}
}

// Benchmark measures single operations on an index of a million files in one
// directory, each time on another file.
func Benchmark(b *testing.B) {
	x, dir, names := fill(million)
	i := 0
	next := func() string {
		i = (i + 7919) % million
		return names[i]
	}
	b.Run("Lookup", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if x.Lookup(dir, next()) == 0 {
				b.Fatal("lost")
			}
		}
	})
	b.Run("LookupMiss", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if x.Lookup(Root, next()) != 0 {
				b.Fatal("found")
			}
		}
	})
	b.Run("Relink", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			name := next()
			id := x.Lookup(dir, name)
			x.Unlink(id)
			x.Free(id)
			x.Link(x.Alloc(), dir, name)
		}
	})
	b.Run("ReadDir", func(b *testing.B) {
		var after uint64
		var last ID
		for b.Loop() {
			was := after
			x.ReadDir(dir, after, last, func(id ID, _ *Entry, cookie uint64) bool {
				after, last = cookie, id
				return false
			})
			if was == after {
				after, last = 0, 0
			}
		}
	})
	b.Run("AppendPath", func(b *testing.B) {
		b.ReportAllocs()
		buf := make([]byte, 0, 256)
		for b.Loop() {
			i = (i + 7919) % million
			buf = x.AppendPath(buf[:0], ID(i+3))
		}
	})
	b.Run("GC", func(b *testing.B) {
		for b.Loop() {
			runtime.GC()
		}
	})
}
