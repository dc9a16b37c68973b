package harness

import (
	"crypto/sha256"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Pattern returns n bytes that follow from name, no two 8-byte words alike in practice. Those of a smaller n begin likewise.
func Pattern(name string, n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8(sha256.Sum256([]byte(name))).Read(b) // never fails
	return b
}

// Again calls fn until it fails with something else than EINTR: signals of the Go runtime are no concern of tests.
func Again(fn func() error) error {
	for {
		if err := fn(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// ReadBlock reads a file of its size at open. The error is an errno.
func ReadBlock(path string) ([]byte, error) {
	fd := -1
	err := Again(func() (err error) {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := Again(func() error { return unix.Fstat(fd, &st) }); err != nil {
		return nil, err
	}
	b := make([]byte, st.Size)
	for off := 0; off < len(b); {
		var n int
		err := Again(func() (err error) {
			n, err = unix.Pread(fd, b[off:], int64(off))
			return err
		})
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return b[:off], nil
		}
		off += n
	}
	return b, nil
}

// TiersOf returns the tiers that hold a block, with commas between them, or "" if there is no such block.
func TiersOf(path string) string {
	buf := make([]byte, 64)
	var n int
	err := Again(func() (err error) {
		n, err = unix.Getxattr(path, "user.kvfs.tier", buf)
		return err
	})
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

// WaitOnDisk waits until the SSD tier holds each block.
func WaitOnDisk(tb testing.TB, paths ...string) {
	tb.Helper()
	for _, p := range paths {
		Poll(tb, filepath.Base(p)+" is on disk", func() bool {
			return slices.Contains(strings.Split(TiersOf(p), ","), "disk")
		})
	}
}

// Within fails the test if fn does not return in time. It is for what must not hang.
func Within(tb testing.TB, what string, fn func()) {
	tb.Helper()
	done := make(chan struct{})
	go func() { // ends with fn; after a failure perhaps with the mount only
		defer close(done)
		fn()
	}()
	Poll(tb, what, func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
}

// DiskMount starts a daemon with an SSD tier of 1 GiB, unless opts say otherwise.
func DiskMount(tb testing.TB, opts Options) *Daemon {
	tb.Helper()
	KvfsOnly(tb, "an SSD tier")
	if opts.Disk == "" {
		opts.Disk = "1GiB"
	}
	return Mount(tb, opts)
}

// HeapBytes returns what is live on the heap of this process.
func HeapBytes() int64 {
	runtime.GC()
	runtime.GC() // the first one may have been under way
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
