package faultio_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/directio/faultio"
)

const size = 4 * directio.Alignment

// setup opens a decorated engine, a file with known content, and memory.
func setup(t *testing.T, rule faultio.Rule) (e *faultio.Engine, f *directio.File, content, mem []byte) {
	t.Helper()
	inner, err := directio.Open(t.Context(), directio.Options{Engine: directio.EnginePread})
	if err != nil {
		t.Fatal(err)
	}
	e = faultio.New(inner, rule)
	content = make([]byte, size)
	rand.NewChaCha8([32]byte{1}).Read(content)
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err = directio.OpenFile(path, os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	mem, err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.Release()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := errors.Join(e.Close(ctx), f.Close(), unix.Munmap(mem)); err != nil {
			t.Error(err)
		}
	})
	return e, f, content, mem
}

// TestFaults shows what each fault does to a read, a write and a sync, and that the op
// beside it in the same Do is done.
func TestFaults(t *testing.T) {
	const half = size / 2
	flip := func(p []byte, bit int) []byte {
		p = bytes.Clone(p)
		p[bit/8] ^= 1 << (bit % 8)
		return p
	}
	torn := func(written, old []byte) []byte { return append(bytes.Clone(written[:half]), old[half:]...) }
	same := func(written, _ []byte) []byte { return written }
	keep := func(_, old []byte) []byte { return old }
	for _, c := range []struct {
		name  string
		kind  directio.Kind
		fault faultio.Fault
		n     int
		err   error
		after func(written, old []byte) []byte // content of the file after a write
	}{
		{"read error", directio.Read, faultio.Fault{Err: unix.EIO}, 0, unix.EIO, nil},
		{"write error", directio.Write, faultio.Fault{Err: unix.ENOSPC}, 0, unix.ENOSPC, keep},
		{"sync error", directio.Sync, faultio.Fault{Err: unix.EIO}, 0, unix.EIO, nil},
		{"short read", directio.Read, faultio.Fault{Short: true, ShortBytes: 5000}, 4096, io.ErrUnexpectedEOF, nil},
		{"empty read", directio.Read, faultio.Fault{Short: true}, 0, io.ErrUnexpectedEOF, nil},
		{"short write", directio.Write, faultio.Fault{Short: true, ShortBytes: half}, half, io.ErrShortWrite, torn},
		{"flipped read", directio.Read, faultio.Fault{Flip: true, FlipBit: 40000}, size, nil, nil},
		{"flipped write", directio.Write, faultio.Fault{Flip: true, FlipBit: 7}, size, nil,
			func(written, _ []byte) []byte { return flip(written, 7) }},
		{"lost write", directio.Write, faultio.Fault{Drop: true}, size, nil, keep},
		{"torn write", directio.Write, faultio.Fault{Torn: true}, size, nil, torn},
		{"late write", directio.Write, faultio.Fault{Delay: time.Millisecond}, size, nil, same},
		{"lost sync", directio.Sync, faultio.Fault{Drop: true}, 0, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, f, content, mem := setup(t, nil)
			written := make([]byte, size)
			if c.kind == directio.Write {
				rand.NewChaCha8([32]byte{2}).Read(written)
				copy(mem, written)
			}
			e.SetRule(faultio.First(
				faultio.Nth(c.kind, 2, faultio.Fault{Err: unix.EBADF}), // comes to nothing
				faultio.Nth(c.kind, 1, c.fault),
			))
			ops := []directio.Op{{Kind: c.kind, File: f, Mem: mem}}
			if err := e.Do(t.Context(), ops); !errors.Is(err, c.err) || ops[0].N != c.n {
				t.Errorf("%d, %v, want %d, %v", ops[0].N, err, c.n, c.err)
			}
			if e.Injected() != 1 {
				t.Errorf("%d injected", e.Injected())
			}
			if c.kind == directio.Read {
				want := content
				if c.fault.Flip {
					want = flip(content, c.fault.FlipBit)
				}
				if !bytes.Equal(mem[:c.n], want[:c.n]) {
					t.Error("read other bytes")
				}
			}
			if c.after != nil {
				if got, _ := os.ReadFile(f.Name()); !bytes.Equal(got, c.after(written, content)) {
					t.Error("the file holds other bytes")
				}
				if !bytes.Equal(mem, written) {
					t.Error("the memory of the write changed")
				}
			}
		})
	}
}

