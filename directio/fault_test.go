package directio

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestNoSpace fills an ext4: writes say ENOSPC, and reads go on.
func TestNoSpace(t *testing.T) {
	dir, _ := mountLoop(t, "ext4", 32<<20, 512, "")
	eachEngine(t, Options{}, func(t *testing.T, e Engine) {
		f, m := fileWith(t, dir, nil), mem(t, 64<<20)
		noise(m[:8<<20], 1)
		n, err := one(e, Op{Kind: Write, File: f, Mem: m})
		if !errors.Is(err, unix.ENOSPC) || n < 1<<20 || n%Alignment != 0 {
			t.Fatalf("wrote %d, %v, want some and ENOSPC", n, err)
		}
		back := mem(t, 1<<20)
		if _, err := one(e, Op{Kind: Read, File: f, Mem: back}); err != nil || !bytes.Equal(back, m[:1<<20]) {
			t.Errorf("read of a full device: %v, equal %v", err, bytes.Equal(back, m[:1<<20]))
		}
		must(t, os.Remove(f.Name()))
	})
}

// TestReadError truncates what is below a file system: reads say EIO, each for itself,
// and what is read all the same is right.
func TestReadError(t *testing.T) {
	dir, backing := mountLoop(t, "ext4", 64<<20, 512, "")
	const size = 32 << 20
	content := make([]byte, size)
	noise(content, 1)
	f := fileWith(t, dir, content)
	unix.Sync()
	must(t, os.Truncate(backing, 24<<20))
	// The device still has the old size; the clean-up finds it so.
	t.Cleanup(func() { _ = os.Truncate(backing, 64<<20) })
	eachEngine(t, Options{}, func(t *testing.T, e Engine) {
		m := mem(t, size)
		ops := make([]Op, 32)
		for i := range ops {
			ops[i] = Op{Kind: Read, File: f, Mem: m[i<<20:][:1<<20], Off: int64(i) << 20}
		}
		err := e.Do(t.Context(), ops)
		failed := 0
		for i, op := range ops {
			if op.Err != nil {
				failed++
				if !errors.Is(op.Err, unix.EIO) {
					t.Errorf("op %d: %v, want EIO", i, op.Err)
				}
			}
			if at := i << 20; !bytes.Equal(m[at:at+op.N], content[at:at+op.N]) {
				t.Errorf("op %d: wrong bytes", i)
			}
		}
		if failed == 0 || failed == len(ops) || !errors.Is(err, unix.EIO) {
			t.Errorf("%d of %d reads failed, Do: %v", failed, len(ops), err)
		}
	})
}

// TestSectors runs direct I/O on xfs with both sector sizes: what Op asks for works,
// and what the device refuses comes back as EINVAL.
func TestSectors(t *testing.T) {
	for _, sector := range []int{512, 4096} {
		t.Run(fmt.Sprint(sector), func(t *testing.T) {
			dir, _ := mountLoop(t, "xfs", 320<<20, sector, "")
			r, err := Probe(dir)
			if err != nil || r.FileSystem != "xfs" || !r.Direct || r.OffsetAlignBytes != sector {
				t.Errorf("Probe: %+v, %v", r, err)
			}
			eachEngine(t, Options{}, func(t *testing.T, e Engine) {
				f, m := fileWith(t, dir, make([]byte, 1<<20)), mem(t, 2<<20)
				noise(m[:1<<20], 1)
				if _, err := one(e, Op{Kind: Write, File: f, Mem: m[:1<<20]}); err != nil {
					t.Fatal(err)
				}
				if _, err := one(e, Op{Kind: Read, File: f, Mem: m[1<<20:]}); err != nil || !bytes.Equal(m[:1<<20], m[1<<20:]) {
					t.Errorf("read back: %v", err)
				}
				// Past the engine's own check, to see what the kernel says.
				s := schedulerOf(e)
				for _, op := range []Op{
					{Kind: Read, File: f, Mem: m[:512]},
					{Kind: Read, File: f, Mem: m[:4096], Off: 512},
					{Kind: Write, File: f, Mem: m[:512], Off: 4096},
				} {
					ops := []Op{op}
					err := s.do(t.Context(), ops, func(*Op) error { return nil })
					if want := sector == 4096; errors.Is(err, unix.EINVAL) != want || !want && err != nil {
						t.Errorf("%v of %d at %d: %v", op.Kind, len(op.Mem), op.Off, err)
					}
				}
			})
		})
	}
}

