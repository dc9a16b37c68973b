package mount

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestWritingSync shows that fsync commits: what fsync or fdatasync returned 0 for survives the death of its
// writer and, with an SSD, of the daemon.
func TestWritingSync(t *testing.T) { onStages(t, syncActs) }

// syncs are fsync and fdatasync.
var syncs = []struct {
	name string
	call func(a *harness.Actor, fd int) error
}{
	{"fsync", (*harness.Actor).Fsync},
	{"fdatasync", (*harness.Actor).Fdatasync},
}

// wantMissOr fails unless path is absent, or one of whole.
func (s *stage) wantMissOr(path string, whole ...[]byte) {
	s.t.Helper()
	got, err := s.actor().ReadFile(path)
	if err != nil {
		wantErrno(s.t, "read "+filepath.Base(path), err, unix.ENOENT)
		return
	}
	for _, want := range whole {
		if bytes.Equal(got, want) {
			s.wantCommitted(path, want)
			return
		}
	}
	s.t.Errorf("%s: %d bytes that are no version", filepath.Base(path), len(got))
}

var syncActs = []act{
	{"what was synced is a block, and survives the death of its writer with what was written later", func(t *testing.T, s *stage) {
		synced, more := pattern("synced", mib), pattern("more", 70_000)
		for i, sync := range syncs {
			for j, old := range [][]byte{nil, {}, pattern("old", 2*mib)} {
				for k, after := range []bool{false, true} {
					p := s.path(fmt.Sprint(i, j, k))
					if old != nil {
						s.store(p, old)
					}
					a := s.actor()
					fd := s.open(a, p, wronly|creat|trunc)
					s.pwrite(a, fd, synced, 0)
					must(t, sync.name, sync.call(a, fd))
					wantSeen(t, s.process(), p, synced) // fsync commits
					if after {
						s.pwrite(a, fd, more, mib)
					}
					a.Kill()
					want := synced
					if after {
						want = slices.Concat(synced, more)
					}
					s.wantCommitted(p, want)
				}
			}
		}
	}},
	{"without a sync the writer that is killed commits nothing", func(t *testing.T, s *stage) {
		for i, old := range [][]byte{nil, {}, pattern("old", mib)} {
			p := s.path(fmt.Sprint(i))
			if old != nil {
				s.store(p, old)
			}
			a := s.actor()
			fd := s.open(a, p, wronly|creat|trunc)
			s.pwrite(a, fd, pattern("half", mib), 0)
			a.Kill()
			wantAbsent(t, s.process(), p)
		}
	}},
	{"Mooncake's offset store", func(t *testing.T, s *stage) {
		for _, dir := range []string{s.dir, s.d.Path("pool")} {
			for i := range 3 {
				s.mooncake(filepath.Join(dir, fmt.Sprintf("bucket%d", i)))
			}
		}
	}},
	{"Mooncake's offset store, then the daemon is killed", func(t *testing.T, s *stage) {
		s = s.own()
		for _, dir := range []string{s.dir, s.d.Path("pool")} {
			if err := s.actor().Mkdir(dir, 0o755); err != nil { // a restart that loses memory loses it
				wantErrno(t, "mkdir", err, unix.EEXIST)
			}
			p := filepath.Join(dir, "bucket")
			data, meta := s.mooncake(p)
			keep := dir != s.dir || !s.ssd // a pinned group lives in memory alone
			if !keep {
				s.waitOnDisk(p + ".meta") // nobody has synced it
			}
			s.restart(keep)
			wantSeen(t, s.actor(), p, data)
			wantSeen(t, s.actor(), p+".meta", meta)
		}
	}},
	{"a file that is open and synced survives the daemon", func(t *testing.T, s *stage) {
		if !s.ssd {
			return // there is no promise without an SSD
		}
		for i, sync := range syncs {
			s := s.own()
			created, rewritten := s.path("created"), s.path("rewritten")
			s.store(rewritten, pattern("old", mib))
			a := s.actor()
			fd := s.open(a, created, rdwr|creat|trunc)
			s.pwrite(a, fd, pattern("new", mib), 0)
			must(t, sync.name, sync.call(a, fd))
			gd := s.open(a, rewritten, rdwr)
			s.pwrite(a, gd, []byte("in place"), 4000)
			must(t, sync.name, sync.call(a, gd))
			s.restart(i == 0)
			wantSeen(t, s.process(), created, pattern("new", mib))
			wantSeen(t, s.process(), rewritten, patched(pattern("old", mib), []byte("in place"), 4000))
		}
	}},
	{"a restart adopts plain names and pinned groups as they are", func(t *testing.T, s *stage) {
		s = s.own()
		paths := s.plainPaths("adopted")
		a := s.actor()
		for i, p := range paths {
			fd := s.open(a, p, rdwr|creat)
			s.pwrite(a, fd, pattern(p, 100_000), 0)
			if i%2 == 0 {
				must(t, "close", a.Close(fd))
				fd = s.open(a, p, rdwr)
			}
			s.pwrite(a, fd, []byte("later"), 500)
		}
		s.restart(true)
		for _, p := range paths {
			wantSeen(t, s.process(), p, patched(pattern(p, 100_000), []byte("later"), 500))
		}
		if used := s.status().Tier(t, "memory").UsedBytes; used < int64(len(paths)*100_000) {
			t.Errorf("used_bytes: %d", used)
		}
		for _, p := range paths {
			must(t, "unlink", s.process().Unlink(p))
			s.wantGone(p)
		}
	}},
	{"a block changed in place, neither closed nor synced, is a miss after a restart", func(t *testing.T, s *stage) {
		s = s.own()
		old := pattern("old", mib)
		names := []string{"same size", "longer", "shorter", "mapped", "closed"}
		for _, name := range names {
			s.store(s.path(name), old)
			if s.ssd {
				fd := s.open(s.process(), s.path(name), rdonly)
				must(t, "fsync", s.process().Fsync(fd))
			}
		}
		a := s.actor()
		fds := map[string]int{}
		for _, name := range names {
			fds[name] = s.open(a, s.path(name), rdwr)
		}
		s.pwrite(a, fds["same size"], []byte("changed"), 0)
		s.pwrite(a, fds["longer"], []byte("changed"), mib)
		must(t, "ftruncate", a.Ftruncate(fds["shorter"], 5000))
		m, err := a.Mmap(fds["mapped"], len(old), rwMap)
		must(t, "mmap", err)
		must(t, "store", a.Store(m, []byte("changed"), 0))
		s.pwrite(a, fds["closed"], []byte("changed"), 0)
		must(t, "close", a.Close(fds["closed"]))
		s.restart(true)
		for _, name := range names[:4] {
			if s.ssd || name == "mapped" { // what is in a mapping may never have got to the file
				s.wantMissOr(s.path(name), old)
			} else {
				s.wantMissOr(s.path(name))
			}
		}
		wantSeen(t, s.process(), s.path("closed"), patched(old, []byte("changed"), 0))
	}},
	{"a half is never a block after a restart", func(t *testing.T, s *stage) {
		s = s.own()
		a, c := s.actor(), s.actor()
		must(t, "touch", c.WriteFile(s.path("empty"), nil))
		s.store(s.path("block"), pattern("old", mib))
		for _, name := range []string{"empty", "block", "new"} {
			fd := s.open(a, s.path(name), wronly|creat|trunc)
			s.pwrite(a, fd, pattern("half", 70_000), 0)
		}
		s.restart(true)
		s.wantGone(s.path("new"))
		for name, whole := range map[string][]byte{"empty": {}, "block": pattern("old", mib)} {
			if s.ssd { // which may have had no time to remove its copy
				s.wantMissOr(s.path(name), whole)
			} else {
				s.wantGone(s.path(name))
			}
		}
	}},
}

