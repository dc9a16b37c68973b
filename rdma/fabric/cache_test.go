//go:build ofi && cgo

package fabric

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

const mib = 1 << 20

// TestCache shows what is kept registered, and for how long.
func TestCache(t *testing.T) {
	tr := open(t, Options{CacheBytes: 2 * mib, CacheTime: time.Hour, KeepUnnamed: true})
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
		must(t, err)
		st := info.Sys().(*syscall.Stat_t)
		return st.Dev, st.Ino
	}

	tr.Forget(^uint64(0), 1) // of a file that the cache does not have
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

// TestCacheAge shows that entries without users are closed after some time.
func TestCacheAge(t *testing.T) {
	tr := open(t, Options{CacheBytes: 8 * mib, CacheTime: 10 * time.Millisecond, KeepUnnamed: true})
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

// TestCacheCount has more short files than may be idle: each takes a mapping, and a process has
// 65530. They count with their whole page.
func TestCacheCount(t *testing.T) {
	tr := open(t, Options{CacheBytes: 1 << 30, CacheTime: time.Hour, KeepUnnamed: true})
	for range maxIdle + 100 {
		f, err := memFile()
		must(t, err)
		must(t, f.Truncate(100))
		register(t, tr, f, 100).Close()
		f.Close()
	}
	want := int64(maxIdle * os.Getpagesize())
	if s := tr.Stats(); s.CachedBytes != want {
		t.Errorf("%d bytes are kept, want %d", s.CachedBytes, want)
	}
}

// TestCacheScarce has no room for a registration until the idle entries are closed.
func TestCacheScarce(t *testing.T) {
	tr := open(t, Options{CacheBytes: 8 * mib, CacheTime: time.Hour, KeepUnnamed: true})
	f, other := file(t, pattern(1, mib)), file(t, pattern(2, mib))
	opens := tr.cache.open
	for _, scarce := range []error{syscall.ENOMEM, code(syscall.EAGAIN)} {
		register(t, tr, f, mib).Close()
		tr.cache.open = func(e *entry, f *os.File) error {
			if tr.Stats().CachedBytes > 0 {
				return scarce
			}
			return opens(e, f)
		}
		r, err := tr.Register(other, mib)
		if err != nil {
			t.Fatalf("%v: %v", scarce, err)
		}
		if s := tr.Stats(); s.CachedBytes != 0 {
			t.Errorf("%v: %d bytes are kept", scarce, s.CachedBytes)
		}
		r.Close()
		tr.cache.open = opens
		tr.cache.dropIdle()
	}
	tr.cache.open = func(*entry, *os.File) error { return syscall.ENOMEM }
	if _, err := tr.Register(f, mib); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("no room at all: %v", err)
	}
	tr.cache.open = opens
}

// TestUnnamed shows that files without a name, which are no blocks, are not kept.
func TestUnnamed(t *testing.T) {
	tr := open(t, Options{CacheBytes: 8 * mib, CacheTime: time.Hour})
	register(t, tr, file(t, pattern(1, mib)), mib).Close()
	if s := tr.Stats(); s.CachedBytes != 0 {
		t.Errorf("%d bytes of a file without a name are kept", s.CachedBytes)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "block"))
	must(t, err)
	defer f.Close()
	if _, err := f.Write(pattern(1, mib)); err != nil {
		t.Fatal(err)
	}
	register(t, tr, f, mib).Close()
	if s := tr.Stats(); s.CachedBytes != mib {
		t.Errorf("%d bytes of a file with a name are kept", s.CachedBytes)
	}
}
