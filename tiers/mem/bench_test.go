package mem

import (
	"context"
	"fmt"
	"testing"

	"github.com/kvfs/kvfs/tiers/driver"
)

// BenchmarkAdopt adopts 100,000 blocks.
func BenchmarkAdopt(b *testing.B) {
	requireMount(b)
	const n = 100_000
	o := Options{Dir: shmDir(b) + "/s", SizeBytes: 1 << 30}
	s := open(b, o)
	for i := range n {
		put(b, s, fmt.Sprintf("group/%064x", i), "x")
	}
	s.Close(true)
	for b.Loop() {
		var err error
		if s, err = Open(context.Background(), Options{Dir: o.Dir, SizeBytes: 1 << 30}); err != nil {
			b.Fatal(err)
		}
		got := 0
		err = s.Adopt(func(driver.BlobID, *driver.Record, bool) bool { got++; return true })
		if err != nil || got != n {
			b.Fatalf("got %d, %v", got, err)
		}
		s.Close(true)
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "blocks/s")
	open(b, o)
}
