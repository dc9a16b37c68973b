//go:build ofi && cgo

package fabric

import (
	"os"
	"syscall"
	"testing"
	"time"
)

const mib = 1 << 20

// TestCache shows what is kept registered, and for how long.
func TestCache(t *testing.T) {
	tr := open(t, Options{CacheBytes: 2 * mib, CacheTime: time.Hour})
	base := tr.Stats()
	check := func(what string, registered, hits, pinned, cached int64) {
		t.Helper()
		s := tr.Stats()
		got := [4]int64{s.Registered - base.Registered, s.CacheHits - base.CacheHits, s.PinnedBytes - base.PinnedBytes + base.CachedBytes, s.CachedBytes}
		if want := [4]int64{registered, hits, pinned, cached}; got != want {
			t.Errorf("%s: registered, hits, pinned, cached: %v, want %v", what, got, want)
		}
	}
	var files []*os.File
	for i := range uint64(3) {
		files = append(files, file(t, pattern(i, mib)))
	}
	use := func(i int) {
		t.Helper()
		if err := register(t, tr, files[i], mib).Close(); err != nil {
			t.Error(err)
		}
	}
	id := func(i int) (uint64, uint64) {
		info, err := files[i].Stat()
		if err != nil {
			t.Fatal(err)
		}
		st := info.Sys().(*syscall.Stat_t)
		return st.Dev, st.Ino
	}

	tr.Forget(^uint64(0), 1) // of what nobody has
	tryFile := base.CachedBytes
	if tryFile != mib {
		t.Errorf("the self test left %d bytes registered", tryFile)
	}
	use(0)
	check("miss", 1, 0, 2*mib, 2*mib)
	use(0)
	check("hit", 1, 1, 2*mib, 2*mib)
	use(1)
	check("bound", 2, 1, 2*mib, 2*mib)
	r, s := register(t, tr, files[1], mib), register(t, tr, files[1], mib)
	check("shared", 2, 3, 2*mib, mib)
	tr.Forget(id(0))
	check("forgotten", 2, 3, mib, 0)
	tr.Forget(id(1))
	check("forgotten in use", 2, 3, mib, 0)
	r.Close()
	check("in use", 2, 3, mib, 0)
	s.Close()
	check("not kept", 2, 3, 0, 0)
	use(2)
	await(t, "another time of change", func() bool {
		before, _ := files[2].Stat()
		files[2].WriteAt([]byte("x"), 0)
		after, _ := files[2].Stat()
		return before.ModTime() != after.ModTime()
	})
	use(2)
	check("changed", 4, 3, mib, mib)
	if err := register(t, tr, files[2], mib/2).Close(); err != nil {
		t.Error(err)
	}
	check("another size", 5, 3, mib/2, mib/2)
}

// TestCacheAge shows that what nobody uses is given up after some time.
func TestCacheAge(t *testing.T) {
	tr := open(t, Options{CacheBytes: 8 * mib, CacheTime: 10 * time.Millisecond})
	f := file(t, pattern(1, mib))
	for range 3 {
		register(t, tr, f, mib).Close()
		await(t, "the cache to be empty", func() bool { s := tr.Stats(); return s.CachedBytes == 0 && s.PinnedBytes == 0 })
	}
}

// TestNoCache shows that without a cache a file is free when its last region is closed.
func TestNoCache(t *testing.T) {
	tr := open(t, Options{})
	f := file(t, pattern(1, mib))
	r, s := register(t, tr, f, mib), register(t, tr, f, mib)
	for i, c := range []struct {
		close  func() error
		pinned int64
	}{{r.Close, mib}, {r.Close, mib}, {s.Close, 0}} {
		c.close()
		if n := tr.Stats().PinnedBytes; n != c.pinned {
			t.Errorf("after close %d: %d bytes", i, n)
		}
	}
}
