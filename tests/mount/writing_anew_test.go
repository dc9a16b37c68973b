package mount

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestWritingAnew is rule 2: O_TRUNC on a block with bytes, or a new name, makes a new version,
// which is its process's alone until the commit.
func TestWritingAnew(t *testing.T) {
	onStages(t, slices.Concat(anewActs, emptyActs, duplicateActs, shellActs))
}

// duplicateActs have a process close one of two descriptors of one open, and a second open beside it.
var duplicateActs = []act{
	{"the close of a duplicate does not end the open, if the file's first process is killed then", func(t *testing.T, s *stage) {
		p := s.path("a")
		a, b := s.actor(), s.actor()
		s.open(a, p, rdwr|creat)
		fd := s.open(b, p, wronly|creat)
		gd, err := b.Dup(fd)
		must(t, "dup", err)
		must(t, "close", b.Close(gd))
		a.Kill()
		s.pwrite(b, fd, pattern("b", mib), 0)
		must(t, "close", b.Close(fd))
		s.wantCommitted(p, pattern("b", mib))
	}},
	{"a version with a duplicate left is not committed by the close of another open", func(t *testing.T, s *stage) {
		p, old := s.path("a"), pattern("old", mib)
		s.store(p, old)
		a := s.actor()
		fd := s.open(a, p, wronly|creat|trunc)
		gd := s.open(a, p, wronly|creat)
		hd, err := a.Dup(gd)
		must(t, "dup", err)
		must(t, "close", a.Close(gd))
		must(t, "close", a.Close(fd))
		wantSeen(t, s.process(), p, old)
		s.pwrite(a, hd, pattern("new", 2*mib), 0)
		wantSeen(t, s.process(), p, old)
		must(t, "close", a.Close(hd))
		s.wantCommitted(p, pattern("new", 2*mib))
	}},
	{"a mapping of an open that was closed does not put the commit off, if another open had a duplicate", func(t *testing.T, s *stage) {
		p, want := s.path("a"), pattern("new", mib)
		s.store(p, pattern("old", mib))
		a := s.actor()
		fd := s.open(a, p, rdwr|creat|trunc)
		s.pwrite(a, fd, want, 0)
		gd := s.open(a, p, wronly|creat)
		m, err := a.Mmap(fd, len(want), unix.PROT_READ)
		must(t, "mmap", err)
		must(t, "close", a.Close(fd))
		hd, err := a.Dup(gd)
		must(t, "dup", err)
		must(t, "close", a.Close(gd))
		must(t, "close", a.Close(hd))
		s.wantCommitted(p, want)
		must(t, "munmap", a.Munmap(m))
		s.wantCommitted(p, want)
	}},
}

