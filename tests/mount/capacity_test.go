package mount

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// Capacity tests use blocks of 4 MiB on mounts of 64 MiB.
const (
	blockSize   = 4 * mib
	smallMemory = 64 * mib
)

func smallMount(t *testing.T, writeTimeout string) *harness.Daemon {
	t.Helper()
	harness.KvfsOnly(t, "capacity rules")
	return harness.Mount(t, harness.Options{
		MemorySize: "64MiB",
		Flags:      []string{"--mount-write-timeout", writeTimeout},
	})
}

// tryStore stores a block as vLLM does and returns the first error and the step
// that gave it. A short write fails the test: there must be none.
func tryStore(t *testing.T, path string, p []byte) (step string, err error) {
	t.Helper()
	tmp := path + ".tmp"
	f, err := tryOpen(t, tmp, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_TRUNC, 0o644)
	if err != nil {
		return "open", err
	}
	n, err := unix.Write(f.fd, p)
	if err == nil && n != len(p) {
		t.Errorf("%s: short write: %d of %d bytes", path, n, len(p))
	}
	f.closed = true
	if cerr := unix.Close(f.fd); err == nil && cerr != nil {
		unix.Unlink(tmp)
		return "close", cerr
	}
	if err != nil || n != len(p) {
		unix.Unlink(tmp)
		return "write", err
	}
	if err := again(func() error { return unix.Rename(tmp, path) }); err != nil {
		return "rename", err
	}
	return "", nil
}

// fillWithPins stores blocks and keeps each open for reading, from before its
// commit on, until a write fails, which it must with ENOSPC.
func fillWithPins(t *testing.T, dir string) []*file {
	t.Helper()
	var pins []*file
	for i := range 2 * smallMemory / blockSize {
		p := fmt.Sprintf("%s/pin%d", dir, i)
		f, err := tryOpen(t, p+".tmp", unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o644)
		if err == nil {
			pin := open(t, p+".tmp", unix.O_RDONLY, 0)
			if _, err = unix.Write(f.fd, pattern(p, blockSize)); err != nil {
				pin.close()
				unlink(t, p+".tmp")
			} else {
				pins = append(pins, pin)
			}
			f.closed = true
			unix.Close(f.fd)
		}
		if err != nil {
			wantErrno(t, "open or write", err, unix.ENOSPC)
			break
		}
		rename(t, p+".tmp", p)
	}
	if n := len(pins) * blockSize; n < smallMemory/2 || n > smallMemory {
		t.Fatalf("%d bytes of pinned blocks fit into %d", n, smallMemory)
	}
	return pins
}

// flood stores n bytes of blocks into dir; each store must succeed.
func flood(t *testing.T, dir string, n int) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for i := range n / blockSize {
		p := fmt.Sprintf("%s/flood%d", dir, i)
		if step, err := tryStore(t, p, pattern(p, blockSize)); err != nil {
			t.Fatalf("block %d: %s: %s", i, step, errnoName(err))
		}
	}
}

// TestFullOfPins is the row "out of space" of section 3.5: with memory full of
// open blocks, ENOSPC comes at open or with the first byte.
func TestFullOfPins(t *testing.T) {
	d := smallMount(t, "1s")
	dir := d.Path("group")
	mkdir(t, dir)
	pins := fillWithPins(t, dir)

	t.Run("P0 ENOSPC at open or first write, never later, and nothing is published", func(t *testing.T) {
		for i := range 3 {
			p := fmt.Sprintf("%s/over%d", dir, i)
			step, err := tryStore(t, p, pattern(p, blockSize))
			wantErrno(t, step, err, unix.ENOSPC)
			if step != "open" && step != "write" {
				t.Errorf("ENOSPC came at %q", step)
			}
			wantAbsent(t, harness.NewActor(t, nil), p)
			wantAbsent(t, harness.Self(), p)
		}
		if r := d.Status().Tier(t, "memory").Reason; !strings.Contains(r, "open") {
			t.Errorf("status says %q", r)
		}
		if !strings.Contains(d.Log(), "memory is full of files that are open") {
			t.Error("the log does not say it")
		}
	})
	t.Run("P0 fallocate: ENOSPC, both modes (numpy, Dynamo)", func(t *testing.T) {
		for _, mode := range []uint32{0, unix.FALLOC_FL_KEEP_SIZE} {
			f, err := tryOpen(t, fmt.Sprintf("%s/falloc%d.tmp", dir, mode), unix.O_RDWR|unix.O_CREAT, 0o644)
			if err == nil {
				err = again(func() error { return unix.Fallocate(f.fd, mode, 0, smallMemory/2) })
			}
			wantErrno(t, fmt.Sprintf("fallocate mode %d", mode), err, unix.ENOSPC)
		}
	})
	t.Run("P0 unlink and close make room at once", func(t *testing.T) {
		unlink(t, dir+"/pin0")
		pins[0].close()
		// The kernel tells the daemon of the close asynchronously, but a write
		// waits for room.
		p := dir + "/after-unlink"
		if step, err := tryStore(t, p, pattern(p, blockSize)); err != nil {
			t.Errorf("store: %s: %s", step, errnoName(err))
		}
	})
	t.Run("P0 with the pins gone, stores evict", func(t *testing.T) {
		for _, f := range pins[1:] {
			f.close()
		}
		flood(t, dir, 2*smallMemory)
	})
}
