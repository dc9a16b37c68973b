package mount

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestNamespace is section 3.1 of the contract, but for directories of 100,000
// entries (TestReaddir).
func TestNamespace(t *testing.T) {
	d := harness.Mount(t, harness.Options{})
	runRows(t, d, slices.Concat(lookupRows, renameRows, unlinkRows, nameRows, otherNameRows))
}

var lookupRows = []row{
	{"P0 stat, access and open of absent and present names (all)", func(t *testing.T, e *env) {
		for _, a := range []*harness.Actor{harness.Self(), e.process()} {
			p := e.path(fmt.Sprintf("block-%d", a.Pid))
			wantAbsent(t, a, p)
			store(t, p, []byte("x"))
			wantErrno(t, "access F_OK", a.Access(p, unix.F_OK), nil)
			wantErrno(t, "access R_OK", a.Access(p, unix.R_OK), nil)
			wantErrno(t, "access W_OK", a.Access(p, unix.W_OK), nil)
			wantSeen(t, a, p, []byte("x"))
			unlink(t, p)
			wantAbsent(t, a, p)
		}
	}},
	{"P0 a name that was absent a moment ago is seen once stored (vLLM, several instances)", func(t *testing.T, e *env) {
		for i := range 50 {
			p := e.path(fmt.Sprint(i))
			wantAbsent(t, e.process(), p)
			wantAbsent(t, harness.Self(), p)
			must(t, "write", e.process().WriteFile(p, []byte("y")))
			wantSeen(t, harness.Self(), p, []byte("y"))
			must(t, "unlink", e.process().Unlink(p))
			wantAbsent(t, harness.Self(), p)
		}
	}},
	{"P0 a component that is a file: ENOTDIR; absent parents: ENOENT (vLLM)", func(t *testing.T, e *env) {
		store(t, e.path("f"), []byte("x"))
		var st unix.Stat_t
		wantErrno(t, "stat f/x", unix.Stat(e.path("f", "x"), &st), unix.ENOTDIR)
		wantErrno(t, "stat a/b/c/d", unix.Stat(e.path("a/b/c/d"), &st), unix.ENOENT)
		_, err := tryOpen(t, e.path("a/b"), unix.O_CREAT|unix.O_WRONLY, 0o644)
		wantErrno(t, "create a/b", err, unix.ENOENT)
		wantErrno(t, "mkdir a/b", unix.Mkdir(e.path("a/b"), 0o777), unix.ENOENT)
	}},
	{"P0 directories nest at least 12 deep, mkdir of an existing one is EEXIST (vLLM, llm-d, GDS)", func(t *testing.T, e *env) {
		dir := e.dir
		for i := range 12 {
			dir += fmt.Sprintf("/level%d", i)
			mkdir(t, dir)
			wantErrno(t, "mkdir again", unix.Mkdir(dir, 0o777), unix.EEXIST)
			if st := stat(t, dir); st.Mode != unix.S_IFDIR|0o755 {
				t.Errorf("mode of level %d: got %#o, want %#o", i, st.Mode, unix.S_IFDIR|0o755)
			}
		}
		store(t, dir+"/block", pattern("deep", 5000))
		wantBytes(t, dir+"/block", pattern("deep", 5000))
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
	{"P0 256 buckets made at start-up (SGLang NIXL)", func(t *testing.T, e *env) {
		for i := range 256 {
			mkdir(t, e.path(fmt.Sprintf("%02x", i)))
		}
		if got := len(listNames(t, e.dir)); got != 256 {
			t.Errorf("got %d names, want 256", got)
		}
	}},
	{"P0 a directory at the root of the mount is the client's to make (all)", func(t *testing.T, e *env) {
		dir := e.d.Path("client-made")
		mkdir(t, dir)
		store(t, dir+"/block", []byte("z"))
		wantBytes(t, dir+"/block", []byte("z"))
		store(t, e.d.Path("file-at-root.bin"), []byte("empty group"))
		wantBytes(t, e.d.Path("file-at-root.bin"), []byte("empty group"))
	}},
	{"P1 rmdir: ENOTEMPTY, then gone; empty directories stay (pvc_evictor)", func(t *testing.T, e *env) {
		mkdir(t, e.path("dir"))
		store(t, e.path("dir/block"), []byte("x"))
		wantErrno(t, "rmdir of a full directory", unix.Rmdir(e.path("dir")), unix.ENOTEMPTY)
		unlink(t, e.path("dir/block"))
		if st := stat(t, e.path("dir")); st.Mode&unix.S_IFMT != unix.S_IFDIR {
			t.Errorf("mode of the empty directory: %#o", st.Mode)
		}
		wantErrno(t, "rmdir", unix.Rmdir(e.path("dir")), nil)
		wantAbsent(t, harness.Self(), e.path("dir"))
		wantErrno(t, "rmdir again", unix.Rmdir(e.path("dir")), unix.ENOENT)
		store(t, e.path("file"), nil)
		wantErrno(t, "rmdir of a file", unix.Rmdir(e.path("file")), unix.ENOTDIR)
		mkdir(t, e.path("dir"))
		wantErrno(t, "unlink of a directory", unix.Unlink(e.path("dir")), unix.EISDIR)
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
	{"P0 rename replaces, in one directory (all temp+rename clients)", func(t *testing.T, e *env) {
		store(t, e.path("b"), pattern("old", 3*mib))
		r := open(t, e.path("b"), unix.O_RDONLY, 0)
		store(t, e.path("b"), pattern("new", 2*mib))
		wantBytes(t, e.path("b"), pattern("new", 2*mib))
		wantSeen(t, e.process(), e.path("b"), pattern("new", 2*mib))
		sameBytes(t, "the old handle", r.read(4*mib), pattern("old", 3*mib))
		r.wantSize(3 * mib)
		if got := listNames(t, e.dir); !slices.Equal(got, []string{"b"}) {
			t.Errorf("names: got %q, want b only", got)
		}
	}},
	{"P0 rename keeps the inode of the source (kernel)", func(t *testing.T, e *env) {
		put(t, e.path("a.tmp"), pattern("a", mib))
		f := open(t, e.path("a.tmp"), unix.O_RDONLY, 0)
		before := f.stat()
		rename(t, e.path("a.tmp"), e.path("a"))
		if st := stat(t, e.path("a")); st.Ino != before.Ino || f.stat().Ino != before.Ino {
			t.Errorf("inode: path %d, handle %d, want %d", st.Ino, f.stat().Ino, before.Ino)
		}
	}},
	{"P0 rename across directories (LMCache relative_tmp_dir)", func(t *testing.T, e *env) {
		mkdir(t, e.path("tmp"))
		put(t, e.path("tmp/x"), pattern("x", mib))
		rename(t, e.path("tmp/x"), e.path("x"))
		wantBytes(t, e.path("x"), pattern("x", mib))
		wantAbsent(t, e.process(), e.path("tmp/x"))
		mkdir(t, e.path("a"))
		mkdir(t, e.path("a/b"))
		rename(t, e.path("x"), e.path("a/b/x"))
		rename(t, e.path("a/b/x"), e.d.Path("x-at-root"))
		wantSeen(t, e.process(), e.d.Path("x-at-root"), pattern("x", mib))
	}},
	{"P0 rename of an absent file is ENOENT and leaves the target (LMCache FSConnector)", func(t *testing.T, e *env) {
		store(t, e.path("b"), []byte("b"))
		wantErrno(t, "rename", unix.Rename(e.path("none"), e.path("b")), unix.ENOENT)
		wantErrno(t, "rename into absent dir", unix.Rename(e.path("b"), e.path("no/b")), unix.ENOENT)
		wantBytes(t, e.path("b"), []byte("b"))
	}},
	{"P0 rename while open for writing; later writes land (llm-d)", func(t *testing.T, e *env) {
		f := open(t, e.path("b.tmp"), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o666)
		all := pattern("b", 3*mib)
		f.write(all[:2*mib])
		rename(t, e.path("b.tmp"), e.path("b"))
		wantSeen(t, e.process(), e.path("b"), all[:2*mib])
		wantBytes(t, e.path("b"), all[:2*mib])
		wantAbsent(t, e.process(), e.path("b.tmp"))
		f.write(all[2*mib:])
		f.close()
		wantSeen(t, e.process(), e.path("b"), all)
		wantBytes(t, e.path("b"), all)
	}},
	{"P0 rename of a file onto itself and onto directories (POSIX)", func(t *testing.T, e *env) {
		store(t, e.path("f"), []byte("f"))
		mkdir(t, e.path("d"))
		mkdir(t, e.path("d/sub"))
		rename(t, e.path("f"), e.path("f"))
		wantBytes(t, e.path("f"), []byte("f"))
		wantErrno(t, "file onto directory", unix.Rename(e.path("f"), e.path("d")), unix.EISDIR)
		wantErrno(t, "directory onto file", unix.Rename(e.path("d"), e.path("f")), unix.ENOTDIR)
		wantErrno(t, "directory into itself", unix.Rename(e.path("d"), e.path("d/sub/x")), unix.EINVAL)
	}},
	{"P1 rename of a directory takes its blocks along (pvc tools)", func(t *testing.T, e *env) {
		mkdir(t, e.path("old"))
		mkdir(t, e.path("old/sub"))
		for i := range 20 {
			store(t, e.path("old/sub", fmt.Sprint(i)), pattern(fmt.Sprint(i), 9000+i))
		}
		rename(t, e.path("old"), e.path("new"))
		for i := range 20 {
			wantBytes(t, e.path("new/sub", fmt.Sprint(i)), pattern(fmt.Sprint(i), 9000+i))
			wantSeen(t, e.process(), e.path("new/sub", fmt.Sprint(i)), pattern(fmt.Sprint(i), 9000+i))
		}
		wantAbsent(t, e.process(), e.path("old/sub/3"))
		mkdir(t, e.path("full"))
		store(t, e.path("full/x"), nil)
		wantErrno(t, "onto a full directory", unix.Rename(e.path("new"), e.path("full")), unix.ENOTEMPTY, unix.EEXIST)
		mkdir(t, e.path("empty"))
		wantErrno(t, "onto an empty directory", unix.Rename(e.path("new"), e.path("empty")), nil)
		wantBytes(t, e.path("empty/sub/7"), pattern("7", 9007))
	}},
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

var unlinkRows = []row{
	{"P0 unlink while open: the handle reads and writes on (Dynamo, vLLM disk)", func(t *testing.T, e *env) {
		f := open(t, e.path("x"), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
		f.write(pattern("x", mib))
		unlink(t, e.path("x"))
		wantAbsent(t, e.process(), e.path("x"))
		wantAbsent(t, harness.Self(), e.path("x"))
		sameBytes(t, "after unlink", f.pread(mib, 0), pattern("x", mib))
		f.pwrite(pattern("y", mib), mib)
		f.pwrite(pattern("z", 4096), 8192)
		f.wantSize(2 * mib)
		want := append(pattern("x", mib), pattern("y", mib)...)
		copy(want[8192:], pattern("z", 4096))
		sameBytes(t, "after writes", f.pread(2*mib, 0), want)
		f.truncate(100)
		f.wantSize(100)
		f.close()
		wantAbsent(t, e.process(), e.path("x"))
	}},
	{"P0 unlink of a committed block under a reader (evictors)", func(t *testing.T, e *env) {
		store(t, e.path("x"), pattern("x", 3*mib))
		f := open(t, e.path("x"), unix.O_RDONLY, 0)
		sameBytes(t, "head", f.read(mib), pattern("x", 3*mib)[:mib])
		must(t, "unlink", e.process().Unlink(e.path("x")))
		sameBytes(t, "tail", f.pread(2*mib, mib), pattern("x", 3*mib)[mib:])
		store(t, e.path("x"), pattern("new", mib))
		wantBytes(t, e.path("x"), pattern("new", mib))
		sameBytes(t, "old after new", f.pread(3*mib, 0), pattern("x", 3*mib))
	}},
	{"P0 O_EXCL: EEXIST for a committed, an open and another's name (vLLM, mkostemp)", func(t *testing.T, e *env) {
		excl := unix.O_CREAT | unix.O_EXCL | unix.O_WRONLY
		store(t, e.path("committed"), []byte("x"))
		_, err := tryOpen(t, e.path("committed"), excl, 0o600)
		wantErrno(t, "committed", err, unix.EEXIST)
		open(t, e.path("open"), excl, 0o600)
		_, err = tryOpen(t, e.path("open"), excl, 0o600)
		wantErrno(t, "open", err, unix.EEXIST)
		_, err = e.process().Open(e.path("committed"), excl, 0o600)
		wantErrno(t, "committed, other process", err, unix.EEXIST)
		_, err = e.process().Open(e.path("x.tmp"), excl, 0o600)
		wantErrno(t, "fresh, other process", err, nil)
		mkdir(t, e.path("dir"))
		_, err = tryOpen(t, e.path("dir"), excl, 0o600)
		wantErrno(t, "directory", err, unix.EEXIST)
		_, err = tryOpen(t, e.path("dir"), unix.O_WRONLY, 0)
		wantErrno(t, "directory for writing", err, unix.EISDIR)
	}},
}
