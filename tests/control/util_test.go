package control

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// What tests of mounts have in common.
var (
	pattern    = harness.Pattern
	again      = harness.Again
	readBlock  = harness.ReadBlock
	tierOf     = harness.TiersOf
	waitOnDisk = harness.WaitOnDisk
	within     = harness.Within
	diskMount  = harness.DiskMount
)

func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func errnoName(err error) string {
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return unix.ErrnoName(e)
	}
	return fmt.Sprint(err)
}

// hash returns the i-th of a sequence of hashes, in hexadecimal.
func hash(i int) string {
	h := fnv.New128a()
	fmt.Fprint(h, "hash", i)
	return fmt.Sprintf("%x", h.Sum(nil))
}

func hashes(n int) []string {
	hs := make([]string, n)
	for i := range hs {
		hs[i] = hash(i)
	}
	return hs
}

// open opens a file and closes it with the test: no other code may, because the number could be
// another file's by then.
func open(t testing.TB, path string, flags int) int {
	t.Helper()
	fd, err := openFile(path, flags)
	if err != nil {
		t.Fatalf("open %s: %v", filepath.Base(path), err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func openFile(path string, flags int) (fd int, err error) {
	err = again(func() (err error) {
		fd, err = unix.Open(path, flags|unix.O_CLOEXEC, 0o644)
		return err
	})
	return fd, err
}

// put writes a file in place, with the directories above it.
func put(t testing.TB, path string, b []byte) {
	t.Helper()
	must(t, "mkdir", os.MkdirAll(filepath.Dir(path), 0o755))
	fd, err := openFile(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC)
	must(t, "open "+path, err)
	defer func() { must(t, "close", unix.Close(fd)) }()
	if n, err := unix.Write(fd, b); err != nil || n != len(b) {
		t.Fatalf("write %s: %d bytes of %d, %v", path, n, len(b), err)
	}
}

// store writes a block as vLLM does: under a temporary name, then renamed.
func store(t testing.TB, path string, b []byte) {
	t.Helper()
	tmp := path + ".tmp"
	put(t, tmp, b)
	must(t, "rename", again(func() error { return unix.Rename(tmp, path) }))
}

func unlink(t testing.TB, path string) {
	t.Helper()
	must(t, "unlink", again(func() error { return unix.Unlink(path) }))
}

func wantBytes(t testing.TB, path string, want []byte) {
	t.Helper()
	got, err := readBlock(path)
	if err != nil {
		t.Errorf("read %s: %s", filepath.Base(path), errnoName(err))
	} else if !bytes.Equal(got, want) {
		t.Errorf("read %s: %d bytes, not the %d that were written", filepath.Base(path), len(got), len(want))
	}
}

// wantMiss fails unless an open of path is a miss.
func wantMiss(t testing.TB, path string) {
	t.Helper()
	fd, err := openFile(path, unix.O_RDONLY)
	if err == nil {
		unix.Close(fd)
	}
	if err != unix.ENOENT {
		t.Errorf("open %s: got %s, want ENOENT", filepath.Base(path), errnoName(err))
	}
}

func getxattr(path, name string) (string, error) {
	buf := make([]byte, 4096)
	var n int
	err := again(func() (err error) {
		n, err = unix.Getxattr(path, name, buf)
		return err
	})
	return string(buf[:max(n, 0)]), err
}

func setxattr(t testing.TB, path, name, value string) {
	t.Helper()
	must(t, "setxattr "+name, again(func() error { return unix.Setxattr(path, name, []byte(value), 0) }))
}

// receive returns the next value of a channel, or fails the test.
func receive[T any](t testing.TB, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v, ok := <-ch:
		if !ok {
			t.Fatalf("%s: nothing more comes", what)
		}
		return v
	case <-time.After(harness.Deadline):
		t.Fatalf("%s: nothing after %v", what, harness.Deadline)
	}
	panic("unreachable")
}

// kvfs runs a command that must succeed and returns what it printed.
func kvfs(t testing.TB, args ...string) string {
	t.Helper()
	stdout, stderr, code := harness.Kvfs(t, args...)
	if code != 0 {
		t.Fatalf("kvfs %q: exit code %d\n%s%s", args, code, stdout, stderr)
	}
	return stdout
}

// coldBlocks stores blocks of size bytes below the mount and leaves them on disk only.
// The bytes of each follow from its key.
func coldBlocks(t testing.TB, d *harness.Daemon, size int, keys ...string) {
	t.Helper()
	var paths []string
	for _, key := range keys {
		paths = append(paths, d.Path(key))
		store(t, d.Path(key), pattern(key, size))
	}
	waitOnDisk(t, paths...)
	kvfs(t, "evict", "--tier", "memory", "--all", d.Dir)
	for _, p := range paths {
		if got := tierOf(p); got != "disk" {
			t.Fatalf("%s: in %q, want it on disk alone", p, got)
		}
	}
}

// keysOf returns the paths below the mount of hashes in a group.
func keysOf(group string, hashes []string) []string {
	keys := make([]string, len(hashes))
	for i, h := range hashes {
		keys[i] = group + "/" + h
	}
	return keys
}