var anewActs = []act{
	{"a name that another process hides is new: its maker's mode, and its maker lists it when the other is killed", func(t *testing.T, s *stage) {
		p := s.path("x")
		a, b := s.actor(), s.actor()
		s.pwrite(a, s.open(a, p, wronly|creat), []byte("a"), 0)
		if _, err := b.Open(p, rdwr|creat|trunc, 0o600); err != nil {
			t.Fatalf("create: %s", errnoName(err))
		}
		st, err := b.Stat(p)
		if err != nil || st.Mode&0o777 != 0o600 {
			t.Errorf("got mode %o, %s", st.Mode, errnoName(err))
		}
		a.Kill()
		if names, err := b.Names(s.dir); err != nil || !slices.Equal(names, []string{"x"}) {
			t.Errorf("its process lists %q, %s", names, errnoName(err))
		}
	}},
	{"a new name is its process's until the last close, in every thread", func(t *testing.T, s *stage) {
		p, want := s.path("x"), pattern("x", mib)
		a, b := s.actor(), s.process()
		fd := s.open(a, p, wronly|creat|trunc)
		wantAbsent(t, b, p)
		gd := s.open(a.OtherThread(), p, wronly)
		s.pwrite(a, fd, want[:500_000], 0)
		wantSeen(t, a, p, want[:500_000])
		wantSeen(t, a.OtherThread(), p, want[:500_000])
		s.pwrite(a.OtherThread(), gd, want[500_000:], 500_000)
		wantSeen(t, a, p, want)
		s.squeeze()
		wantAbsent(t, b, p)
		if names, err := b.Names(s.dir); err != nil || len(names) != 0 {
			t.Errorf("others list %q, %s before the commit", names, errnoName(err))
		}
		ino := s.fino(a, gd)
		must(t, "close", a.Close(fd))
		wantAbsent(t, b, p)
		must(t, "close in another thread", a.OtherThread().Close(gd))
		s.wantCommitted(p, want)
		if got := s.ino(b, p); got != ino {
			t.Errorf("inode after the commit: got %d, want %d", got, ino)
		}
		s.wantOnDisk(p, want)
	}},
	{"O_TRUNC on a block: an inode of its own, others have the block before", func(t *testing.T, s *stage) {
		p, old, want := s.path("x"), pattern("old", mib), pattern("new", 2*mib)
		s.store(p, old)
		s.squeeze()
		a, b := s.actor(), s.process()
		ino := s.ino(b, p)
		rfd := s.open(b, p, rdonly)
		fd := s.open(a, p, wronly|trunc)
		if s.fino(a, fd) == ino {
			t.Error("the new version has the inode of the block")
		}
		s.wantCommitted(p, old)
		s.pwrite(a, fd, want[:mib], 0)
		s.squeeze()
		s.wantCommitted(p, old)
		wantSeen(t, a, p, want[:mib])
		wantSeen(t, a.OtherThread(), p, want[:mib])
		if got := s.ino(a.OtherThread(), p); got != s.fino(a, fd) {
			t.Errorf("inode by name in another thread: got %d, want %d", got, s.fino(a, fd))
		}
		if got := s.ino(b, p); got != ino {
			t.Errorf("inode for others: got %d, want %d", got, ino)
		}
		s.pwrite(a, fd, want[mib:], mib)
		must(t, "close", a.Close(fd))
		s.wantCommitted(p, want)
		s.readsAs("a reader from before", b, rfd, old)
		s.wantOnDisk(p, want)
	}},
	{"rename commits at once, and shows what is written later", func(t *testing.T, s *stage) {
		p, want := s.path("x"), pattern("x", mib)
		a, b := s.actor(), s.process()
		fd := s.open(a, s.path("y"), wronly|creat|excl)
		s.pwrite(a, fd, want[:mib/2], 0)
		wantAbsent(t, b, s.path("y"))
		must(t, "rename", a.Rename(s.path("y"), p))
		wantSeen(t, b, p, want[:mib/2])
		wantAbsent(t, b, s.path("y"))
		wantAbsent(t, a, s.path("y"))
		s.pwrite(a, fd, want[mib/2:], mib/2)
		must(t, "close", a.Close(fd))
		s.wantCommitted(p, want)
	}},
	{"a duplicated descriptor is a descriptor: the last close commits", func(t *testing.T, s *stage) {
		p, want := s.path("x"), pattern("x", mib)
		a, b := s.actor(), s.process()
		fd := s.open(a, p, wronly|creat|trunc)
		s.pwrite(a, fd, want[:mib/2], 0)
		gd, err := a.Dup(fd)
		must(t, "dup", err)
		must(t, "close", a.Close(fd))
		wantAbsent(t, b, p)
		s.pwrite(a, gd, want[mib/2:], mib/2)
		must(t, "close", a.Close(gd))
		s.wantCommitted(p, want)
	}},
	{"a writer that a signal kills commits nothing", func(t *testing.T, s *stage) {
		before := s.status().Tier(t, "memory").UsedBytes
		for i, old := range [][]byte{nil, pattern("old", mib)} {
			for j, opens := range []int{1, 2} {
				p := s.path(fmt.Sprint(i, j))
				if old != nil {
					s.store(p, old)
				}
				a := s.actor()
				for range opens {
					fd := s.open(a, p, rdwr|creat|trunc)
					s.pwrite(a, fd, pattern("half", 2*mib), 0)
				}
				a.Kill()
				if old == nil {
					wantAbsent(t, s.process(), p)
				} else {
					s.wantCommitted(p, old)
				}
				must(t, "write again", s.process().WriteFile(p, pattern("whole", mib)))
				s.wantCommitted(p, pattern("whole", mib))
				must(t, "unlink", s.process().Unlink(p))
			}
		}
		harness.Poll(t, "what was killed holds no memory", func() bool { return s.status().Tier(t, "memory").UsedBytes <= before })
	}},
	{"O_TRUNC and no byte: the block is empty for all after the close", func(t *testing.T, s *stage) {
		p := s.path("x")
		s.store(p, pattern("x", mib))
		a := s.actor()
		fd := s.open(a, p, wronly|trunc)
		wantSeen(t, a, p, nil)
		wantSeen(t, s.process(), p, pattern("x", mib))
		must(t, "close", a.Close(fd))
		s.wantCommitted(p, nil)
		wantSeen(t, a, p, nil)
	}},
	{"in place beside a new version: its commit replaces the file", func(t *testing.T, s *stage) {
		p, old, want := s.path("x"), pattern("old", mib), pattern("new", mib/2)
		s.store(p, old)
		a, b := s.actor(), s.actor()
		fd := s.open(a, p, wronly|trunc)
		s.pwrite(a, fd, want, 0)
		gd := s.open(b, p, rdwr)
		s.readsAs("who opens in place", b, gd, old)
		s.pwrite(b, gd, []byte("in place"), 0)
		wantSeen(t, s.process(), p, patched(old, []byte("in place"), 0))
		wantSeen(t, a, p, want)
		must(t, "close of the new version", a.Close(fd))
		s.wantCommitted(p, want)
		s.pwrite(b, gd, []byte("later"), 100)
		must(t, "close of the old file", b.Close(gd))
		s.wantCommitted(p, want)
	}},
	{"two processes anew: one of both, whole", func(t *testing.T, s *stage) {
		p, one, two := s.path("x"), pattern("one", mib), pattern("two", 2*mib)
		a, b := s.actor(), s.actor()
		fd := s.open(a, p, wronly|creat|trunc)
		s.pwrite(a, fd, one[:1], 0) // else it is an empty file, which both have open
		gd := s.open(b, p, wronly|creat|trunc)
		if s.fino(a, fd) == s.fino(b, gd) {
			t.Error("both have one inode")
		}
		s.pwrite(a, fd, one, 0)
		s.pwrite(b, gd, two, 0)
		wantSeen(t, a, p, one)
		wantSeen(t, b, p, two)
		wantAbsent(t, s.process(), p)
		must(t, "close", a.Close(fd))
		wantSeen(t, s.process(), p, one)
		must(t, "close", b.Close(gd))
		if got, err := s.process().ReadFile(p); err != nil || !bytes.Equal(got, one) && !bytes.Equal(got, two) {
			t.Errorf("after both closes: %d bytes of neither, %s", len(got), errnoName(err))
		}
	}},
}

