package tiers_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// narrow is a world of 16 pages on a file system of 80, 64 of them headroom, of which others have some.
type narrow struct {
	*world
	others atomic.Int64 // pages
}

func openNarrow(t *testing.T) *narrow {
	n := &narrow{}
	dir := shmDir(t)
	n.world = open(t, dir, tiers.Options{
		CapacityBytes: 16 * page, HeadroomBytes: 64 * page, WriteTimeout: patience,
		Primary: &hooked{free: func() int64 {
			var used int64
			names, _ := filepath.Glob(dir + "/s/b/*/*")
			for _, name := range names {
				var st unix.Stat_t
				if unix.Stat(name, &st) == nil {
					used += st.Blocks * 512
				}
			}
			return max(0, (80-n.others.Load())*page-used)
		}},
	})
	must(t, n.mkdir("g"))
	for i := range 8 {
		must(t, n.put(10, fmt.Sprintf("g/%d", i), fill("2p", "x")))
	}
	return n
}

// raw writes to f as the kernel does, which asks nobody.
func (f *file) raw(t *testing.T, data []byte) {
	t.Helper()
	if !f.h.Direct() {
		t.Fatal("the kernel may not write by itself")
	}
	bytes, err := f.w.e.OpenBlob(f.h.Blob())
	must(t, err)
	defer bytes.Close()
	_, err = bytes.Write(data)
	must(t, err)
}

// TestNarrow: where the file system behind memory has less left than the accounts say, because clients of a daemon
// that was killed have its files open, blocks are evicted for what is written; and a block whose bytes are all
// there is committed, as no write of it can have ended short.
func TestNarrow(t *testing.T) {
	t.Run("blocks go for those that come", func(t *testing.T) {
		n := openNarrow(t)
		n.others.Store(62)
		for i := range 20 {
			f, err := n.create(10, fmt.Sprintf("g/new%d", i), false, true)
			must(t, err)
			f.raw(t, fill("2p", "y"))
			must(t, f.close())
			if used := n.e.Stats().UsedBytes; used > 10*page {
				t.Errorf("%d bytes in use of the 18 pages that there are, 8 of them to stay free", used)
			}
		}
		n.others.Store(0)
		for i := range 8 {
			must(t, n.put(10, fmt.Sprintf("g/again%d", i), fill("2p", "z")))
		}
		if used := n.e.Stats().UsedBytes; used != 16*page {
			t.Errorf("%d bytes in use, now that there is room", used)
		}
		n.close(false)
	})
	for _, whole := range []bool{true, false} {
		t.Run(fmt.Sprintf("full between write and close, whole=%v", whole), func(t *testing.T) {
			n := openNarrow(t)
			data, want := fill("2p", "y"), "ok"
			if !whole {
				data, want = data[:page], "ErrNoSpace"
			}
			f, err := n.create(10, "g/new", false, true)
			must(t, err)
			f.raw(t, data)
			n.others.Store(66)
			if got := kind(f.close()); got != want {
				t.Errorf("close: %s, want %s", got, want)
			}
			eventually(t, "what is too much goes", func() bool { return n.e.Stats().UsedBytes <= 8*page })
			n.close(false)
		})
	}
}

// TestFullFileSystem: a file system that takes no more files, or no more bytes of one, has some evicted, and is waited for.
func TestFullFileSystem(t *testing.T) {
	t.Run("of files", func(t *testing.T) {
		h := &hooked{}
		w := open(t, shmDir(t), tiers.Options{Primary: h})
		must(t, w.mkdir("g"))
		h.most = func() bool { return w.blobs() >= 5 }
		for i := range 21 {
			must(t, w.put(10, fmt.Sprintf("g/%d", i), nil)) // no bytes, and so nothing that the accounts know
		}
		if n := w.e.Stats().Blocks; n != 4 {
			t.Errorf("%d blocks beside a directory, where there is room for 5 files: one goes for one", n)
		}
		must(t, w.mkdir("d"))
		must(t, w.put(10, "d/x", fill("1p", "x")))
		if st := w.e.Stats(); st.Counters.FileSystemFull == 0 || st.Blocks > 4 {
			t.Errorf("%d blocks, %d times full", st.Blocks, st.Counters.FileSystemFull)
		}
		w.close(false)
	})
	t.Run("of a load", func(t *testing.T) {
		once := tiertest.NewPlan(tiertest.Rule{Op: tiertest.OpLoad, Nth: 1, Fault: tiertest.Fault{Err: block.ErrNoSpace}})
		w, _ := openLowerOne(t, tiers.Options{WriteTimeout: time.Second}, tiertest.ReferenceOptions{Faults: once})
		w.hollow("content", "g/a")
		if got := w.content("g/a"); got != "content" {
			t.Errorf("read %q", got)
		}
		w.end()
	})
}

