package gpu

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

const mib = 1 << 20

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

func sizes() []int { return []int{mib, 16 * mib, 64 * mib} }

// env is a GPU, a mount and a block of each size.
type env struct {
	*testing.T
	gpu    *device
	mount  *harness.Daemon
	bytes  map[int][]byte // of the block of a size
	target memory         // on the GPU, as large as the largest block
}

// newEnv skips the test where there is no GPU: that is not a pass.
func newEnv(t *testing.T) *env {
	t.Helper()
	g, err := openDevice()
	if err != nil {
		harness.Skip(t, "no NVIDIA GPU to be used: %v", err)
	}
	t.Cleanup(func() { note(t, g.close()) })
	t.Logf("%s; registers read-only mappings: %v; walks the processor's page tables: %v", g.name, g.readOnly, g.hostPageTables)
	e := &env{T: t, gpu: g, mount: harness.Mount(t, harness.Options{MemorySize: "512MiB"}), bytes: map[int][]byte{}}
	if e.target, err = g.alloc(slices.Max(sizes())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { note(t, g.free(e.target)) })
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	source := rand.NewChaCha8(key)
	for _, size := range sizes() {
		e.bytes[size] = make([]byte, size)
		source.Read(e.bytes[size])
		if err := os.WriteFile(e.path(size)+".tmp", e.bytes[size], 0o666); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(e.path(size)+".tmp", e.path(size)); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

func note(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func (e *env) path(size int) string { return e.mount.Path(fmt.Sprint("block-", size)) }

// mapBlock maps the block of a size and closes the file: the mapping keeps it.
func (e *env) mapBlock(size, prot, flags int) []byte {
	e.Helper()
	f, err := os.Open(e.path(size))
	if err != nil {
		e.Fatal(err)
	}
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, size, prot, flags)
	if err != nil {
		e.Fatalf("mmap: %v", err)
	}
	e.Cleanup(func() { note(e.T, unix.Munmap(m)) })
	return m
}

// pinned returns memory of the driver.
func (e *env) pinned(size int) []byte {
	e.Helper()
	m, err := e.gpu.allocHost(size)
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() { note(e.T, e.gpu.freeHost(m)) })
	return m
}

// arrives copies from to the GPU, reads it back and compares every byte.
func (e *env) arrives(from []byte) {
	e.Helper()
	back := make([]byte, len(from))
	for _, step := range []func() error{
		func() error { return e.gpu.clear(e.target, len(from)) },
		func() error { return e.gpu.copyTo(e.target, from) },
		func() error { return e.gpu.copyFrom(back, e.target) },
	} {
		if err := step(); err != nil {
			e.Fatal(err)
		}
	}
	if !bytes.Equal(back, e.bytes[len(from)]) {
		e.Errorf("other bytes on the GPU than in the block of %d MiB", len(from)/mib)
	}
}

// rounds is how often each way is timed, in turn with the others.
const rounds = 21

// way is one to get a block to the GPU.
type way struct {
	name string
	do   func() error
	took []time.Duration
}

// race times the ways in turn and logs the medians.
func (e *env) race(size int, ways []*way) {
	e.Helper()
	for range rounds {
		for _, w := range ways {
			begin := time.Now()
			if err := w.do(); err != nil {
				e.Fatalf("%s: %v", w.name, err)
			}
			w.took = append(w.took, time.Since(begin))
		}
	}
	for _, w := range ways {
		slices.Sort(w.took)
		median := w.took[len(w.took)/2]
		e.Logf("%3d MiB  %-34s %8.1f us  %6.2f GB/s (best %.2f)", size/mib, w.name, float64(median.Nanoseconds())/1e3,
			float64(size)/float64(median.Nanoseconds()), float64(size)/float64(w.took[0].Nanoseconds()))
	}
}

// TestHostToDevice measures the ways of a block of the mount to the GPU. The first is what
// the hardware can do: the bytes are in pinned memory of the driver already.
func TestHostToDevice(t *testing.T) {
	e := newEnv(t)
	for _, size := range sizes() {
		staging := e.pinned(size)
		mapped := e.mapBlock(size, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
		copy(staging, mapped)
		e.arrives(staging)
		e.arrives(mapped)
		ways := []*way{
			{name: "pinned memory", do: func() error { return e.gpu.copyTo(e.target, staging) }},
			{name: "read(2) to pinned memory, and copy", do: func() error {
				if err := readInto(staging, e.path(size)); err != nil {
					return err
				}
				return e.gpu.copyTo(e.target, staging)
			}},
			{name: "mapping, not registered", do: func() error { return e.gpu.copyTo(e.target, mapped) }},
		}
		if registered := e.registered(size); registered != nil {
			e.arrives(registered)
			ways = append(ways, &way{name: "mapping, registered before", do: func() error { return e.gpu.copyTo(e.target, registered) }},
				&way{name: "map, register, copy, and undo", do: func() error { return e.whole(size) }})
		}
		e.race(size, ways)
		e.arrives(staging)
	}
	if !e.gpu.readOnly {
		harness.Skip(t, "%s cannot register what is mapped for reading alone: the zero-copy ways were not measured", e.gpu.name)
	}
}

// readInto reads a block as an engine does.
func readInto(buf []byte, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := f.Read(buf)
	if err == nil && n < len(buf) {
		err = fmt.Errorf("read %d bytes of %d", n, len(buf))
	}
	return err
}

// registered returns a mapping whose pages the GPU reads by itself; nil if it cannot.
func (e *env) registered(size int) []byte {
	e.Helper()
	if !e.gpu.readOnly {
		return nil
	}
	m := e.mapBlock(size, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err := e.gpu.register(m, registerReadOnly); err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() { note(e.T, e.gpu.unregister(m)) })
	return m
}

// whole does everything for one block.
func (e *env) whole(size int) error {
	f, err := os.Open(e.path(size))
	if err != nil {
		return err
	}
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return err
	}
	defer unix.Munmap(m) // Own memory: does not fail.
	if err := e.gpu.register(m, registerReadOnly); err != nil {
		return err
	}
	err = e.gpu.copyTo(e.target, m)
	if undo := e.gpu.unregister(m); err == nil {
		err = undo
	}
	return err
}

// TestRegisteredBlockIsRemoved shows that registered pages keep their bytes when their
// block is removed, another one comes in its place and the memory is filled anew.
func TestRegisteredBlockIsRemoved(t *testing.T) {
	e := newEnv(t)
	size := 16 * mib
	m := e.registered(size)
	if m == nil {
		harness.Skip(t, "%s cannot register what is mapped for reading alone", e.gpu.name)
	}
	if err := os.Remove(e.path(size)); err != nil {
		t.Fatal(err)
	}
	other := bytes.Repeat([]byte{7}, size)
	for i := range 40 { // more than the mount has room for
		if err := os.WriteFile(e.mount.Path(fmt.Sprint("other-", i)), other, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	e.arrives(m)
}

// TestPrivateMapping shows the way of a GPU that registers writable memory alone: a private
// mapping, whose pages the registration copies.
func TestPrivateMapping(t *testing.T) {
	e := newEnv(t)
	for _, size := range sizes() {
		m := e.mapBlock(size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
		begin := time.Now()
		if err := e.gpu.register(m, 0); err != nil {
			t.Fatal(err)
		}
		t.Logf("%3d MiB  registered in %v", size/mib, time.Since(begin))
		e.arrives(m)
		note(t, e.gpu.unregister(m))
	}
}
