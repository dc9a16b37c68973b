package mount

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

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
	readWhole  = harness.ReadBlock
	tierOf     = harness.TiersOf
	waitOnDisk = harness.WaitOnDisk
	within     = harness.Within
	diskMount  = harness.DiskMount
)

// row is one line of the contract.
type row struct {
	name string // "<priority> <property> (<clients>)"
	run  func(t *testing.T, e *env)
}

// env is where a row runs: a directory of its own on a shared mount.
type env struct {
	t     *testing.T
	d     *harness.Daemon
	dir   string
	other *harness.Actor
}

// runRows runs each row in a directory of its own. All share the mount.
func runRows(t *testing.T, d *harness.Daemon, rows []row) {
	for i, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			dir := d.Path(fmt.Sprintf("row%d", i))
			if err := unix.Mkdir(dir, 0o777); err != nil {
				t.Fatal(err)
			}
			r.run(t, &env{t: t, d: d, dir: dir})
		})
	}
}

// path returns a path in the row's directory.
func (e *env) path(elems ...string) string {
	return filepath.Join(append([]string{e.dir}, elems...)...)
}

// process returns another process, the same one each time.
func (e *env) process() *harness.Actor {
	if e.other == nil {
		e.other = harness.NewActor(e.t, nil)
	}
	return e.other
}

// aligned returns a copy of p that starts at a page boundary, as the buffers of
// engines do.
func aligned(t testing.TB, p []byte) []byte {
	t.Helper()
	if len(p) == 0 {
		return nil
	}
	b, err := unix.Mmap(-1, 0, len(p), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	copy(b, p)
	return b
}

// file is an open descriptor. Methods fail the test unless all bytes move.
type file struct {
	t      testing.TB
	fd     int
	closed bool
}

// open opens path or fails the test.
func open(t testing.TB, path string, flags int, mode uint32) *file {
	t.Helper()
	f, err := tryOpen(t, path, flags, mode)
	if err != nil {
		t.Fatalf("open %s with %#o: %v", filepath.Base(path), flags, err)
	}
	return f
}

func tryOpen(t testing.TB, path string, flags int, mode uint32) (*file, error) {
	f := &file{t: t, fd: -1}
	err := again(func() (err error) {
		f.fd, err = unix.Open(path, flags|unix.O_CLOEXEC, mode)
		return err
	})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if !f.closed {
			unix.Close(f.fd)
		}
	})
	return f, nil
}

func (f *file) close() {
	f.t.Helper()
	f.closed = true
	if err := unix.Close(f.fd); err != nil {
		f.t.Fatalf("close: %v", err)
	}
}

// write is one write(2); a short one fails the test.
func (f *file) write(p []byte) {
	f.t.Helper()
	n, err := unix.Write(f.fd, p)
	if err != nil || n != len(p) {
		f.t.Fatalf("write of %d bytes: got %d, %v", len(p), n, err)
	}
}

func (f *file) pwrite(p []byte, off int64) {
	f.t.Helper()
	n, err := unix.Pwrite(f.fd, p, off)
	if err != nil || n != len(p) {
		f.t.Fatalf("pwrite of %d bytes at %d: got %d, %v", len(p), off, n, err)
	}
}

// read is one read(2) into a page-aligned buffer of n bytes.
func (f *file) read(n int) []byte {
	f.t.Helper()
	b := aligned(f.t, make([]byte, n))
	got, err := unix.Read(f.fd, b)
	if err != nil {
		f.t.Fatalf("read of %d bytes: %v", n, err)
	}
	return b[:got]
}

func (f *file) pread(n int, off int64) []byte {
	f.t.Helper()
	b := make([]byte, n)
	got, err := unix.Pread(f.fd, b, off)
	if err != nil {
		f.t.Fatalf("pread of %d bytes at %d: %v", n, off, err)
	}
	return b[:got]
}

func (f *file) seek(off int64, whence int, want int64) {
	f.t.Helper()
	if got, err := unix.Seek(f.fd, off, whence); err != nil || got != want {
		f.t.Fatalf("lseek %d from %d: got %d, %v, want %d", off, whence, got, err, want)
	}
}

func (f *file) truncate(n int64) {
	f.t.Helper()
	if err := again(func() error { return unix.Ftruncate(f.fd, n) }); err != nil {
		f.t.Fatalf("ftruncate to %d: %v", n, err)
	}
}

func (f *file) stat() unix.Stat_t {
	f.t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		f.t.Fatalf("fstat: %v", err)
	}
	return st
}

func (f *file) wantSize(n int64) {
	f.t.Helper()
	if st := f.stat(); st.Size != n {
		f.t.Errorf("fstat size: got %d, want %d", st.Size, n)
	}
}

