package tiers_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/mem"
	"github.com/kvfs/kvfs/tiers/names"
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

// BenchmarkPresences measures a question about many names, half of which are blocks, in an order that no cache foresees.
func BenchmarkPresences(b *testing.B) {
	const blocks, batch = 32768, 1024
	w := open(b, shmDir(b), state.Options{CapacityBytes: 2 * blocks * page, BurstGap: 100 * time.Millisecond, LookupLease: time.Minute})
	defer w.close(false)
	must(b, w.mkdir("g"))
	paths := make([][]byte, 2*blocks)
	for i := range paths {
		paths[i] = fmt.Appendf(nil, "g/%064x", uint64(i)*0x9e3779b97f4a7c15)
		if i < blocks {
			must(b, w.put(10, string(paths[i]), nil))
		}
	}
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(paths), func(i, j int) { paths[i], paths[j] = paths[j], paths[i] })
	text := bytes.Join(paths, nil) // paths of a request lie one after another
	for i, path := range paths {
		paths[i], text = text[:len(path)], text[len(path):]
	}
	out := make([]names.Place, batch)
	o := names.PresenceOptions{Lease: true, By: by(10).User()}
	b.ReportAllocs()
	for i := 0; b.Loop(); i = (i + batch) % len(paths) {
		w.e.Presences(paths[i:i+batch], o, out)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/batch, "ns/name")
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
