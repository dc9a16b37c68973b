package mount

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestLinks is about link(2): it publishes a temporary file under an absent name, and nothing else (H5).
func TestLinks(t *testing.T) { onStages(t, linkActs) }

var linkActs = []act{
	{"link of a temporary file to an absent name, then unlink", func(t *testing.T, s *stage) {
		tmp, block, want := s.path("x.tmp"), s.path("x"), pattern("x", mib)
		put(t, tmp, want)
		must(t, "link", unix.Link(tmp, block))
		wantSeen(t, s.process(), block, want)
		wantSeen(t, s.process(), tmp, want)
		for _, p := range []string{tmp, block} {
			if st := stat(t, p); st.Nlink != 2 || st.Ino != stat(t, block).Ino {
				t.Errorf("%s: %d names, inode %d; want 2, %d", p, st.Nlink, st.Ino, stat(t, block).Ino)
			}
		}
		if names := listNames(t, s.dir); len(names) != 1 || names[0] != "x" {
			t.Errorf("the directory has %q, want x", names)
		}
		unlink(t, tmp)
		wantAbsent(t, s.process(), tmp)
		if st := stat(t, block); st.Nlink != 1 {
			t.Errorf("%d names after the unlink", st.Nlink)
		}
		wantErrno(t, "a second unlink", unix.Unlink(tmp), unix.ENOENT)
		s.wantCommitted(block, want)
	}},
	{"a name that is there is EEXIST, also one that another process is writing", func(t *testing.T, s *stage) {
		tmp := s.path("x.tmp")
		put(t, tmp, pattern("loser", mib))
		s.store(s.path("there"), pattern("winner", mib))
		wantErrno(t, "a block", unix.Link(tmp, s.path("there")), unix.EEXIST)
		wantSeen(t, s.process(), s.path("there"), pattern("winner", mib))
		a, fd := s.begun(s.path("writing"), nil, pattern("writing", 70_000))
		wantErrno(t, "a private file", unix.Link(tmp, s.path("writing")), unix.EEXIST)
		must(t, "close", a.Close(fd))
		wantSeen(t, s.process(), s.path("writing"), pattern("writing", 70_000))
		wantBytes(t, tmp, pattern("loser", mib))
		if st := stat(t, tmp); st.Nlink != 1 {
			t.Errorf("%d names after links that failed", st.Nlink)
		}
		unlink(t, tmp)
	}},
	{"all other links are EOPNOTSUPP, and a symbolic link and O_TMPFILE", func(t *testing.T, s *stage) {
		put(t, s.path("x.tmp"), pattern("x", mib))
		put(t, s.path("x.lock"), nil)
		s.store(s.path("block"), pattern("x", mib))
		put(t, s.d.Path("pool", filepath.Base(s.dir)+".tmp"), pattern("x", 4096))
		for _, c := range [][2]string{{"block", "y"}, {"block", "y.tmp"}, {"x.lock", "y"}, {"x.tmp", "y.tmp"}, {"x.tmp", "y.lock"}} {
			wantErrno(t, c[0]+" to "+c[1], unix.Link(s.path(c[0]), s.path(c[1])), unix.EOPNOTSUPP)
			wantAbsent(t, s.process(), s.path(c[1]))
		}
		pinned := s.d.Path("pool", filepath.Base(s.dir))
		wantErrno(t, "to a pinned group", unix.Link(s.path("x.tmp"), pinned), unix.EOPNOTSUPP)
		wantErrno(t, "in a pinned group", unix.Link(pinned+".tmp", pinned), unix.EOPNOTSUPP)
		unlink(t, pinned+".tmp")
		must(t, "link", unix.Link(s.path("x.tmp"), s.path("y")))
		wantErrno(t, "of a file with two names", unix.Link(s.path("x.tmp"), s.path("z")), unix.EOPNOTSUPP)
		wantErrno(t, "symlink", unix.Symlink("x", s.path("s")), unix.EOPNOTSUPP)
		_, err := unix.Open(s.dir, unix.O_TMPFILE|unix.O_RDWR, 0o600)
		wantErrno(t, "O_TMPFILE", err, unix.EOPNOTSUPP)

		a, fd := s.begun(s.path("busy.tmp"), nil, pattern("busy", 70_000))
		wantErrno(t, "of a file that another process writes", unix.Link(s.path("busy.tmp"), s.path("busy")), unix.EOPNOTSUPP)
		must(t, "close", a.Close(fd))
		must(t, "link after its close", unix.Link(s.path("busy.tmp"), s.path("busy")))
		wantSeen(t, s.process(), s.path("busy"), pattern("busy", 70_000))
	}},
	{"the temporary name keeps the bytes, whatever becomes of the block", func(t *testing.T, s *stage) {
		for _, c := range []struct {
			name string
			do   func(block string)
		}{
			{"removed", func(block string) { unlink(t, block) }},
			{"replaced", func(block string) {
				put(t, s.path("other.tmp"), pattern("other", mib))
				rename(t, s.path("other.tmp"), block)
			}},
			{"renamed", func(block string) { rename(t, block, block+"-moved") }},
			{"evicted", func(string) { flood(t, s.path("flood"), 128*mib) }},
		} {
			tmp, block, want := s.path(c.name+".tmp"), s.path(c.name), pattern(c.name, 300_000)
			put(t, tmp, want)
			must(t, "link", unix.Link(tmp, block))
			c.do(block)
			wantSeen(t, s.process(), tmp, want)
			unlink(t, tmp)
			wantAbsent(t, s.process(), tmp)
			if c.name == "renamed" {
				wantSeen(t, s.process(), block+"-moved", want)
			}
		}
	}},
	{"an open for writing takes the temporary name away, and does not write the block", func(t *testing.T, s *stage) {
		tmp, block, want := s.path("x.tmp"), s.path("x"), pattern("x", mib)
		put(t, tmp, want)
		must(t, "link", unix.Link(tmp, block))
		put(t, tmp, pattern("next", mib)) // a writer that uses the name again
		wantSeen(t, s.process(), block, want)
		wantSeen(t, s.process(), tmp, pattern("next", mib))
		must(t, "link", unix.Link(tmp, s.path("y")))
		s.store(block, pattern("new", mib))
		put(t, s.path("y"), pattern("y", mib))
		wantSeen(t, s.process(), s.path("y"), pattern("y", mib))
		wantAbsent(t, s.process(), tmp)
	}},
	{"a process that has the file open goes on writing, in place", func(t *testing.T, s *stage) {
		f := open(t, s.path("x.tmp"), unix.O_RDWR|unix.O_CREAT, 0o644)
		f.pwrite(pattern("x", mib), 0)
		must(t, "link", unix.Link(s.path("x.tmp"), s.path("x")))
		f.pwrite([]byte("more"), 10)
		f.close()
		want := pattern("x", mib)
		copy(want[10:], "more")
		wantSeen(t, s.process(), s.path("x"), want)
		unlink(t, s.path("x.tmp"))
		s.wantCommitted(s.path("x"), want)
	}},
	{"mv of the temporary name, or over it, copies; rm -r takes it along", func(t *testing.T, s *stage) {
		dir := s.path("dir")
		must(t, "mkdir", s.process().Mkdir(dir, 0o777))
		put(t, dir+"/x.tmp", pattern("x", mib))
		must(t, "link", unix.Link(dir+"/x.tmp", s.path("x")))
		wantErrno(t, "rename", unix.Rename(dir+"/x.tmp", dir+"/y.tmp"), unix.EXDEV)
		must(t, "rename to the other name", unix.Rename(dir+"/x.tmp", s.path("x")))
		put(t, s.path("z.tmp"), pattern("z", mib))
		wantErrno(t, "rename over it", unix.Rename(s.path("z.tmp"), dir+"/x.tmp"), unix.EXDEV)
		if out, code := s.script("rm -r " + dir); code != 0 {
			t.Errorf("rm -r: exit code %d, %s", code, out)
		}
		if st := stat(t, s.path("x")); st.Nlink != 1 {
			t.Errorf("%d names after rm -r", st.Nlink)
		}
		wantSeen(t, s.process(), s.path("x"), pattern("x", mib))
	}},
}

