package mount

import (
	"fmt"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestWritingNames shows that rename and unlink act on the one file of a name, at once, for good, and that nobody but its
// process can rename or unlink a private file.
func TestWritingNames(t *testing.T) { onStages(t, nameActs) }

// TestWritingMoved shows that a file which a process has closed is whole for another process that renames it next: the
// close is in the queue of requests before the rename of whoever waited for it. -count=50 makes 20,000 rounds of it on
// each kind of mount.
func TestWritingMoved(t *testing.T) {
	onStages(t, []act{{"sh -c 'echo x >f.tmp'; mv f.tmp f; cat f, by four shells", func(t *testing.T, s *stage) {
		out, code := s.script(`for f in a b c d; do
			for i in $(seq 100); do sh -c "echo $i >$f.tmp"; mv $f.tmp $f; [ "$(cat $f)" = $i ] || echo "$f: round $i"; done &
		done; wait`)
		if out != "" || code != 0 {
			t.Errorf("exit code %d, %s", code, out)
		}
	}}})
}

// begun makes a, a writer of a private file at path, over a block old if that is not nil.
func (s *stage) begun(path string, old, written []byte) (a *harness.Actor, fd int) {
	s.t.Helper()
	if old != nil {
		s.store(path, old)
	}
	a = s.actor()
	fd = s.open(a, path, wronly|creat|trunc)
	s.pwrite(a, fd, written, 0)
	return a, fd
}

// wantGone fails if a process finds path.
func (s *stage) wantGone(path string, all ...*harness.Actor) {
	s.t.Helper()
	for _, a := range append(all, s.process(), s.actor()) {
		wantAbsent(s.t, a, path)
	}
}

// renamed writes a and b in one process, which keeps b open, and a if keep is set, and renames a to b.
func (s *stage) renamed(a, b string, flags int, old, keep bool) {
	s.t.Helper()
	t := s.t
	if old {
		must(t, "old", s.process().WriteFile(b, []byte("old")))
	}
	if s.writer == nil {
		s.writer = s.actor()
	}
	w := s.writer
	fa := s.open(w, a, wronly|creat|trunc)
	s.pwrite(w, fa, []byte("AAAA"), 0)
	if !keep {
		must(t, "close", w.Close(fa))
	}
	fb := s.open(w, b, flags)
	s.pwrite(w, fb, []byte("BBBBBB"), 0)
	must(t, "rename", w.Rename(a, b))
	check := func(when string) {
		t.Helper()
		for who, r := range map[string]*harness.Actor{"its process": w, "another": s.process()} {
			if got, err := r.ReadFile(b); err != nil || string(got) != "AAAA" {
				t.Errorf("%s %s (flags %#o, old %v, a open %v): %s reads %q, %s", filepath.Base(b), when, flags, old, keep, who, got, errnoName(err))
			}
			wantAbsent(t, r, a)
		}
	}
	check("after the rename")
	must(t, "close", w.Close(fb))
	check("after the close of b")
	if keep {
		must(t, "close", w.Close(fa))
		check("after the close of a")
	}
}

var nameActs = []act{
	{"rename a b while the process has a private b open: b is a's content", func(t *testing.T, s *stage) {
		one := pattern("a", 100_000)
		for _, old := range [][]byte{nil, pattern("old", 5000)} {
			for _, how := range []string{"b", "b.tmp", "b.lock"} {
				a, b := s.path("a"), s.path(how)
				s.store(a, one)
				w, fd := s.begun(b, old, pattern("b", 200_000))
				must(t, "rename", w.Rename(a, b))
				wantSeen(t, w, b, one)
				wantSeen(t, w.OtherThread(), b, one)
				wantSeen(t, s.process(), b, one)
				s.pwrite(w, fd, []byte("later"), 0)
				must(t, "close", w.Close(fd))
				wantSeen(t, w, b, one)
				s.wantCommitted(b, one)
				s.wantGone(a, w)
				must(t, "unlink", w.Unlink(b))
				s.wantGone(b, w)
			}
		}
	}},
	{"rename a b in each order of opens, under each kind of name", func(t *testing.T, s *stage) {
		flags := []int{wronly | creat | trunc, rdwr | creat, rdwr | creat | excl, wronly | creat | atEnd}
		for i, old := range []bool{false, true} {
			for j, names := range [][2]string{{"a", "b"}, {"a.tmp", "b"}, {"a", "b.tmp"}, {"a.tmp", "b.tmp"}, {"a.lock", "b"}, {"a", "b.lock"}} {
				for k, flag := range flags {
					for l, keep := range []bool{false, true} { // a open
						dir := s.path(fmt.Sprint(i, j, k, l))
						must(t, "mkdir", s.process().Mkdir(dir, 0o777))
						if old && flag&excl != 0 {
							continue
						}
						s.renamed(filepath.Join(dir, names[0]), filepath.Join(dir, names[1]), flag, old, keep)
					}
				}
			}
		}
	}},
	{"rename over a name that another process writes: its close commits nothing", func(t *testing.T, s *stage) {
		p := s.path("x")
		a, fd := s.begun(p, pattern("old", mib), pattern("half", 70_000))
		s.store(p, pattern("new", mib/2))
		s.wantCommitted(p, pattern("new", mib/2))
		s.pwrite(a, fd, pattern("half", mib), 0)
		must(t, "close", a.Close(fd))
		s.wantCommitted(p, pattern("new", mib/2))
		wantSeen(t, a, p, pattern("new", mib/2))
	}},
	{"a private file is absent for others: they cannot unlink or rename it", func(t *testing.T, s *stage) {
		p := s.path("x")
		a, fd := s.begun(p, pattern("old", mib), pattern("new", 70_000))
		wantErrno(t, "unlink", s.process().Unlink(p), unix.ENOENT)
		wantErrno(t, "rename", s.process().Rename(p, s.path("y")), unix.ENOENT)
		must(t, "close", a.Close(fd))
		s.wantCommitted(p, pattern("new", 70_000))
	}},
	{"unlink of the caller's private file removes the name for all", func(t *testing.T, s *stage) {
		for _, old := range [][]byte{nil, pattern("old", mib)} {
			p := s.path("x")
			a, fd := s.begun(p, old, pattern("half", 70_000))
			must(t, "unlink", a.Unlink(p))
			s.wantGone(p, a)
			s.pwrite(a, fd, pattern("half", mib), 0)
			must(t, "close", a.Close(fd))
			s.wantGone(p, a)
			if names, err := s.process().Names(s.dir); err != nil || len(names) != 0 {
				t.Errorf("the directory has %q, %s", names, errnoName(err))
			}
		}
	}},
	{"unlink, then the name again: two files", func(t *testing.T, s *stage) {
		p := s.path("x")
		a, fd := s.begun(p, pattern("old", mib), pattern("first", 70_000))
		must(t, "unlink", a.Unlink(p))
		gd := s.open(a, p, wronly|creat|excl)
		s.pwrite(a, gd, pattern("second", 80_000), 0)
		wantSeen(t, a, p, pattern("second", 80_000))
		must(t, "close", a.Close(gd))
		s.wantCommitted(p, pattern("second", 80_000))
		must(t, "close", a.Close(fd))
		s.wantCommitted(p, pattern("second", 80_000))
	}},
	{"rename of the caller's private file takes the name away", func(t *testing.T, s *stage) {
		for _, old := range [][]byte{nil, pattern("old", mib)} {
			p, q := s.path("x"), s.path("y")
			a, fd := s.begun(p, old, pattern("new", 70_000))
			must(t, "rename", a.Rename(p, q))
			wantSeen(t, s.process(), q, pattern("new", 70_000))
			s.wantGone(p, a)
			s.pwrite(a, fd, []byte("later"), 70_000)
			must(t, "close", a.Close(fd))
			s.wantCommitted(q, patched(pattern("new", 70_000), []byte("later"), 70_000))
			s.wantGone(p, a)
			must(t, "unlink", s.process().Unlink(q))
			s.wantGone(q, a)
		}
	}},
	{"a file in place is renamed and removed as any other", func(t *testing.T, s *stage) {
		p, q := s.path("x"), s.path("y")
		s.store(p, pattern("old", mib))
		a, b := s.actor(), s.process()
		fd := s.open(a, p, rdwr)
		s.pwrite(a, fd, []byte("one"), 0)
		want := patched(pattern("old", mib), []byte("one"), 0)
		must(t, "rename", b.Rename(p, q))
		s.wantGone(p, a)
		wantSeen(t, a, q, want)
		s.pwrite(a, fd, []byte("two"), 100)
		want = patched(want, []byte("two"), 100)
		wantSeen(t, b, q, want)
		must(t, "unlink", b.Unlink(q))
		s.wantGone(q, a)
		s.pwrite(a, fd, []byte("three"), 200)
		s.readsAs("an unlinked file", a, fd, patched(want, []byte("three"), 200))
		must(t, "close", a.Close(fd))
		s.wantGone(q, a)
		s.wantGone(p, a)
	}},
	{"rm -rf of a directory in which others write works at once, for good", func(t *testing.T, s *stage) {
		dir := s.path("dir")
		must(t, "mkdir", s.process().Mkdir(dir, 0o777))
		must(t, "touch", s.process().WriteFile(filepath.Join(dir, "empty"), nil))
		type writer struct {
			a  *harness.Actor
			fd int
		}
		var writers []writer
		for _, name := range []string{"new", "x.tmp", "x.lock", "empty"} {
			a, fd := s.begun(filepath.Join(dir, name), nil, pattern(name, 70_000))
			writers = append(writers, writer{a, fd})
		}
		a, fd := s.begun(filepath.Join(dir, "block"), pattern("old", mib), pattern("half", 70_000))
		writers = append(writers, writer{a, fd})
		s.store(filepath.Join(dir, "inplace"), pattern("old", mib))
		a = s.actor()
		writers = append(writers, writer{a, s.open(a, filepath.Join(dir, "inplace"), rdwr)})
		if out, code := s.script("rm -rf " + dir); code != 0 {
			t.Errorf("rm -rf: exit code %d, %s", code, out)
		}
		wantAbsent(t, s.process(), dir)
		for _, w := range writers {
			if err := w.a.Close(w.fd); err != nil {
				t.Errorf("close: %s", errnoName(err))
			}
			wantAbsent(t, w.a, dir)
		}
		must(t, "mkdir", s.process().Mkdir(dir, 0o777))
		if names, err := s.process().Names(dir); err != nil || len(names) != 0 {
			t.Errorf("a new directory of that name has %q, %s", names, errnoName(err))
		}
	}},
	{"directories: nlink counts subdirectories, or is 1", func(t *testing.T, s *stage) {
		dir := s.path("dir")
		must(t, "mkdir", s.process().Mkdir(dir, 0o777))
		check := func(subdirs uint64) {
			t.Helper()
			st, err := s.process().Stat(dir)
			must(t, "stat", err)
			if st.Nlink != 1 && st.Nlink != 2+subdirs {
				t.Errorf("nlink with %d subdirectories: got %d", subdirs, st.Nlink)
			}
		}
		check(0)
		must(t, "mkdir", s.process().Mkdir(filepath.Join(dir, "a"), 0o777))
		must(t, "mkdir", s.process().Mkdir(filepath.Join(dir, "b"), 0o777))
		must(t, "write", s.process().WriteFile(filepath.Join(dir, "c"), []byte("c")))
		check(2)
		must(t, "rename", s.process().Rename(filepath.Join(dir, "a"), s.path("a")))
		check(1)
		must(t, "rmdir", s.process().Rmdir(filepath.Join(dir, "b")))
		check(0)
		st, err := s.process().Stat(filepath.Join(dir, "c"))
		if err != nil || st.Nlink != 1 {
			t.Errorf("nlink of a file: got %d, %s, want 1", st.Nlink, errnoName(err))
		}
	}},
	{"chown clears SUID and SGID as ext4 does", func(t *testing.T, s *stage) {
		if s.opts.User != nil {
			return // a user's chown to the ids that the file has keeps them, unlike on ext4
		}
		const uid, gid = 4242, 4243
		for mode, want := range map[uint32]uint32{0o6755: 0o755, 0o4755: 0o755, 0o4644: 0o644, 0o2755: 0o755, 0o755: 0o755, 0o1755: 0o1755} {
			p := s.path("x")
			must(t, "write", s.process().WriteFile(p, []byte("x")))
			must(t, "chmod", s.process().Chmod(p, mode))
			st, err := s.process().Stat(p)
			if err != nil || st.Mode&0o7777 != mode {
				t.Errorf("chmod %#o: mode %#o, %s", mode, st.Mode, errnoName(err))
			}
			must(t, "chown", s.process().Chown(p, uid, gid))
			for _, a := range []*harness.Actor{s.process(), s.actor()} {
				st, err = a.Stat(p)
				if err != nil || st.Mode != unix.S_IFREG|want {
					t.Errorf("chmod %#o, chown: mode %#o, %s, want %#o", mode, st.Mode&0o7777, errnoName(err), want)
				}
			}
			must(t, "unlink", s.process().Unlink(p))
		}
		dir := s.path("dir")
		must(t, "mkdir", s.process().Mkdir(dir, 0o755))
		must(t, "chmod", s.process().Chmod(dir, 0o2755))
		must(t, "chown", s.process().Chown(dir, uid, gid))
		if st, err := s.process().Stat(dir); err != nil || st.Mode != unix.S_IFDIR|0o2755 {
			t.Errorf("a directory: mode %#o, %s, want %#o", st.Mode, errnoName(err), unix.S_IFDIR|0o2755)
		}
	}},
	{"a path over 4096 bytes fails at open", func(t *testing.T, s *stage) {
		out, code := s.command(python(t), "-c", longPathScript, s.dir)
		if code != 0 || out != "" {
			t.Errorf("exit code %d, %s", code, out)
		}
	}},
	{"a sparse write past the capacity fails in write, not in close", func(t *testing.T, s *stage) {
		for _, name := range []string{"x", "x.tmp", "x.lock"} {
			p := s.path(name)
			for _, off := range []int64{300 * mib, 1 << 40, 1 << 62} {
				a := s.actor()
				fd := s.open(a, p, rdwr|creat|trunc)
				if _, err := a.Pwrite(fd, []byte("far away"), off); err == nil && len(s.opts.Flags) == 0 && name != "x.lock" {
					// Where the kernel writes by itself, kvfs learns of it at the end.
					wantErrno(t, name+": rename", a.Rename(p, s.path("y")), unix.ENOSPC)
				} else {
					wantErrno(t, name+": pwrite", err, unix.ENOSPC, unix.EFBIG)
				}
				a.Kill()
				must(t, "write", s.process().WriteFile(p, []byte("near")))
				wantSeen(t, s.actor(), p, []byte("near"))
				must(t, "unlink", s.process().Unlink(p))
			}
		}
	}},
	{"50 reopens for writing with a mapping of a closed descriptor alive", func(t *testing.T, s *stage) {
		p, want := s.path("x"), pattern("x", 100_000)
		s.store(p, want)
		a, b := s.actor(), s.actor()
		fd := s.open(a, p, rdonly)
		m, err := a.Mmap(fd, len(want), unix.PROT_READ)
		must(t, "mmap", err)
		must(t, "close", a.Close(fd))
		for i := range 50 {
			for _, w := range []*harness.Actor{a, b} {
				fd := s.open(w, p, rdwr)
				s.pwrite(w, fd, []byte{byte(i)}, int64(i*1000))
				want = patched(want, []byte{byte(i)}, i*1000)
				must(t, "close", w.Close(fd))
			}
			got, err := a.Load(m, len(want), 0)
			must(t, "load", err)
			sameBytes(t, "the mapping", got, want)
		}
		wantSeen(t, s.process(), p, want)
		must(t, "munmap", a.Munmap(m))
		s.wantCommitted(p, want)
	}},
}

const longPathScript = `
import errno, os, sys
os.chdir(sys.argv[1])
name, total = "d" * 200, len(sys.argv[1])
while total < 4096 - 300:
    os.mkdir(name)
    os.chdir(name)
    total += 1 + len(name)
for flags in (os.O_WRONLY | os.O_CREAT, os.O_RDWR | os.O_CREAT | os.O_TRUNC, os.O_WRONLY | os.O_CREAT | os.O_EXCL):
    for size in (250, 255):
        try:
            os.mkdir("e" * 200)
        except FileExistsError:
            pass
        except OSError as e:
            if e.errno != errno.ENAMETOOLONG: raise
            continue
        f = "e" * 200 + "/" + "f" * size
        try:
            fd = os.open(f, flags, 0o644)
        except OSError as e:
            if e.errno != errno.ENAMETOOLONG: raise
            continue
        print("open of a path of", total + 1 + len(f), "bytes works; write and close:")
        try:
            os.write(fd, b"x")
            os.close(fd)
        except OSError as e:
            print(e)
fd = os.open("short", os.O_WRONLY | os.O_CREAT, 0o644)
os.write(fd, b"x")
os.close(fd)
try:
    os.rename("short", "e" * 200 + "/" + "f" * 255)
    print("rename to a long path works")
except OSError as e:
    if e.errno not in (errno.ENAMETOOLONG, errno.ENOENT): raise
assert open("short").read() == "x"
`