// TestDirFiles: directories beyond a number have no file in memory, and so take none from blocks (A11). After a crash
// they are there if blocks are, with the owner of the directory above.
func TestDirFiles(t *testing.T) {
	const files, more = 1 << 14, 100
	dir := shmDir(t)
	w := open(t, dir, tiers.Options{})
	must(t, w.mkdir("g"))
	top, err := w.lookup(1, "g")
	must(t, err)
	for i := range files + more {
		a, err := w.e.Mkdir(top.ID, fmt.Sprint(i), 0o755, 7, 8, tiers.Process{})
		must(t, err)
		w.forget(a.ID)
	}
	uid := uint32(9)
	_, err = w.e.SetAttr(top.ID, tiers.Change{UID: &uid})
	must(t, err)
	w.forget(top.ID)
	if n := w.blobs(); n != files {
		t.Errorf("%d files in memory for %d directories, want %d", n, files+more+1, files)
	}
	last := fmt.Sprintf("g/%d", files+more-1)
	must(t, w.put(10, last+"/x", fill("1p", "x")))
	must(t, w.rmdir(fmt.Sprintf("g/%d", files+more-2)))
	must(t, w.rmdir("g/0")) // it had a file, which another one may have now
	must(t, w.mkdir("g/0"))
	if n := w.blobs(); n != files+1 {
		t.Errorf("%d files in memory, want %d and a block", n, files)
	}
	w.crash()
	w = open(t, dir, tiers.Options{})
	if got, err := w.get(20, last+"/x"); err != nil || len(got) != page {
		t.Errorf("block in a directory without a file: %d bytes, %v", len(got), err)
	}
	a, err := w.lookup(1, last)
	must(t, err)
	if w.forget(a.ID); a.Mode&0o7777 != 0o755 || a.UID != 9 {
		t.Errorf("that directory: %+v", a)
	}
	names, err := w.names(1, "g")
	must(t, err)
	if len(names) != files {
		t.Errorf("%d directories after the crash, want %d", len(names), files)
	}
	w.close(false)
}

// TestHopeless: what no wait can help fails at once: a file that is larger than its group may be. What waits
// because memory is full of open files is counted, and logged once a minute (A17).
func TestHopeless(t *testing.T) {
	quota := map[block.GroupID]tiers.GroupOptions{"g": {QuotaBytes: 2 * page}}
	runScripts(t, []script{
		{name: "larger than the quota", opts: tiers.Options{WriteTimeout: time.Hour, Groups: quota}, text: `
			put 10 g/a 1p x -> ok; stored g/a 1p
			create 10 b g/b
			go write b 3p y
			poll -> ErrQuota
			close b -> ErrPoisoned
			cat 10 g/a -> x*1p`},
	})
	t.Run("full of open files", func(t *testing.T) {
		dir := shmDir(t)
		synctest.Test(t, func(t *testing.T) {
			core, logs := observer.New(zap.WarnLevel)
			w := open(t, dir, tiers.Options{CapacityBytes: 4 * page, Logger: zap.New(core)})
			must(t, w.mkdir("g"))
			must(t, w.put(10, "g/a", fill("3p", "x")))
			f, err := w.openRead(20, "g/a")
			must(t, err)
			for range 2 {
				if err := w.put(10, "g/b", fill("3p", "y")); !errors.Is(err, block.ErrNoSpace) && !errors.Is(err, block.ErrPoisoned) {
					t.Errorf("a block beside open ones: %v", err)
				}
			}
			if st := w.e.Stats(); st.Counters.FullOfOpen != 2 || st.FullAt.IsZero() {
				t.Errorf("waited for open files %d times, last at %v", st.Counters.FullOfOpen, st.FullAt)
			}
			time.Sleep(time.Minute) // reason: of the clock of the bubble, which nobody waits for
			if err := w.put(10, "g/b", fill("3p", "y")); err == nil {
				t.Error("a block beside open ones has room after a minute")
			}
			if n := logs.FilterMessageSnippet("memory is full").Len(); n != 2 {
				t.Errorf("%d lines for what happened twice, and once a minute later", n)
			}
			f.release()
			must(t, w.put(10, "g/b", fill("3p", "y")))
			if n := w.e.Stats().Counters.FullOfOpen; n != 3 {
				t.Errorf("%d after the reader has closed", n)
			}
			w.close(false)
		})
	})
	t.Run("full of leased blocks", func(t *testing.T) {
		dir := shmDir(t)
		synctest.Test(t, func(t *testing.T) {
			w := open(t, dir, tiers.Options{CapacityBytes: 4 * page, LookupLease: time.Hour})
			must(t, w.mkdir("g"))
			must(t, w.put(10, "g/a", fill("3p", "x")))
			a, err := w.lookup(20, "g/a")
			must(t, err)
			w.forget(a.ID)
			must(t, w.put(10, "g/b", fill("3p", "y"))) // it waits, and then takes what is leased
			if st := w.e.Stats(); st.Counters.FullOfLeased != 1 || st.Counters.FullOfOpen != 0 || !strings.Contains(st.FullOf, "leas") {
				t.Errorf("%d waits for leased blocks, %d for open ones, the last because of %q",
					st.Counters.FullOfLeased, st.Counters.FullOfOpen, st.FullOf)
			}
			w.close(false)
		})
	})
}