func stat(t testing.TB, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := again(func() error { return unix.Stat(path, &st) }); err != nil {
		t.Fatalf("stat %s: %v", filepath.Base(path), err)
	}
	return st
}

func wantSize(t testing.TB, path string, n int64) {
	t.Helper()
	if st := stat(t, path); st.Size != n {
		t.Errorf("size of %s: got %d, want %d", filepath.Base(path), st.Size, n)
	}
}

func mkdir(t testing.TB, path string) {
	t.Helper()
	if err := again(func() error { return unix.Mkdir(path, 0o777) }); err != nil {
		t.Fatalf("mkdir %s: %v", filepath.Base(path), err)
	}
}

func rename(t testing.TB, from, to string) {
	t.Helper()
	if err := again(func() error { return unix.Rename(from, to) }); err != nil {
		t.Fatalf("rename %s to %s: %v", filepath.Base(from), filepath.Base(to), err)
	}
}

func unlink(t testing.TB, path string) {
	t.Helper()
	if err := again(func() error { return unix.Unlink(path) }); err != nil {
		t.Fatalf("unlink %s: %v", filepath.Base(path), err)
	}
}

// put writes path in place: O_TRUNC, one write, close.
func put(t testing.TB, path string, p []byte) {
	t.Helper()
	f := open(t, path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644)
	f.write(p)
	f.close()
}

// store writes a temporary file next to path and renames it.
func store(t testing.TB, path string, p []byte) {
	t.Helper()
	tmp := path + ".tmp"
	put(t, tmp, p)
	rename(t, tmp, path)
}

// wantBytes reads path with one read(2) and compares.
func wantBytes(t testing.TB, path string, want []byte) {
	t.Helper()
	f := open(t, path, unix.O_RDONLY, 0)
	f.wantSize(int64(len(want)))
	got := f.read(len(want) + 1)
	f.close()
	sameBytes(t, filepath.Base(path), got, want)
}

func sameBytes(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	if len(got) != len(want) {
		t.Errorf("%s: got %d bytes, want %d", what, len(got), len(want))
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Errorf("%s: byte %d of %d: got %#x, want %#x", what, i, len(want), got[i], want[i])
			return
		}
	}
}

// wantErrno fails unless err is one of want; nil, as a want, is success.
func wantErrno(t testing.TB, what string, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if err == w || w != nil && errors.Is(err, w) {
			return
		}
	}
	t.Errorf("%s: got %s, want %s", what, errnoName(err), joinErrnos(want))
}

func errnoName(err error) string {
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return unix.ErrnoName(e)
	}
	return fmt.Sprint(err)
}

func joinErrnos(errs []error) string {
	var s []string
	for _, e := range errs {
		s = append(s, errnoName(e))
	}
	return strings.Join(s, " or ")
}

// wantAbsent fails unless stat, access and open of path all say ENOENT.
func wantAbsent(t testing.TB, a *harness.Actor, path string) {
	t.Helper()
	name := filepath.Base(path)
	_, err := a.Stat(path)
	wantErrno(t, "stat "+name, err, unix.ENOENT)
	wantErrno(t, "access "+name, a.Access(path, unix.F_OK), unix.ENOENT)
	fd, err := a.Open(path, unix.O_RDONLY, 0)
	wantErrno(t, "open "+name, err, unix.ENOENT)
	if err == nil {
		a.Close(fd)
	}
}

// wantSeen fails unless a sees path with exactly these bytes.
func wantSeen(t testing.TB, a *harness.Actor, path string, want []byte) {
	t.Helper()
	name := filepath.Base(path)
	st, err := a.Stat(path)
	if err != nil {
		t.Errorf("stat %s: %s", name, errnoName(err))
	} else if st.Size != int64(len(want)) {
		t.Errorf("stat %s: size %d, want %d", name, st.Size, len(want))
	}
	fd, err := a.Open(path, unix.O_RDONLY, 0)
	if err != nil {
		t.Errorf("open %s: %s", name, errnoName(err))
		return
	}
	defer a.Close(fd)
	got, err := a.Pread(fd, len(want)+1, 0)
	if err != nil {
		t.Errorf("read %s: %s", name, errnoName(err))
		return
	}
	sameBytes(t, name, got, want)
}

// must fails the test if err is not nil.
func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %s", what, errnoName(err))
	}
}

func listNames(t testing.TB, dir string) []string {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

// hash64 returns the 64 hexadecimal digits of a block's hash.
func hash64(i int) string {
	b := pattern(fmt.Sprintf("hash %d", i), 32)
	return fmt.Sprintf("%x", b)
}