// emptyFile says how a file becomes empty and is then written.
type emptyFile struct {
	name  string
	flags int
	write func(a *harness.Actor, fd int) error
}

func emptyFiles() (all []emptyFile) {
	for flags, name := range map[int]string{rdwr: "O_RDWR", wronly | trunc: "O_TRUNC", wronly | creat | trunc: "O_CREAT|O_TRUNC", wronly | atEnd: "O_APPEND"} {
		for what, write := range map[string]func(a *harness.Actor, fd int) error{
			"write":     func(a *harness.Actor, fd int) error { _, err := a.Write(fd, []byte("half")); return err },
			"ftruncate": func(a *harness.Actor, fd int) error { return a.Ftruncate(fd, 5000) },
			"fallocate": func(a *harness.Actor, fd int) error { return a.Fallocate(fd, 0, 0, 5000) },
		} {
			all = append(all, emptyFile{name + " " + what, flags, write})
		}
	}
	slices.SortFunc(all, func(x, y emptyFile) int { return strings.Compare(x.name, y.name) })
	return all
}

var emptyActs = []act{
	{"a block that is emptied in place is hidden by its next byte", func(t *testing.T, s *stage) {
		p, want := s.path("x"), pattern("new", 4096)
		s.store(p, pattern("old", 9000))
		a, b := s.actor(), s.process()
		wantSeen(t, b, p, pattern("old", 9000)) // the kernel knows the name
		fd := s.open(a, p, wronly)
		must(t, "ftruncate", a.Ftruncate(fd, 0))
		s.pwrite(a, fd, want, 0)
		wantAbsent(t, b, p)
		must(t, "close", a.Close(fd))
		s.wantCommitted(p, want)
	}},
	{"O_TRUNC on an empty file is a write to it", func(t *testing.T, s *stage) {
		p := s.path("x")
		a := s.actor()
		must(t, "touch", a.WriteFile(p, nil))
		before, err := a.Stat(p)
		must(t, "stat", err)
		harness.Poll(t, "mtime is later", func() bool { // by a tick of the kernel's clock
			fd := s.open(a, p, wronly|trunc)
			st, err := a.Fstat(fd)
			must(t, "fstat", errors.Join(err, a.Close(fd)))
			return st.Mtim.Nano() > before.Mtim.Nano()
		})
	}},
	{"O_TRUNC on an empty file is the same file", func(t *testing.T, s *stage) {
		p := s.path("x")
		must(t, "touch", s.process().WriteFile(p, nil))
		s.squeeze()
		ino := s.ino(s.process(), p)
		a, b := s.actor(), s.actor()
		bfd := s.open(b, p, rdwr)
		fd := s.open(a, p, wronly|creat|trunc)
		if got := s.fino(a, fd); got != ino {
			t.Errorf("inode: got %d, want %d", got, ino)
		}
		if got := s.ino(s.process(), p); got != ino {
			t.Errorf("inode for others: got %d, want %d", got, ino)
		}
		must(t, "close", a.Close(fd))
		if got := s.fino(b, bfd); got != ino {
			t.Errorf("inode of who had it open: got %d, want %d", got, ino)
		}
		s.pwrite(b, bfd, []byte("bytes"), 0)
		must(t, "close", b.Close(bfd))
		s.wantCommitted(p, []byte("bytes"))
		if got := s.ino(s.process(), p); got != ino {
			t.Errorf("inode with bytes: got %d, want %d", got, ino)
		}
	}},
	{"the first byte hides an empty file until the close", func(t *testing.T, s *stage) {
		for i, c := range emptyFiles() {
			for _, own := range []bool{false, true} { // emptied by the process itself, or by another
				p := s.path(fmt.Sprint(i, own))
				a, b := s.actor(), s.process()
				maker := b
				if own {
					maker = a
				}
				must(t, "touch", maker.WriteFile(p, nil))
				wantSeen(t, b, p, nil)
				fd := s.open(a, p, c.flags)
				wantNoBytes(t, c.name+", opened", b, p)
				must(t, c.name, c.write(a, fd))
				wantNoBytes(t, c.name+", the first byte", b, p)
				_, err := a.Write(fd, pattern("more", 100_000))
				must(t, "write", err)
				wantNoBytes(t, c.name+", more bytes", b, p)
				whole, err := a.ReadFile(p)
				must(t, "own read", err)
				if len(whole) < 4 {
					t.Errorf("%s: its own process reads %d bytes", c.name, len(whole))
				}
				must(t, "close", a.Close(fd))
				s.wantCommitted(p, whole)
			}
		}
	}},
	{"the writer of an empty file is killed: no half is ever a block", func(t *testing.T, s *stage) {
		for i, c := range emptyFiles() {
			p := s.path(fmt.Sprint(i))
			a, b := s.actor(), s.process()
			must(t, "touch", b.WriteFile(p, nil))
			fd := s.open(a, p, c.flags)
			must(t, c.name, c.write(a, fd))
			a.Kill()
			wantNoBytes(t, c.name+", killed", b, p)
			wantNoBytes(t, c.name+", killed, another", s.actor(), p)
			c2 := s.actor()
			must(t, "write anew", c2.WriteFile(p, pattern("whole", 70_000)))
			s.wantCommitted(p, pattern("whole", 70_000))
		}
	}},
	{"a reader that opens between open and first write: size, bytes and mapping agree", func(t *testing.T, s *stage) {
		for _, name := range []string{"x", "x.tmp", "x.lock"} {
			for _, flags := range []int{rdwr, rdwr | creat | trunc} {
				p, want := s.path(name), pattern("x", mib)
				w, r := s.actor(), s.process()
				must(t, "touch", r.WriteFile(p, nil))
				fd := s.open(w, p, flags)
				rfd := s.open(r, p, rdonly)
				agree(t, "at first", r, rfd)
				s.pwrite(w, fd, want[:1], 0)
				agree(t, "after a byte", r, rfd)
				s.pwrite(w, fd, want, 0)
				agree(t, "after a megabyte", r, rfd)
				must(t, "ftruncate", w.Ftruncate(fd, 5000))
				agree(t, "after it was cut", r, rfd)
				must(t, "ftruncate", w.Ftruncate(fd, 3*mib))
				agree(t, "after it grew", r, rfd)
				must(t, "ftruncate", w.Ftruncate(fd, mib))
				s.pwrite(w, fd, want, 0)
				must(t, "close", w.Close(fd))
				s.readsAs("after the close", r, rfd, want)
				agree(t, "after the close", r, rfd)
				must(t, "unlink", r.Unlink(p))
			}
		}
	}},
}

