package mount

import (
	"fmt"
	"hash/crc64"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestWritingInPlace is rule 1: an open for writing without O_TRUNC is POSIX.
func TestWritingInPlace(t *testing.T) { onStages(t, inPlaceActs) }

const (
	rdonly = unix.O_RDONLY
	rdwr   = unix.O_RDWR
	wronly = unix.O_WRONLY
	creat  = unix.O_CREAT
	trunc  = unix.O_TRUNC
	excl   = unix.O_EXCL
	atEnd  = unix.O_APPEND
	nonbl  = unix.LOCK_NB
	lockEx = unix.LOCK_EX
	lockSh = unix.LOCK_SH
	rwMap  = unix.PROT_READ | unix.PROT_WRITE
)

// checksum returns the value of user.kvfs.checksum for bytes p.
func checksum(p []byte) string {
	return fmt.Sprintf("crc64nvme:%016x", crc64.Checksum(p, nvme))
}

// wantCommitted fails unless the block has these bytes, by its checksum too.
func (s *stage) wantCommitted(path string, want []byte) {
	s.t.Helper()
	wantSeen(s.t, s.process(), path, want)
	sum, err := s.process().Getxattr(path, "user.kvfs.checksum")
	if err != nil || sum != checksum(want) {
		s.t.Errorf("checksum: got %q, %s, want %s", sum, errnoName(err), checksum(want))
	}
}

// wantOnDisk waits until the SSD's copy of a block has these bytes: it is dropped from memory,
// and read.
func (s *stage) wantOnDisk(path string, want []byte) {
	s.t.Helper()
	if !s.ssd {
		return
	}
	tiers := func() []string {
		v, err := s.process().Getxattr(path, "user.kvfs.tier")
		wantErrno(s.t, "tiers", err, nil)
		return strings.Split(v, ",")
	}
	harness.Poll(s.t, "the block is on the SSD alone", func() bool {
		_, _, _ = harness.KvfsAs(s.t, s.opts.User, "evict", "--tier", "memory", path)
		got := tiers()
		return len(got) == 1 && got[0] == "disk" || s.t.Failed()
	})
	wantSeen(s.t, s.process(), path, want)
}

// waitOnDisk waits until the SSD has a copy of a block.
func (s *stage) waitOnDisk(path string) {
	s.t.Helper()
	harness.Poll(s.t, filepath.Base(path)+" is on the SSD", func() bool {
		v, err := s.process().Getxattr(path, "user.kvfs.tier")
		wantErrno(s.t, "tiers", err, nil)
		return strings.HasSuffix(v, "disk") || s.t.Failed()
	})
}

var inPlaceActs = []act{
	{"one inode for all, seen as it is written", func(t *testing.T, s *stage) {
		old, p := pattern("old", mib), s.path("x")
		s.store(p, old)
		s.squeeze()
		a, b := s.actor(), s.process()
		ino := s.ino(b, p)
		rfd := s.open(b, p, rdonly)
		fd := s.open(a, p, rdwr)
		for who, got := range map[string]uint64{"the writer": s.fino(a, fd), "another by name": s.ino(b, p), "a reader": s.fino(b, rfd)} {
			if got != ino {
				t.Errorf("inode of %s: got %d, want %d", who, got, ino)
			}
		}
		want := patched(old, []byte("in the middle"), 5000)
		s.pwrite(a, fd, []byte("in the middle"), 5000)
		wantSeen(t, b, p, want)
		s.readsAs("a reader from before", b, rfd, want)
		want = patched(want, pattern("tail", 70_000), mib)
		s.pwrite(a, fd, pattern("tail", 70_000), mib)
		wantSeen(t, b, p, want)
		s.readsAs("the writer", a, fd, want)
		must(t, "ftruncate", a.Ftruncate(fd, 3000))
		wantSeen(t, b, p, want[:3000])
		s.readsAs("a reader from before", b, rfd, want[:3000])
		must(t, "close", a.Close(fd))
		s.wantCommitted(p, want[:3000])
		if got := s.ino(b, p); got != ino {
			t.Errorf("inode after the close: got %d, want %d", got, ino)
		}
	}},
	{"the last close commits anew", func(t *testing.T, s *stage) {
		old, p := pattern("old", mib), s.path("x")
		s.store(p, old)
		s.wantCommitted(p, old)
		s.wantOnDisk(p, old)
		a, b := s.actor(), s.actor()
		fd, gd := s.open(a, p, rdwr), s.open(b, p, wronly)
		s.pwrite(a, fd, []byte("one"), 0)
		s.pwrite(b, gd, []byte("two"), 500_000)
		want := patched(patched(old, []byte("one"), 0), []byte("two"), 500_000)
		must(t, "close", a.Close(fd))
		wantSeen(t, a, p, want)
		s.pwrite(b, gd, []byte("three"), mib)
		want = patched(want, []byte("three"), mib)
		must(t, "close", b.Close(gd))
		s.wantCommitted(p, want)
		s.wantOnDisk(p, want)
		s.wantCommitted(p, want)
	}},
	{"open for writing, but not written: nothing is committed or copied", func(t *testing.T, s *stage) {
		want, p := pattern("x", mib), s.path("x")
		s.store(p, want)
		s.wantOnDisk(p, want)
		before, err := s.process().Stat(p)
		must(t, "stat", err)
		a := s.actor()
		fd := s.open(a, p, rdwr)
		s.readsAs("the opener", a, fd, want)
		if got := s.ino(s.process(), p); got != s.fino(a, fd) {
			t.Errorf("inode by name %d, of the descriptor %d", got, s.fino(a, fd))
		}
		must(t, "close", a.Close(fd))
		after, err := s.process().Stat(p)
		must(t, "stat", err)
		if before.Mtim != after.Mtim || before.Ino != after.Ino {
			t.Errorf("mtime or inode changed: %v %d, %v %d", before.Mtim, before.Ino, after.Mtim, after.Ino)
		}
		s.wantOnDisk(p, want)
	}},
	{"neither evicted nor copied while it is open for writing", func(t *testing.T, s *stage) {
		s = s.own()
		old, p := pattern("old", mib), s.path("x")
		s.store(p, old)
		if s.ssd {
			fd := s.open(s.process(), p, rdonly)
			must(t, "fsync", s.process().Fsync(fd))
			must(t, "close", s.process().Close(fd))
		}
		a := s.actor()
		fd := s.open(a, p, rdwr)
		s.pwrite(a, fd, []byte("in place"), 0)
		want := patched(old, []byte("in place"), 0)
		s.flood()
		wantSeen(t, s.process(), p, want)
		if tiers, err := s.process().Getxattr(p, "user.kvfs.tier"); err != nil || !strings.HasPrefix(tiers, "memory") {
			t.Errorf("tiers: got %q, %s, want memory", tiers, errnoName(err))
		}
		s.readsAs("the writer", a, fd, want)
		if !s.ssd {
			return
		}
		s.restart(false)
		got, err := s.actor().ReadFile(p)
		if err != nil {
			wantErrno(t, "read", err, unix.ENOENT)
		} else {
			sameBytes(t, "the SSD's copy", got, old)
		}
	}},
	{"appends of two processes never lose a line", func(t *testing.T, s *stage) {
		const lines = 150
		for _, begin := range []string{"", "empty", "with bytes", "temporary.tmp", "plain.lock"} {
			p := s.path("log" + begin)
			want := 2 * lines
			switch begin {
			case "empty":
				must(t, "create", s.process().WriteFile(p, nil))
			case "with bytes":
				must(t, "create", s.process().WriteFile(p, []byte("0 is the first line\n")))
				want++
			}
			a, b := s.actor(), s.actor()
			done := make(chan error, 2)
			for i, w := range []*harness.Actor{a, b} {
				go func() { done <- w.Append(p, fmt.Appendf(nil, "%d is the second line\n", i), lines) }()
			}
			must(t, "append", <-done)
			must(t, "append", <-done)
			got, err := s.process().ReadFile(p)
			must(t, "read", err)
			if n := strings.Count(string(got), "line\n"); n != want || len(got) != 21*2*lines+20*(want-2*lines) {
				t.Errorf("log %q: %d lines, %d bytes, want %d lines", begin, n, len(got), want)
			}
		}
	}},
	{"two shells append 40 lines each", func(t *testing.T, s *stage) {
		for _, begin := range []string{"true", ": > log", "echo first > log"} {
			out, _ := s.script("rm -f log; " + begin + `; f() { for i in {1..40}; do echo $1 $i >> log || echo failed; done; }; f a & f b & wait; grep -c '^[ab]' log`)
			if out != "80\n" {
				t.Errorf("after %q: got %q lines, want 80", begin, out)
			}
		}
	}},
	{"a shared mapping of two processes is one memory", func(t *testing.T, s *stage) {
		old, p := pattern("old", 64*kib), s.path("x")
		s.store(p, old)
		s.squeeze()
		a, b := s.actor(), s.actor()
		fd, gd := s.open(a, p, rdwr), s.open(b, p, rdwr)
		m, err := a.Mmap(fd, len(old), rwMap)
		must(t, "mmap", err)
		n, err := b.Mmap(gd, len(old), rwMap)
		must(t, "mmap", err)
		for i := range 8 {
			text := fmt.Appendf(nil, "from a %d", i)
			must(t, "store", a.Store(m, text, int64(i*5000)))
			got, err := b.Load(n, len(text), int64(i*5000))
			must(t, "load", err)
			sameBytes(t, "a's in b", got, text)
			text = fmt.Appendf(nil, "from b %d", i)
			must(t, "store", b.Store(n, text, int64(i*5000)))
			got, err = a.Load(m, len(text), int64(i*5000))
			must(t, "load", err)
			sameBytes(t, "b's in a", got, text)
		}
		s.pwrite(a, fd, []byte("by a pwrite"), 60_000)
		got, err := b.Load(n, 11, 60_000)
		must(t, "load", err)
		sameBytes(t, "a write in b's mapping", got, []byte("by a pwrite"))
	}},
	{"passthrough or not is decided by who has the inode open already", func(t *testing.T, s *stage) {
		for _, size := range []int{1, 4096, 70_000, 3 * mib} {
			old, p := pattern("old", size), s.path(fmt.Sprint("x", size))
			s.store(p, old)
			r, w := s.actor(), s.actor()
			first := s.open(r, p, rdonly)
			m, err := r.Mmap(first, size, unix.PROT_READ)
			must(t, "mmap", err)
			fd := s.open(w, p, rdwr)
			last := s.open(r, p, rdonly)
			s.pwrite(w, fd, []byte("!"), 0)
			want := patched(old, []byte("!"), 0)
			s.readsAs("the first reader", r, first, want)
			s.readsAs("the last reader", r, last, want)
			got, err := r.Load(m, size, 0)
			must(t, "load", err)
			sameBytes(t, "the mapping", got, want)
			s.pwrite(w, fd, []byte("?"), int64(size))
			want = append(want, '?')
			s.readsAs("the first reader, longer", r, first, want)
			must(t, "close", w.Close(fd))
			s.wantCommitted(p, want)
		}
	}},
	{"a writer in place whose block is replaced keeps its file, and no ESTALE", func(t *testing.T, s *stage) {
		old, p := pattern("old", mib), s.path("x")
		s.store(p, old)
		a := s.actor()
		fd := s.open(a, p, rdwr)
		s.pwrite(a, fd, []byte("in place"), 0)
		s.store(p, pattern("new", mib/2))
		s.pwrite(a, fd, []byte("later"), mib)
		s.readsAs("the writer", a, fd, patched(patched(old, []byte("in place"), 0), []byte("later"), mib))
		must(t, "close", a.Close(fd))
		s.wantCommitted(p, pattern("new", mib/2))
		for range 3 {
			fd := s.open(a, p, rdwr)
			s.pwrite(a, fd, []byte("again"), 0)
			must(t, "close", a.Close(fd))
		}
		s.wantCommitted(p, patched(pattern("new", mib/2), []byte("again"), 0))
	}},
	{"a killed writer in place leaves what it wrote", func(t *testing.T, s *stage) {
		old, p := pattern("old", mib), s.path("x")
		s.store(p, old)
		s.squeeze()
		a := s.actor()
		fd := s.open(a, p, rdwr)
		s.pwrite(a, fd, []byte("in place"), 1000)
		a.Kill()
		want := patched(old, []byte("in place"), 1000)
		wantSeen(t, s.process(), p, want)
		if t.Failed() {
			return // nothing to wait for
		}
		harness.Poll(t, "it is committed anew", func() bool {
			sum, err := s.process().Getxattr(p, "user.kvfs.checksum")
			return err == nil && sum == checksum(want)
		})
		s.wantOnDisk(p, want)
	}},
}
