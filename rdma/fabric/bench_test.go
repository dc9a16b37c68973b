//go:build ofi && cgo

package fabric

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/tcp"
	"github.com/kvfs/kvfs/tiers/block"
)

// Run the benchmarks on a tmpfs of large pages and on one of small ones:
//
//	mount -t tmpfs -o huge=within_size tmpfs DIR
//	go test -tags=ofi -run '^$' -bench . ./rdma/fabric -dir DIR
var benchDir = flag.String("dir", "/dev/shm", "tmpfs for the benchmarks' files")

// benchFile returns a file of this size in benchDir.
func benchFile(b *testing.B, size int64) *os.File {
	b.Helper()
	f, err := os.CreateTemp(*benchDir, "fabric")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	os.Remove(f.Name())
	p := make([]byte, min(size, 1<<20))
	for i := range p {
		p[i] = byte(i * 7)
	}
	for off := int64(0); off < size; off += int64(len(p)) {
		if _, err := f.WriteAt(p, off); err != nil {
			b.Fatal(err)
		}
	}
	return f
}

var benchSizes = []struct {
	name string
	size int64
}{{"1MiB", 1 << 20}, {"1GiB", 1 << 30}}

// BenchmarkRegister registers a file and ends it: without the cache, and with it.
func BenchmarkRegister(b *testing.B) {
	for _, cached := range []struct {
		name  string
		bytes int64
	}{{"miss", 0}, {"hit", 2 << 30}} {
		for _, s := range benchSizes {
			b.Run(cached.name+"/"+s.name, func(b *testing.B) {
				tr := open(b, Options{CacheBytes: cached.bytes, KeepUnnamed: true})
				f := benchFile(b, s.size)
				for b.Loop() {
					r, err := tr.Register(f, s.size)
					if err != nil {
						b.Fatal(err)
					}
					r.Close()
				}
			})
		}
	}
}

// BenchmarkPin maps a file, and locks its pages, as a card's driver does besides.
func BenchmarkPin(b *testing.B) {
	for _, s := range benchSizes {
		b.Run(s.name, func(b *testing.B) {
			f := benchFile(b, s.size)
			for b.Loop() {
				p, err := mapFile(f, 0, s.size, unix.PROT_READ)
				if err != nil {
					b.Fatal(err)
				}
				if err := unix.Mlock(p); err != nil {
					b.Skip(err)
				}
				unmap(p)
			}
		})
	}
}

// BenchmarkBounce copies a block into memory that would be registered already, instead of
// registering its file.
func BenchmarkBounce(b *testing.B) {
	f := benchFile(b, 1<<20)
	arena := make([]byte, 64<<20)
	at := 0
	b.SetBytes(1 << 20)
	for b.Loop() {
		if _, err := f.ReadAt(arena[at:at+1<<20], 0); err != nil {
			b.Fatal(err)
		}
		at = (at + 1<<20) % len(arena)
	}
}

// BenchmarkRead reads blocks of a region to new files, with this many readers at a time, and hashes
// them: by this transport, with buffers and without, and by rdma/tcp.
func BenchmarkRead(b *testing.B) {
	for _, kb := range []int64{64, 1024, 4096, 16384} {
		for _, readers := range []int{1, 8} {
			for _, kind := range []string{"fabric", "direct", "tcp"} {
				b.Run(fmt.Sprintf("%s/%dKiB/depth%d", kind, kb, readers), func(b *testing.B) {
					var t [2]rdma.Transport
					for i := range t {
						if kind != "tcp" {
							t[i] = open(b, Options{direct: kind == "direct"})
							continue
						}
						tr, err := tcp.Open(tcp.Options{Bind: "127.0.0.1:0"})
						if err != nil {
							b.Fatal(err)
						}
						b.Cleanup(func() { tr.Close() })
						t[i] = tr
					}
					benchRead(b, t[0], t[1], kb<<10, readers)
				})
			}
		}
	}
}

const benchTotal = 128 << 20

// processorTime is the processor time of this process.
func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchRead(b *testing.B, holder, reader rdma.Transport, size int64, readers int) {
	r, err := holder.Register(benchFile(b, benchTotal), benchTotal)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	p, err := reader.Connect(holder.Addr())
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	one := func(i int64) error {
		f, err := os.CreateTemp(*benchDir, "fabric")
		if err != nil {
			return err
		}
		defer f.Close()
		os.Remove(f.Name())
		return p.Read(context.Background(), r.Remote(), i*size%benchTotal, size, rdma.Dest{File: f, Hash: block.NewChecksum()})
	}
	if err := one(0); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(size)
	b.ResetTimer()
	before := processorTime(b)
	defer func() {
		took := processorTime(b) - before
		b.ReportMetric(took.Seconds()/(float64(b.N)*float64(size)/1e9), "cpu-s/GB")
	}()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				if err := one(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
