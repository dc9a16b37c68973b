package mount

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestWritingAnew: a new file, also one that O_TRUNC makes of a block, is its process's alone until the commit
// (rules 2 to 5).
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
	{"a private file with a duplicate left is not committed by the close of another open", func(t *testing.T, s *stage) {
		p := s.path("a")
		s.store(p, pattern("old", mib))
		a := s.actor()
		fd := s.open(a, p, wronly|creat|trunc)
		gd := s.open(a, p, wronly|creat)
		hd, err := a.Dup(gd)
		must(t, "dup", err)
		must(t, "close", a.Close(gd))
		must(t, "close", a.Close(fd))
		wantAbsent(t, s.process(), p)
		s.pwrite(a, hd, pattern("new", 2*mib), 0)
		wantAbsent(t, s.process(), p)
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
	{"O_TRUNC on a block: it is gone for all but those who have it open", func(t *testing.T, s *stage) {
		for _, held := range []bool{false, true} {
			for _, flags := range []int{wronly | trunc, wronly | creat | trunc} {
				p, old, want := s.path(fmt.Sprint("x", held, flags)), pattern("old", mib), pattern("new", 2*mib)
				s.store(p, old)
				s.squeeze()
				a, b := s.actor(), s.process()
				wantSeen(t, b, p, old)
				ino := s.ino(b, p)
				rfd, m := 0, 0
				if held {
					rfd = s.open(b, p, rdonly)
					var err error
					m, err = b.Mmap(rfd, len(old), unix.PROT_READ)
					must(t, "mmap", err)
				}
				fd := s.open(a, p, flags)
				if same := s.fino(a, fd) == ino; same == held {
					t.Errorf("held %v: the same inode: %v", held, same)
				}
				wantAbsent(t, b, p)
				s.pwrite(a, fd, want[:mib], 0)
				s.squeeze()
				wantAbsent(t, b, p)
				if names, err := b.Names(s.dir); err != nil || slices.Contains(names, filepath.Base(p)) {
					t.Errorf("others list %q, %s before the commit", names, errnoName(err))
				}
				wantSeen(t, a, p, want[:mib])
				wantSeen(t, a.OtherThread(), p, want[:mib])
				if got := s.ino(a.OtherThread(), p); got != s.fino(a, fd) {
					t.Errorf("inode by name in another thread: got %d, want %d", got, s.fino(a, fd))
				}
				s.pwrite(a, fd, want[mib:], mib)
				must(t, "close", a.Close(fd))
				s.wantCommitted(p, want)
				if held {
					s.readsAs("a reader from before", b, rfd, old)
					got, err := b.Load(m, len(old), 0)
					must(t, "load", err)
					sameBytes(t, "the mapping", got, old)
					must(t, "munmap", b.Munmap(m))
					must(t, "close", b.Close(rfd))
				}
				s.wantOnDisk(p, want)
			}
		}
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
				wantAbsent(t, s.process(), p)
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
		wantAbsent(t, s.process(), p)
		must(t, "close", a.Close(fd))
		s.wantCommitted(p, nil)
		wantSeen(t, a, p, nil)
	}},
	{"eight processes read and map a block that others begin anew: each has the old bytes to their end", func(t *testing.T, s *stage) {
		p, old := s.path("x"), pattern("old", 300_000)
		s.store(p, old)
		type reader struct {
			a     *harness.Actor
			fd, m int
		}
		var readers []reader
		for range 8 {
			r := reader{a: s.actor()}
			r.fd = s.open(r.a, p, rdonly)
			var err error
			r.m, err = r.a.Mmap(r.fd, len(old), unix.PROT_READ)
			must(t, "mmap", err)
			readers = append(readers, r)
		}
		for i := range 20 {
			s.store(p, old) // by rename
			must(t, "rewrite", s.process().WriteFile(p, pattern(fmt.Sprint(i), 100)))
			for _, r := range readers {
				s.readsAs("a reader", r.a, r.fd, old)
				got, err := r.a.Load(r.m, len(old), 0)
				must(t, "load", err)
				sameBytes(t, "the mapping", got, old)
			}
			s.wantCommitted(p, pattern(fmt.Sprint(i), 100))
		}
	}},
	{"who writes a block in place keeps it when another begins anew", func(t *testing.T, s *stage) {
		p, old, want := s.path("x"), pattern("old", mib), pattern("new", mib/2)
		s.store(p, old)
		a, b := s.actor(), s.actor()
		gd := s.open(b, p, rdwr)
		fd := s.open(a, p, wronly|trunc)
		s.pwrite(a, fd, want, 0)
		s.pwrite(b, gd, []byte("in place"), 0)
		s.readsAs("who writes in place", b, gd, patched(old, []byte("in place"), 0))
		must(t, "close of the old file", b.Close(gd))
		wantAbsent(t, b, p)
		must(t, "close of the new file", a.Close(fd))
		s.wantCommitted(p, want)
	}},
	{"two processes anew: the later one has the name", func(t *testing.T, s *stage) {
		p, one, two := s.path("x"), pattern("one", mib), pattern("two", 2*mib)
		a, b := s.actor(), s.actor()
		fd := s.open(a, p, wronly|creat|trunc)
		s.pwrite(a, fd, one, 0)
		gd := s.open(b, p, wronly|creat|trunc)
		if s.fino(a, fd) == s.fino(b, gd) {
			t.Error("both have one inode")
		}
		s.pwrite(b, gd, two, 0)
		wantAbsent(t, a, p)
		wantSeen(t, b, p, two)
		must(t, "close", a.Close(fd))
		wantAbsent(t, s.process(), p)
		must(t, "close", b.Close(gd))
		s.wantCommitted(p, two)
	}},
}

var emptyActs = []act{
	{"a block that is emptied in place is a file in place", func(t *testing.T, s *stage) {
		p, want := s.path("x"), pattern("new", 4096)
		s.store(p, pattern("old", 9000))
		a, b := s.actor(), s.process()
		fd := s.open(a, p, wronly)
		must(t, "ftruncate", a.Ftruncate(fd, 0))
		wantSeen(t, b, p, nil)
		s.pwrite(a, fd, want, 0)
		wantSeen(t, b, p, want)
		must(t, "close", a.Close(fd))
		s.wantCommitted(p, want)
	}},
	{"O_TRUNC on an empty block begins anew", func(t *testing.T, s *stage) {
		p := s.path("x")
		must(t, "touch", s.process().WriteFile(p, nil))
		s.squeeze()
		a, b := s.actor(), s.process()
		fd := s.open(a, p, wronly|creat|trunc)
		s.pwrite(a, fd, pattern("new", 5000), 0)
		wantAbsent(t, b, p)
		wantSeen(t, a, p, pattern("new", 5000))
		must(t, "close", a.Close(fd))
		s.wantCommitted(p, pattern("new", 5000))
	}},
	{"a reader that opens between open and first write: size, bytes and mapping agree", func(t *testing.T, s *stage) {
		for _, name := range []string{"x", "x.tmp", "x.lock"} {
			for _, flags := range []int{rdwr, rdwr | creat | trunc} {
				if name == "x" && flags != rdwr {
					continue // it is private
				}
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
				if out != "hi\n" || code != 0 { // who had it open before keeps the empty file
					t.Errorf("%s: got %q, exit code %d, want hi once", sh, out, code)
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
