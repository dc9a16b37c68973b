package mount

import (
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestNamespace is section 3.1 of the contract.
func TestNamespace(t *testing.T) {
	d := harness.Mount(t, harness.Options{})
	runRows(t, d, slices.Concat(lookupRows, renameRows, nameRows, otherNameRows))
}

var lookupRows = []row{
	{"P0 a component that is a file: ENOTDIR; absent parents: ENOENT (vLLM)", func(t *testing.T, e *env) {
		store(t, e.path("f"), []byte("x"))
		var st unix.Stat_t
		wantErrno(t, "stat f/x", unix.Stat(e.path("f", "x"), &st), unix.ENOTDIR)
		wantErrno(t, "stat a/b/c/d", unix.Stat(e.path("a/b/c/d"), &st), unix.ENOENT)
		_, err := tryOpen(t, e.path("a/b"), unix.O_CREAT|unix.O_WRONLY, 0o644)
		wantErrno(t, "create a/b", err, unix.ENOENT)
		wantErrno(t, "mkdir a/b", unix.Mkdir(e.path("a/b"), 0o777), unix.ENOENT)
	}},
	{"P0 mkdir -p by many threads and processes at once (vLLM ranks)", func(t *testing.T, e *env) {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := os.MkdirAll(e.path("a/b/c/d"), 0o777); err != nil {
					t.Errorf("mkdir -p: %v", err)
				}
			})
		}
		for _, p := range []string{"a", "a/b", "a/b/c", "a/b/c/d"} {
			wantErrno(t, "mkdir "+p, e.process().Mkdir(e.path(p), 0o777), nil, unix.EEXIST)
		}
		wg.Wait()
		if st, err := e.process().Stat(e.path("a/b/c/d")); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			t.Errorf("stat: mode %#o, %v; want a directory", st.Mode, err)
		}
	}},
	{"P1 directory mtime moves with its entries (pvc_evictor)", func(t *testing.T, e *env) {
		mkdir(t, e.path("dir"))
		past := []unix.Timespec{{Sec: 1000}, {Sec: 1000}}
		set := func() {
			t.Helper()
			must(t, "utimensat", unix.UtimesNanoAt(unix.AT_FDCWD, e.path("dir"), past, 0))
			if st := stat(t, e.path("dir")); st.Mtim.Sec != 1000 {
				t.Fatalf("mtime %d after utimensat, want 1000", st.Mtim.Sec)
			}
		}
		for _, step := range []struct {
			name string
			run  func()
		}{
			{"store", func() { store(t, e.path("dir/block"), []byte("x")) }},
			{"rename", func() { rename(t, e.path("dir/block"), e.path("dir/block2")) }},
			{"unlink", func() { unlink(t, e.path("dir/block2")) }},
			{"mkdir", func() { mkdir(t, e.path("dir/sub")) }},
			{"rmdir", func() { must(t, "rmdir", unix.Rmdir(e.path("dir/sub"))) }},
		} {
			set()
			step.run()
			if st := stat(t, e.path("dir")); st.Mtim.Sec == 1000 {
				t.Errorf("mtime unchanged by %s", step.name)
			}
		}
	}},
}

var renameRows = []row{
	{"P2 renameat2 NOREPLACE and EXCHANGE work or fail cleanly (nobody)", func(t *testing.T, e *env) {
		store(t, e.path("a"), []byte("a"))
		store(t, e.path("b"), []byte("bb"))
		at := unix.AT_FDCWD
		err := unix.Renameat2(at, e.path("a"), at, e.path("b"), unix.RENAME_NOREPLACE)
		wantErrno(t, "NOREPLACE", err, unix.EEXIST, unix.EINVAL, unix.ENOSYS)
		err = unix.Renameat2(at, e.path("a"), at, e.path("b"), unix.RENAME_EXCHANGE)
		wantErrno(t, "EXCHANGE", err, nil, unix.EINVAL, unix.ENOSYS)
		a, b := "a", "bb"
		if err == nil {
			a, b = b, a
		}
		wantBytes(t, e.path("a"), []byte(a))
		wantBytes(t, e.path("b"), []byte(b))
	}},
}
