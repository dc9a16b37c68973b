package disk

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/disk/ledger"
	"github.com/kvfs/kvfs/tiers/disk/port"
	"github.com/kvfs/kvfs/tiers/driver"
)

// benchSizes are those that make bench compares with fio.
var benchSizes = []int{64 << 10, 1 << 20, 4 << 20}

const (
	benchJobs     = 8         // in flight
	benchCapacity = 512 << 20 // of the device
	benchBytes    = 256 << 20 // held
)

// bench is a tier and the files that blocks move from and to: tmpfs files in use
// before, as recycled ones are.
type bench struct {
	tier  *Tier
	files []*os.File
	size  int64
	dir   string
}

// newBench opens a tier below KVFS_BENCH_DIR, or the directory for temporary files.
func newBench(b *testing.B, size int) *bench {
	b.Helper()
	dir, err := os.MkdirTemp(os.Getenv("KVFS_BENCH_DIR"), "kvfs-bench-")
	if err != nil {
		b.Fatal(err)
	}
	x := &bench{size: int64(size), dir: dir}
	tier, err := Open(context.Background(), Options{
		Devices: []DeviceOptions{{Dir: filepath.Join(dir, "tier"), CapacityBytes: benchCapacity}}, Policy: "lru", SlabBytes: 32 << 20,
	})
	if err != nil {
		b.Fatal(err)
	}
	x.tier = tier
	b.Cleanup(func() {
		_ = tier.Close(context.Background())
		_ = os.RemoveAll(dir)
	})
	content := bytesOf(1, size)
	for range benchJobs {
		fd, err := unix.MemfdCreate("bench", unix.MFD_CLOEXEC)
		if err != nil {
			b.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "bench")
		if _, err := f.Write(content); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { f.Close() })
		x.files = append(x.files, f)
	}
	return x
}

