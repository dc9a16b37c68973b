package pack

import (
	"fmt"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// BenchmarkBuild fills a pack of 64 MiB, copies of the data included, its checksums not.
func BenchmarkBuild(b *testing.B) {
	for _, size := range []int{64 << 10, 2 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			n := (64<<20 - 1<<20) / (size + 256)
			data := make([]byte, size)
			sum := block.Sum(data)
			buf := make([]byte, 0, 64<<20)
			b.SetBytes(int64(n * size))
			for b.Loop() {
				largePack(b, buf, n, data, sum)
			}
		})
	}
}

// largePack makes a pack of n blocks in buf.
func largePack(tb testing.TB, buf []byte, n int, data []byte, sum block.Checksum) (Name, []byte) {
	tb.Helper()
	builder := NewBuilder(buf)
	dirs := []driver.DirAttrs{{Mode: 0o755}, {Mode: 0o755}}
	for i := range n {
		a := driver.Attrs{Seq: sampleTime + uint64(i)*12345, Mode: 0o644, UID: 1000, GID: 1000, Mtime: sampleTime + int64(i)*12345, Dirs: dirs}
		if err := builder.Add(fmt.Sprintf("model/%03x/%064x", i/1000, i*0x1234567), &a, data, sum); err != nil {
			tb.Fatal(err)
		}
	}
	return builder.Finish(sampleTime, sampleWriter)
}

// BenchmarkReadIndex reads the index of a pack of 100,000 small blocks.
func BenchmarkReadIndex(b *testing.B) {
	const blocks = 100_000
	name, object := largePack(b, make([]byte, 0, 64<<20), blocks, make([]byte, 100), block.Sum(make([]byte, 100)))
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		if err := ReadIndex(name, object[name.Index:], func(*Entry) bool { n++; return true }); err != nil || n != blocks {
			b.Fatal(n, err)
		}
	}
	b.ReportMetric(float64(int64(len(object))-name.Index)/blocks, "bytes/block")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/blocks, "ns/block")
}