// mooncake stores as Mooncake's offset store does, twice: the second time it writes in place. Its process is killed
// after each. It returns the bytes that are there then.
func (s *stage) mooncake(p string) (data, meta []byte) {
	s.t.Helper()
	t := s.t
	data = pattern(p, 256*kib)
	a := s.actor()
	fd := s.open(a, p, rdwr|creat|trunc)
	must(t, "fallocate", a.Fallocate(fd, 0, 0, int64(len(data))))
	for off := 0; off < len(data); off += 64 * kib {
		s.pwrite(a, fd, data[off:off+64*kib], int64(off))
	}
	must(t, "fdatasync", a.Fdatasync(fd))
	writeMeta := func(text string) {
		meta = []byte(text)
		must(t, "write", a.WriteFile(p+".meta.tmp", meta))
		must(t, "rename", a.Rename(p+".meta.tmp", p+".meta"))
	}
	writeMeta("one")
	a.Kill()
	wantSeen(t, s.process(), p, data)
	wantSeen(t, s.process(), p+".meta", meta)

	a = s.actor()
	fd = s.open(a, p, rdwr)
	s.readsAs("reopened", a, fd, data)
	data = patched(data, pattern("rewritten", 64*kib), 64*kib)
	s.pwrite(a, fd, data[64*kib:128*kib], 64*kib)
	must(t, "fdatasync", a.Fdatasync(fd))
	writeMeta("two")
	a.Kill()
	wantSeen(t, s.process(), p, data)
	wantSeen(t, s.process(), p+".meta", meta)
	return data, meta
}
