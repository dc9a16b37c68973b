package object

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/s3test"
)

// TestRestart shows that a daemon with another mount point and an empty memory finds the blocks of one that has ended: all
// bytes, sizes, modes and owners. What was removed stays removed, and what was written anew is the new version (A1, G6).
func TestRestart(t *testing.T) {
	if os.Getuid() != 0 {
		harness.Skip(t, "chown needs root")
	}
	s := s3test.Start(t, s3test.Options{})
	d := mount(t, s.URL, "", harness.Options{})
	bs, doomed := plant(t, d)
	limited, passing := "model/ttl/limited", "model/ttl/passing"
	for name, ttl := range map[string]string{limited: "1h", passing: "5s"} {
		store(t, d.Path(name), pattern(name, 1000))
		must(t, "set the time to live", again(func() error { return unix.Setxattr(d.Path(name), "user.kvfs.ttl", []byte(ttl), 0) }))
	}
	bs[limited] = pattern(limited, 1000)
	waitStored(t, d, blocks{limited: nil})
	stats := map[string]unix.Stat_t{}
	for name := range bs {
		stats[name] = stat(t, d, name)
	}
	d.Stop()
	for range 2 { // the first of them learns of the removals too
		d := mount(t, s.URL, "", harness.Options{})
		waitListed(t, d)
		for name, want := range stats {
			if got := stat(t, d, name); got.Mode != want.Mode || got.Uid != want.Uid || got.Gid != want.Gid || got.Size != want.Size {
				t.Errorf("%s: mode %#o, owner %d:%d, %d bytes; want %#o, %d:%d, %d", name, got.Mode, got.Uid, got.Gid, got.Size, want.Mode, want.Uid, want.Gid, want.Size)
			}
		}
		wantBlocks(t, d, bs)
		wantBlocks(t, d, bs) // from memory
		for name := range doomed {
			wantAbsent(t, d, name)
		}
		harness.Poll(t, passing+" expires", func() bool { return tiersOf(d, passing) == nil })
		buf := make([]byte, 64)
		n, err := unix.Getxattr(d.Path(limited), "user.kvfs.ttl", buf)
		must(t, "time to live", err)
		if left, err := time.ParseDuration(string(buf[:n])); err != nil || left <= 0 || left > time.Hour+time.Second {
			t.Errorf("time to live of %s: got %q, want an hour or less", limited, buf[:n])
		}
		d.Stop()
	}
}

// plant stores blocks of many sizes, modes and owners, writes some anew and removes others, all of which are in the bucket.
func plant(t testing.TB, d *harness.Daemon) (bs, doomed blocks) {
	t.Helper()
	bs, doomed = numbered("model/anew", 3, 70_000), numbered("model/doomed", 5, 50_000)
	for i, n := range []int{0, 1, 4095, 64 * kib, mib, 5 * mib, 20 * mib} {
		name := fmt.Sprintf("model/group%d/%d/block-%d", i%3, i, n)
		bs[name] = pattern(name, n)
	}
	storeAll(t, d, bs)
	storeAll(t, d, doomed)
	waitStored(t, d, bs)
	waitStored(t, d, doomed)
	for name := range numbered("model/anew", 3, 0) {
		bs[name] = pattern("new "+name, 90_000)
		store(t, d.Path(name), bs[name])
	}
	mode := uint32(0o600)
	for name := range bs {
		must(t, "chmod", unix.Chmod(d.Path(name), mode))
		must(t, "chown", unix.Chown(d.Path(name), 17, 18))
		mode += 4
	}
	for name := range doomed {
		remove(t, d, name)
	}
	waitStored(t, d, bs)
	return bs, doomed
}

func stat(t testing.TB, d *harness.Daemon, name string) (st unix.Stat_t) {
	t.Helper()
	must(t, "stat "+name, again(func() error { return unix.Stat(d.Path(name), &st) }))
	return st
}
