package tiers_test

import (
	"context"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/state"
)

// BenchmarkCalls measures the calls that each read of a block in memory makes.
func BenchmarkCalls(b *testing.B) {
	w := open(b, shmDir(b), state.Options{CapacityBytes: 64 * page, BurstGap: time.Second, LookupLease: time.Minute})
	defer w.close(false)
	must(b, w.mkdir("g"))
	must(b, w.put(10, "g/0123456789abcdef", nil))
	dir, err := w.lookup(10, "g")
	must(b, err)
	b.Run("lookup+forget", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			a, err := w.e.Lookup(dir.ID, "0123456789abcdef", by(10))
			must(b, err)
			w.e.Forget(a.ID, 1)
		}
	})
	b.Run("open+close", func(b *testing.B) {
		a, err := w.e.Lookup(dir.ID, "0123456789abcdef", by(10))
		must(b, err)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := w.e.OpenRead(context.Background(), a.ID, by(10), false); err != nil {
				b.Fatal(err)
			}
			w.e.CloseRead(a.ID)
		}
		w.e.Forget(a.ID, 1)
	})
	b.Run("create+unlink", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			must(b, w.put(10, "g/x", nil))
			must(b, w.unlink(10, "g/x"))
		}
	})
	w.forget(dir.ID)
}