// TestBeside shows that a fault leaves the other ops of its Do alone, and that From
// goes on until the rule is replaced.
func TestBeside(t *testing.T) {
	e, f, content, mem := setup(t, faultio.From(directio.Read, 2, faultio.Fault{Err: unix.EIO}))
	page := func(i int) directio.Op {
		return directio.Op{Kind: directio.Read, File: f, Mem: mem[i*4096:][:4096], Off: int64(i * 4096)}
	}
	ops := []directio.Op{page(0), page(1), page(2), {Kind: directio.Sync, File: f}}
	if err := e.Do(t.Context(), ops); !errors.Is(err, unix.EIO) {
		t.Errorf("Do: %v", err)
	}
	for i, op := range ops {
		if bad := i == 1 || i == 2; bad != (op.Err != nil) {
			t.Errorf("op %d: %v", i, op.Err)
		}
	}
	e.SetRule(nil)
	if err := e.Do(t.Context(), ops); err != nil || !bytes.Equal(mem[:3*4096], content[:3*4096]) {
		t.Errorf("without a rule: %v", err)
	}
}

// TestStuck shows that a stuck op stays until Release whatever its context says, that
// Stuck and Close tell so, and that its memory is written only then.
func TestStuck(t *testing.T) {
	e, f, content, mem := setup(t, faultio.Nth(directio.Read, 1, faultio.Fault{Stuck: true}))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Do(ctx, []directio.Op{{Kind: directio.Read, File: f, Mem: mem}}) }()
	for deadline := time.Now().Add(time.Minute); e.StuckOps() == 0; {
		if time.Now().After(deadline) {
			t.Fatal("no op is stuck")
		}
		time.Sleep(time.Millisecond) // reason: polls a state that has no event
	}
	if e.Stuck() <= 0 {
		t.Errorf("Stuck: %v", e.Stuck())
	}
	e.Release()
	if err := <-done; err != nil || !bytes.Equal(mem, content) {
		t.Errorf("released: %v", err)
	}
	if e.Stuck() != 0 {
		t.Errorf("Stuck: %v with nothing in flight", e.Stuck())
	}

	e.SetRule(faultio.From(directio.Write, 1, faultio.Fault{Stuck: true}))
	go func() { done <- e.Do(ctx, []directio.Op{{Kind: directio.Write, File: f, Mem: mem}}) }()
	for e.StuckOps() == 0 {
		time.Sleep(time.Millisecond) // reason: polls a state that has no event
	}
	cancel()
	if err := e.Close(ctx); !errors.Is(err, context.Canceled) || len(done) > 0 {
		t.Errorf("Close: %v; Do has returned: %v", err, len(done) > 0)
	}
	if err := e.Do(t.Context(), []directio.Op{{Kind: directio.Sync, File: f}}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Do after Close: %v", err)
	}
	e.Release()
	if err := <-done; err == nil {
		t.Error("a write went to a closed engine")
	}
	if e.Name() != directio.EnginePread || e.Stats().Reads != 1 {
		t.Errorf("%s, %+v", e.Name(), e.Stats())
	}
}

// TestStart: an op that is started fails by the same rule as one that is waited for.
func TestStart(t *testing.T) {
	e, f, content, mem := setup(t, faultio.Nth(directio.Read, 2, faultio.Fault{Err: unix.EIO}))
	for _, want := range []error{nil, unix.EIO, nil} {
		ops := []directio.Op{{Kind: directio.Read, File: f, Mem: mem[:directio.Alignment]}}
		done := make(chan struct{})
		e.Start(ops, func() { close(done) })
		select {
		case <-done:
		case <-time.After(2 * time.Minute):
			t.Fatal("done was not called")
		}
		if !errors.Is(ops[0].Err, want) {
			t.Errorf("got %v, want %v", ops[0].Err, want)
		}
		if want == nil && !bytes.Equal(mem[:directio.Alignment], content[:directio.Alignment]) {
			t.Error("read other bytes")
		}
	}
	if got := e.Injected(); got != 1 {
		t.Errorf("%d faults, want 1", got)
	}
}