// TestLinkKilled: after the daemon was killed between link and unlink, both names are there (H5).
func TestLinkKilled(t *testing.T) {
	harness.KvfsOnly(t, "warm restart")
	d := harness.Mount(t, harness.Options{})
	for _, p := range []string{"two", "one", "gone"} {
		put(t, d.Path(p+".tmp"), pattern(p, mib))
		must(t, "link", unix.Link(d.Path(p+".tmp"), d.Path(p)))
	}
	unlink(t, d.Path("one.tmp"))
	unlink(t, d.Path("gone"))
	d.Kill()
	d.Restart()
	for _, p := range []string{"two", "two.tmp", "one"} {
		wantBytes(t, d.Path(p), pattern(p[:3], mib))
	}
	if st := stat(t, d.Path("two")); st.Nlink != 2 {
		t.Errorf("%d names, want 2", st.Nlink)
	}
	for _, p := range []string{"one.tmp", "gone", "gone.tmp"} { // what the block was removed of does not come back
		if _, err := os.Stat(d.Path(p)); !os.IsNotExist(err) {
			t.Errorf("%s: %v", p, err)
		}
	}
	unlink(t, d.Path("two.tmp"))
	if st := stat(t, d.Path("two")); st.Nlink != 1 {
		t.Errorf("%d names after the unlink", st.Nlink)
	}
}