// agree fails unless what a descriptor's fstat, read and mmap say is the same. No process writes
// meanwhile.
func agree(t testing.TB, when string, r *harness.Actor, fd int) {
	t.Helper()
	st, err := r.Fstat(fd)
	must(t, when+": fstat", err)
	got, err := r.Pread(fd, int(st.Size)+100, 0)
	if err != nil || len(got) != int(st.Size) {
		t.Errorf("%s: fstat says %d bytes, read gives %d, %s", when, st.Size, len(got), errnoName(err))
		return
	}
	if st.Size == 0 {
		return
	}
	m, err := r.Mmap(fd, int(st.Size), unix.PROT_READ)
	must(t, when+": mmap", err)
	mapped, err := r.Load(m, int(st.Size), 0)
	if err != nil {
		t.Errorf("%s: SIGBUS below the size %d", when, st.Size)
	} else {
		sameBytes(t, when+": the mapping", mapped, got)
	}
	must(t, "munmap", r.Munmap(m))
}

var shellActs = []act{
	{"tail -f of an empty log gets its line, no EIO", func(t *testing.T, s *stage) {
		for i := range 3 {
			p := s.path(fmt.Sprint("log", i))
			s.shell("bash").must(": > "+p, "")
			tail := harness.StartCommand(t, harness.ProcessOptions{User: s.opts.User}, "tail", "-s", ".02", "-f", p)
			waitOpen(t, tail.Pid, p)
			out, code := s.script("echo line >> " + p)
			if code != 0 {
				t.Fatalf("echo line >> log: exit code %d, %s", code, out)
			}
			line, err := bufio.NewReader(tail.Stdout).ReadString('\n')
			tail.Kill()
			if err != nil || line != "line\n" {
				t.Errorf("tail got %q, %v\n%s", line, err, tail.Stderr())
			}
		}
	}},
	{"touch f; exec 3<f; echo hi >f; cat f", func(t *testing.T, s *stage) {
		for _, sh := range []string{"bash", "dash"} {
			for i := range 6 {
				f := fmt.Sprint("f", sh, i)
				out, code := s.command(sh, "-c", fmt.Sprintf("exec 2>&1; cd %s; touch %[2]s; exec 3<%[2]s; echo hi >%[2]s; cat %[2]s; cat <&3", s.dir, f))
				if out != "hi\nhi\n" || code != 0 {
					t.Errorf("%s: got %q, exit code %d, want hi twice", sh, out, code)
				}
			}
		}
	}},
	{"a shell's descriptor that its children inherit: the shell's close commits", func(t *testing.T, s *stage) {
		sh, p := s.shell("bash"), s.path("f")
		b := s.process()
		sh.must("exec 3>f", "")
		wantNoBytes(t, "opened", b, p)
		sh.must("echo one >&3", "")
		sh.must("/bin/echo two >&3", "")
		sh.must("(echo three; /bin/echo four) >&3", "")
		sh.must("while read -r l; do echo $l; done <f", "one\ntwo\nthree\nfour") // cat is another process
		wantAbsent(t, b, p)
		sh.must("coproc cat >/dev/null; exec 3>&-", "") // cat has it still
		wantSeen(t, b, p, []byte("one\ntwo\nthree\nfour\n"))
		sh.must("exec {COPROC[1]}>&-; wait", "")
		wantSeen(t, b, p, []byte("one\ntwo\nthree\nfour\n"))
	}},
	{"redirections in one shell: the same names again and again", func(t *testing.T, s *stage) {
		for _, name := range []string{"bash", "dash"} {
			sh := s.shell(name)
			sh.must("echo one > f; cat f; echo two >> f; cat f; echo three > f; cat f; : > f; cat f; echo four >> f; cat f", "one\none\ntwo\nthree\nfour")
			sh.must("exec 5<>f; echo five >&5; cat f; exec 5>&-; cat f; rm f; ls", "five\nfive")
		}
	}},
}

// waitOpen waits until a process has path open.
func waitOpen(t testing.TB, pid int, path string) {
	t.Helper()
	harness.Poll(t, filepath.Base(path)+" is open", func() bool {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		return slices.ContainsFunc(fds, func(fd string) bool {
			to, _ := os.Readlink(fd)
			return to == path
		})
	})
}
