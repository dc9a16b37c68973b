package directio

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

const benchFileBytes = 1 << 30

// BenchmarkRead measures random reads from the disk that the temporary directory is
// on, by engine, size, ops in flight (in one Do) and kind of memory: pages of 4 KiB,
// huge pages (a Pool), or a file of a tmpfs in huge pages, which is where promotion
// reads to. CPU time, in us/MiB, is of the process. Compare with
//
//	fio --name=r --filename=F --size=1g --rw=randread --direct=1 --ioengine=io_uring --bs=1m --iodepth=8
func BenchmarkRead(b *testing.B) {
	path := filepath.Join(b.TempDir(), "data")
	f, err := OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	fillFile(b, f)
	for _, mem := range []string{"4k", "huge"} {
		for _, size := range []int{64 << 10, 1 << 20} {
			for _, depth := range []int{1, 8} {
				for _, engine := range []string{EngineUring, EnginePread} {
					b.Run(fmt.Sprintf("%dk/x%d/%s/%s", size>>10, depth, mem, engine), func(b *testing.B) {
						e, err := Open(b.Context(), Options{Engine: engine})
						if err != nil {
							b.Skip(err)
						}
						defer closeEngine(b, e)
						benchRead(b, e, f, benchMemory(b, mem, size*depth), size, depth)
					})
				}
			}
		}
	}
}

func benchRead(b *testing.B, e Engine, f *File, mem []byte, size, depth int) {
	ops := make([]Op, depth)
	rnd := rand.New(rand.NewPCG(1, 2))
	before := cpuMicros(b)
	b.SetBytes(int64(size * depth))
	for b.Loop() {
		for i := range ops {
			ops[i] = Op{Kind: Read, File: f, Mem: mem[i*size:][:size], Off: rnd.Int64N(benchFileBytes/int64(size)) * int64(size)}
		}
		if err := e.Do(b.Context(), ops); err != nil {
			b.Fatal(err)
		}
	}
	mib := float64(b.N) * float64(size*depth) / (1 << 20)
	b.ReportMetric((cpuMicros(b)-before)/mib, "cpu-us/MiB")
}

// fillFile writes f, so that no extent is unwritten.
func fillFile(b *testing.B, f *File) {
	e, err := Open(b.Context(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer closeEngine(b, e)
	m := mem(b, 16<<20)
	noise(m, 1)
	for off := int64(0); off < benchFileBytes; off += int64(len(m)) {
		if _, err := one(e, Op{Kind: Write, File: f, Mem: m, Off: off}); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := one(e, Op{Kind: Sync, File: f}); err != nil {
		b.Fatal(err)
	}
}

// benchMemory returns touched memory of a kind.
func benchMemory(b *testing.B, kind string, size int) []byte {
	b.Helper()
	switch kind {
	case "huge":
		p, err := NewPool(PoolOptions{SizeBytes: int64(size), UsableRatio: 1})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { p.Close() })
		buf, err := p.Acquire(b.Context(), size)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(buf.Release)
		clear(buf.Bytes())
		return buf.Bytes()
	}
	m := mem(b, size)
	clear(m)
	return m
}

// cpuMicros returns the CPU time of the process.
func cpuMicros(b *testing.B) float64 {
	var ru unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &ru); err != nil {
		b.Fatal(err)
	}
	return float64(ru.Utime.Nano()+ru.Stime.Nano()) / 1e3
}
