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

// TestWriting shows of the rules of writing what TestDiffer cannot: threads of a writer, writers at the same moment, and
// a write that memory is too small for.
func TestWriting(t *testing.T) { onStages(t, writingActs) }

const (
	rdwr   = unix.O_RDWR
	wronly = unix.O_WRONLY
	creat  = unix.O_CREAT
	trunc  = unix.O_TRUNC
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

var writingActs = []act{
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
}

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