// run does op(worker, n) for each n from 0 to count, benchJobs at a time.
func (x *bench) run(b *testing.B, count int, op func(tr *driver.Transfer, n int, done func(driver.Outcome))) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	next := 0
	for _, f := range x.files {
		wg.Go(func() {
			c := make(chan driver.Outcome, 1)
			for {
				mu.Lock()
				n := next
				next++
				mu.Unlock()
				if n >= count {
					return
				}
				op(&driver.Transfer{Size: x.size, File: f}, n, func(o driver.Outcome) { c <- o })
				if o := <-c; o.Err != nil {
					b.Errorf("block %d: %v", n, o.Err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// store stores block n, in the place of those that were held benchBytes before.
func (x *bench) store(tr *driver.Transfer, n int, done func(driver.Outcome)) {
	tr.Key = block.Key{Group: "bench", Hash: block.Hash(fmt.Sprint(int64(n) % (benchBytes / x.size)))}
	tr.Attrs.Seq = uint64(n) + 1
	tr.Sum = benchSum(x.size)
	x.tier.Store(&driver.Job{Blocks: []driver.Transfer{*tr}, Done: func(r *driver.Result) { done(r.Outcomes[0]) }})
}

var benchSums sync.Map

// benchSum is the checksum that the engine has by the time it cascades.
func benchSum(size int64) block.Checksum {
	if v, ok := benchSums.Load(size); ok {
		return v.(block.Checksum)
	}
	sum := block.Sum(bytesOf(1, int(size)))
	benchSums.Store(size, sum)
	return sum
}

// cpuSeconds returns what the process has used.
func cpuSeconds() float64 {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// report prints CPU per MiB, and what fio moves with io_uring and O_DIRECT at the same
// size and depth on the same file system, if it is installed.
func (x *bench) report(b *testing.B, rw string, cpu float64) {
	b.ReportMetric((cpuSeconds()-cpu)*1e6/(float64(b.N)*float64(x.size)/(1<<20)), "cpu-us/MiB")
	b.StopTimer()
	if bps := x.fio(b, rw); bps > 0 {
		own := float64(b.N) * float64(x.size) / b.Elapsed().Seconds()
		b.ReportMetric(bps/1e6, "fio-MB/s")
		b.ReportMetric(own/bps, "of-fio")
	}
}

func (x *bench) fio(b *testing.B, rw string) float64 {
	if b.N*int(x.size) < benchBytes/2 {
		return 0 // the framework is still looking for N
	}
	out, err := exec.Command("fio", "--name=x", "--filename="+filepath.Join(x.dir, "fio"), "--ioengine=io_uring", "--direct=1",
		"--rw="+rw, fmt.Sprintf("--bs=%d", x.size), fmt.Sprintf("--size=%d", benchBytes), fmt.Sprintf("--iodepth=%d", benchJobs),
		"--time_based=1", "--runtime=2", "--output-format=json").Output()
	if err != nil {
		b.Logf("without fio: %v", err)
		return 0
	}
	var r struct {
		Jobs []struct {
			Read, Write struct {
				BW float64 `json:"bw_bytes"`
			}
		}
	}
	if err := json.Unmarshal(out, &r); err != nil || len(r.Jobs) == 0 {
		b.Logf("fio: %v", err)
		return 0
	}
	return r.Jobs[0].Read.BW + r.Jobs[0].Write.BW
}

// BenchmarkStore replaces blocks, 8 jobs of one block in flight.
func BenchmarkStore(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprint(size>>10, "KiB"), func(b *testing.B) {
			x := newBench(b, size)
			x.run(b, int(benchBytes/x.size), x.store)
			b.SetBytes(x.size)
			cpu := cpuSeconds()
			b.ResetTimer()
			x.run(b, b.N, func(tr *driver.Transfer, n int, done func(driver.Outcome)) {
				x.store(tr, n+int(benchBytes/x.size), done)
			})
			x.report(b, "randwrite", cpu)
		})
	}
}

// BenchmarkLoad loads blocks in a mixed order, 8 jobs of one block in flight.
func BenchmarkLoad(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprint(size>>10, "KiB"), func(b *testing.B) {
			x := newBench(b, size)
			blocks := int(benchBytes / x.size)
			x.run(b, blocks, x.store)
			b.SetBytes(x.size)
			cpu := cpuSeconds()
			b.ResetTimer()
			x.run(b, b.N, func(tr *driver.Transfer, n int, done func(driver.Outcome)) {
				tr.Key = block.Key{Group: "bench", Hash: block.Hash(fmt.Sprint(n * 7919 % blocks))}
				x.tier.Load(&driver.Job{Blocks: []driver.Transfer{*tr}, Done: func(r *driver.Result) { done(r.Outcomes[0]) }})
			})
			x.report(b, "randread", cpu)
		})
	}
}

// BenchmarkLookup looks up 512 keys of a million.
func BenchmarkLookup(b *testing.B) {
	t := &Tier{devices: []*device{{port: &port.Port{Down: make(chan struct{})}}}}
	t.mu.ledger = ledger.New()
	sp := ledger.NewSpace(ledger.SpaceOptions{Capacity: 1 << 40, SlabBytes: 1 << 40, Policy: "lru"})
	s := &ledger.Slab{Space: sp, Header: format.SlabHeader{SlotBytes: format.PageBytes, Slots: 1 << 20}, Usable: 1 << 20}
	t.mu.ledger.AddSlab(s)
	keys := make([]block.Key, 1<<20)
	for i := range keys {
		keys[i] = block.Key{Group: "model_r0", Hash: block.Hash(fmt.Sprintf("%064x", i))}
		rec := t.mu.ledger.Record(keys[i], &driver.Attrs{Seq: 1})
		t.mu.ledger.Publish(t.mu.ledger.Bind(s, uint32(i), keys[i], 1, &rec), 0)
	}
	out := make([]driver.Presence, 512)
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		i = (i + 7919*512) % (len(keys) - 512)
		if err := t.Lookup(context.Background(), keys[i:i+512], out); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/512, "ns/key")
}
