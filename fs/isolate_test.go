package fs

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// TestNoticesIsolated: one thread has a table of descriptors of its own, in which the mount
// is there once and nothing else of ours is; the others have the mount's other descriptors.
func TestNoticesIsolated(t *testing.T) {
	s, dir := mountHere(t)
	d, ok := s.channel.(*device)
	if !ok {
		t.Skip("only a device of our own")
	}
	c := startClient(t)
	c.do("write", filepath.Join(dir, "group", "block"))
	s.notices.flush(t.Context())
	if d.notices < 0 {
		t.Fatal("notices share the descriptor of the requests")
	}
	tables := map[string]int{} // what a thread has open, and how many threads have that
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		fds, err := filepath.Glob("/proc/self/task/" + task.Name() + "/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		var has []string
		for _, fd := range fds {
			target, err := os.Readlink(fd)
			if err != nil || filepath.Base(fd) == "0" || filepath.Base(fd) == "1" || filepath.Base(fd) == "2" ||
				strings.HasPrefix(target, "anon_inode:[event") {
				continue
			}
			if target == "/dev/fuse" || strings.Contains(target, "memory") {
				has = append(has, target)
			}
		}
		tables[strings.Join(has, " ")]++
	}
	if tables["/dev/fuse"] != 1 {
		t.Errorf("threads by what they have open: %v; want one with /dev/fuse once and no block", tables)
	}
}

// TestStaleThreads: a thread that reads is told ESTALE, then that there is no such block; one
// that writes then to open once more by itself, and so on, until it has had another answer or
// has tried often enough.
func TestStaleThreads(t *testing.T) {
	const stale = fuse.Status(syscall.ESTALE)
	var reads staleThreads
	for i, want := range []fuse.Status{stale, fuse.ENOENT, stale, fuse.ENOENT} {
		if got := reads.answer(1, stale, fuse.ENOENT); got != want {
			t.Errorf("read, step %d: told %v, want %v", i, got, want)
		}
	}
	s := staleThreads{repeat: true}
	for i, c := range []struct {
		tid       uint32
		got, want fuse.Status
	}{
		{1, stale, stale}, {2, stale, stale}, {1, stale, fuse.EINTR}, {1, stale, stale},
		{1, fuse.EAGAIN, fuse.EAGAIN}, {1, stale, stale}, {2, stale, fuse.EINTR},
	} {
		if got := s.answer(c.tid, c.got, fuse.ENOENT); got != c.want {
			t.Errorf("step %d: told %v, want %v", i, got, c.want)
		}
	}
	for i := 2; i < maxTries-1; i++ {
		if got := s.answer(2, stale, fuse.ENOENT); got == fuse.ENOENT {
			t.Fatalf("given up after %d tries, want %d", i+1, maxTries)
		}
	}
	if got := s.answer(2, stale, fuse.ENOENT); got != fuse.ENOENT {
		t.Errorf("after %d tries: told %v, want %v", maxTries, got, fuse.ENOENT)
	}
	s.forget(1)
	if n := s.n.Load(); n != 0 {
		t.Errorf("%d threads are remembered", n)
	}
	for tid := range uint32(2 * maxStale) {
		s.answer(tid, stale, fuse.ENOENT)
	}
	if n := len(s.mu.tids); n != maxStale {
		t.Errorf("%d threads are remembered, want %d", n, maxStale)
	}
}
