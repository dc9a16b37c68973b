package mem

import (
	"context"
	"fmt"
	"testing"

	"github.com/kvfs/kvfs/tiers/driver"
)

// BenchmarkBlock is the life of an empty block, by the number of goroutines'
// worth of GOMAXPROCS: create, commit, close, remove.
func BenchmarkBlock(b *testing.B) {
	requireMount(b)
	s := open(b, Options{Dir: shmDir(b) + "/s", SizeBytes: 1 << 30})
	one := func() error {
		id, f, err := s.Create()
		if err != nil {
			return err
		}
		r := driver.Record{Path: "group/0123456789abcdef0123456789abcdef", Seq: 1, Mode: 0o644}
		if err := s.Commit(id, f, &r); err != nil {
			return err
		}
		f.Close()
		return s.Remove(id)
	}
	b.Run("serial", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := one(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := one(); err != nil {
					b.Error(err)
				}
			}
		})
	})
}

// BenchmarkCalls is each call by itself.
func BenchmarkCalls(b *testing.B) {
	requireMount(b)
	s := open(b, Options{Dir: shmDir(b) + "/s", SizeBytes: 1 << 30})
	id, f, err := s.Create()
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	r := driver.Record{Path: "group/0123456789abcdef0123456789abcdef", Seq: 1, Mode: 0o644}
	b.Run("commit", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := s.Commit(id, f, &r); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("open", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			f, err := s.Open(id)
			if err != nil {
				b.Fatal(err)
			}
			f.Close()
		}
	})
	b.Run("gate", func(b *testing.B) {
		for b.Loop() {
			s.gate.RLock()
			if s.gate.closed {
				b.Fatal("closed")
			}
			s.gate.RUnlock()
		}
	})
	b.Run("encode", func(b *testing.B) {
		buf := make([]byte, 0, maxRecord)
		for b.Loop() {
			buf = appendRecord(buf[:0], id, &r)
		}
	})
}

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