// schedulerOf returns what is common to all engines.
func schedulerOf(e Engine) *scheduler {
	if f, ok := e.(*Fake); ok {
		return f.scheduler
	}
	return e.(*scheduler)
}

// TestMappedSource writes from a mapped tmpfs file to a device, which is what a store of a large block does, and shows what the
// kernel says of a source that is truncated, or of a mapping as a target: EFAULT, not a signal (A8).
func TestMappedSource(t *testing.T) {
	dir := mountTmpfs(t, "size=4m,huge=within_size")
	eachEngine(t, Options{}, func(t *testing.T, e Engine) {
		const size = 1<<20 + 100
		disk := fileWith(t, "", nil)
		src := tmpFile(t, dir, "src", size)
		from, to := mapped(t, src, size), mem(t, 1<<20+4096)
		if len(from.Bytes()) != len(to) {
			t.Fatalf("mapped %d bytes of %d", len(from.Bytes()), size)
		}
		if _, err := one(e, Op{Kind: Write, File: disk, Mem: from.Bytes()}); err != nil {
			t.Fatal(err)
		}
		if _, err := one(e, Op{Kind: Read, File: disk, Mem: to}); err != nil || !bytes.Equal(from.Bytes(), to) {
			t.Fatalf("through the device: %v, equal %v", err, bytes.Equal(from.Bytes(), to))
		}
		if _, err := one(e, Op{Kind: Read, File: disk, Mem: from.Bytes()}); !errors.Is(err, unix.EFAULT) {
			t.Errorf("read into a mapping for reading: %v", err)
		}
		must(t, src.Truncate(8192))
		if _, err := one(e, Op{Kind: Write, File: disk, Mem: from.Bytes()}); !errors.Is(err, unix.EFAULT) {
			t.Errorf("write from a truncated file: %v", err)
		}
	})
}

// tmpFile makes a file with size bytes of noise that is removed when the test ends.
func tmpFile(t testing.TB, dir, name string, size int) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, name))
	must(t, err)
	t.Cleanup(func() { f.Close(); os.Remove(f.Name()) })
	content := make([]byte, size)
	noise(content, uint64(len(name)))
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	return f
}

func mapped(t testing.TB, f *os.File, size int64) *Mapping {
	t.Helper()
	m, err := Map(f, size)
	must(t, err)
	t.Cleanup(func() { must(t, errors.Join(m.Close(), m.Close())) })
	return m
}

// TestGuard shows that Guard survives the truncation of a mapped file, and passes what
// else may happen.
func TestGuard(t *testing.T) {
	f := tmpFile(t, t.TempDir(), "f", 3*4096)
	m := mapped(t, f, 3*4096)
	sum := func() int {
		n := 0
		for _, b := range m.Bytes() {
			n += int(b)
		}
		return n
	}
	want := sum()
	if err := Guard(func() {
		if got := sum(); got != want {
			t.Errorf("sum %d, want %d", got, want)
		}
	}); err != nil {
		t.Errorf("nothing wrong: %v", err)
	}
	must(t, f.Truncate(4096))
	var fault *FaultError
	for name, fn := range map[string]func(){
		"loop":     func() { sum() },
		"assembly": func() { crc32.Checksum(m.Bytes(), crc32.MakeTable(crc32.Castagnoli)) },
		"copy":     func() { copy(make([]byte, 3*4096), m.Bytes()) },
	} {
		fault = nil
		if err := Guard(fn); !errors.As(err, &fault) {
			t.Errorf("%s over a truncated mapping: %v", name, err)
		}
	}
	fault = nil
	if err := Guard(func() { want += int(m.Bytes()[4096]) }); !errors.As(err, &fault) || fault.Addr != uintptr(unsafe.Pointer(&m.Bytes()[4096])) {
		t.Errorf("read of a truncated mapping: %v", err)
	}
	var nowhere *byte
	for name, fn := range map[string]func(){
		"panic": func() { panic("mine") },
		"nil":   func() { want += int(*nowhere) },
		"index": func() { want += int(m.Bytes()[len(m.Bytes()):][0]) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: Guard swallowed the panic", name)
				}
			}()
			if err := Guard(fn); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}()
	}
	for _, size := range []int64{0, -1, math.MaxInt64} {
		if _, err := Map(f, size); !errors.Is(err, os.ErrInvalid) {
			t.Errorf("Map of %d bytes: %v", size, err)
		}
	}
}
