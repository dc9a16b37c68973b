package tiers_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/mem"
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

// listed is a tier that does nothing but list blocks.
type listed struct {
	driver.Tier
	blocks int
}

// Blocks implements driver.Enumerator.
func (l *listed) Blocks(fn func(h *driver.Held) bool) error {
	h := driver.Held{Size: 65536, Sum: block.Checksum{Sum: 1, Valid: true}, Attrs: driver.Attrs{Mode: 0o644, Mtime: 1, Dirs: make([]driver.DirAttrs, 1)}}
	for i := range l.blocks {
		h.Key = block.Key{Group: block.GroupID(fmt.Sprintf("g%d", i%16)), Hash: block.Hash(fmt.Sprintf("%064x", uint64(i)*0x9e3779b97f4a7c15))}
		h.Attrs.Seq = uint64(i + 1)
		if !fn(&h) {
			break
		}
	}
	return nil
}

// Stats implements driver.Statser.
func (l *listed) Stats() driver.Stats { return driver.Stats{Blocks: int64(l.blocks)} }

// Close implements driver.Tier.
func (l *listed) Close(context.Context) error { return nil }

// BenchmarkEnumerate: what a start with a full SSD tier costs above that tier.
func BenchmarkEnumerate(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		ctx := context.Background()
		store, err := mem.Open(ctx, mem.Options{Dir: shmDir(b) + "/s", SizeBytes: 64 << 20, NoMount: true})
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		e, err := tiers.Open(ctx, state.Options{
			Primary: store, CapacityBytes: 32 << 20,
			Secondaries: []state.SecondaryOptions{{Name: "disk", Tier: &listed{blocks: 1_000_000}}},
		})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := e.Close(ctx, false); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
