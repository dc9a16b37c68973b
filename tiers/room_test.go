package tiers_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/memory"
	"github.com/kvfs/kvfs/tiers/state"
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
	n.world = open(t, dir, state.Options{
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
// that was killed have its files open, a block whose bytes are all there is committed, as no write of it can have ended
// short. Any other is not. Blocks are evicted until the file system has room.
func TestNarrow(t *testing.T) {
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

// TestLoadNoRoom: a load whose file finds no room in the file system is tried again when something was evicted.
func TestLoadNoRoom(t *testing.T) {
	once := tiertest.NewPlan(tiertest.Rule{Op: tiertest.OpLoad, Nth: 1, Fault: tiertest.Fault{Err: block.ErrNoSpace}})
	w, _ := openLowerOne(t, state.Options{WriteTimeout: time.Second}, tiertest.ReferenceOptions{Faults: once})
	w.nonresident("content", "g/a")
	w.wantRead("content", "g/a")
	w.end()
}

// TestDirFiles: directories beyond a number have no file in memory, and so take none from blocks (A11). After a crash
// they are there if blocks are, with the owner of the directory above.
func TestDirFiles(t *testing.T) {
	const files, more = 1 << 14, 100
	dir := shmDir(t)
	w := open(t, dir, state.Options{})
	must(t, w.mkdir("g"))
	top := w.found(1, "g")
	for i := range files + more {
		a, err := w.e.Mkdir(top.ID, fmt.Sprint(i), 0o755, 7, 8, state.Process{})
		must(t, err)
		w.forget(a.ID)
	}
	uid := uint32(9)
	_, err := w.e.SetAttr(top.ID, tiers.Change{UID: &uid})
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
	w = open(t, dir, state.Options{})
	w.wantRead(string(fill("1p", "x")), last+"/x") // in a directory without a file
	a := w.found(1, last)
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

// TestFreed shows that who has registered the files of blocks is told of each that goes out
// of memory or is truncated, by the number that it has; and of none that stays as it is.
func TestFreed(t *testing.T) {
	ctx := context.Background()
	for _, tc := range []struct {
		name string
		do   func(w *world) error
		want bool
	}{
		{"evict", func(w *world) error {
			_, err := w.e.EvictFrom(ctx, tiers.EvictRequest{Tier: "memory", Paths: []string{"p/x"}, Force: true})
			return err
		}, true},
		{"unlink", func(w *world) error { return w.unlink(10, "p/x") }, true},
		{"replace", func(w *world) error {
			if err := w.put(10, "p/y", payload(0, 2, page)); err != nil {
				return err
			}
			return w.rename(10, "p/y", "p/x", false)
		}, true},
		{"truncate", func(w *world) error {
			return w.inPlace("p/x", func(f *file) error { return f.h.Truncate(ctx, 10) })
		}, true},
		{"truncate by name", func(w *world) error {
			a, err := w.lookup(10, "p/x")
			if err != nil {
				return err
			}
			defer w.forget(a.ID)
			return w.e.TruncateName(ctx, a.ID, by(10), 10)
		}, true},
		{"punch", func(w *world) error {
			return w.inPlace("p/x", func(f *file) error { return f.h.PunchHole(ctx, 0, page) })
		}, true},
		{"rename", func(w *world) error { return w.rename(10, "p/x", "p/z", false) }, false},
		{"read", func(w *world) error { _, err := w.get(20, "p/x"); return err }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var mu sync.Mutex
			freed := map[[2]uint64]bool{}
			w := open(t, shmDir(t), state.Options{
				Freed: func(dev, ino uint64) {
					mu.Lock()
					defer mu.Unlock()
					freed[[2]uint64{dev, ino}] = true
				},
			})
			defer w.close(false)
			must(t, w.mkdir("p"), w.put(10, "p/x", payload(0, 1, 3*page)))
			l, err := w.e.Lend(ctx, tiers.LendOptions{Path: "p/x"})
			must(t, err)
			number := numberOf(t, l.File)
			l.Close()
			must(t, tc.do(w))
			mu.Lock()
			defer mu.Unlock()
			if got := freed[number]; got != tc.want {
				t.Errorf("told %v, want %v", got, tc.want)
			}
		})
	}
}

// numberOf returns by which numbers a file is told of.
func numberOf(t *testing.T, f *os.File) [2]uint64 {
	t.Helper()
	fi, err := f.Stat()
	must(t, err)
	st := fi.Sys().(*syscall.Stat_t)
	return [2]uint64{st.Dev, st.Ino}
}

// inPlace changes a file that is open for writing.
func (w *world) inPlace(name string, fn func(f *file) error) error {
	f, err := w.openWrite(context.Background(), 10, name, false)
	if err != nil {
		return err
	}
	if err := fn(f); err != nil {
		return err
	}
	return f.close()
}

// groupNames are the groups that the engine knows.
func (w *world) groupNames() map[string]memory.GroupStats {
	all := map[string]memory.GroupStats{}
	for _, g := range w.e.Accounts().Groups() {
		all[string(g.Name)] = g
	}
	return all
}

// TestForgetGroups: of a group that has no files any more, and is not configured, nothing is left, whether its
// directory is or not. A block on SSD is a file, and so is one that is open and has no name.
func TestForgetGroups(t *testing.T) {
	const many = 20_000
	r := tiertest.NewReference(t, tiertest.ReferenceOptions{})
	w := openLower(t, shmDir(t), state.Options{
		CapacityBytes: 64 * page, LookupLease: -1, Groups: map[block.GroupID]state.GroupOptions{"configured": {BlockBytes: page}},
	}, r)
	defer w.close(false)
	must(t, w.mkdir("nonresident"), w.mkdir("open"), w.mkdir("configured"), w.mkdir("moved"), w.put(10, "open/x", fill("1p", "x")),
		w.put(10, "configured/x", fill("1p", "x")), w.put(10, "moved/x", fill("3p", "x")))
	w.nonresident("bytes", "nonresident/x")
	f, err := w.openRead(10, "open/x")
	must(t, err, w.unlink(10, "open/x"), w.unlink(10, "configured/x"))
	for i := range many {
		dir := fmt.Sprintf("g%d", i)
		must(t, w.mkdir(dir), w.put(10, dir+"/x", nil), w.unlink(10, dir+"/x"))
		if i%2 == 0 {
			must(t, w.rmdir(dir))
		}
	}
	must(t, w.rename(10, "moved", "arrived", false))
	eventually(t, "the groups without files are forgotten", func() bool { return len(w.e.Accounts().Groups()) == 4 })
	left := w.groupNames()
	for _, name := range []string{"nonresident", "open", "configured", "arrived"} {
		if _, ok := left[name]; !ok {
			t.Errorf("%q is forgotten; there are %v", name, left)
		}
	}
	w.audit()

	// Their places are taken again, and what one of them learned is gone with it.
	must(t, w.put(10, "g1/y", fill("2p", "y")), w.put(10, "fresh", fill("1p", "y")))
	if g := w.groupNames()["g1"]; g.UsedBytes != 2*page || g.BlockBytes != 2*page {
		t.Errorf("%+v", g)
	}
	must(t, f.close())
	eventually(t, "and that of the file that was open", func() bool { _, ok := w.groupNames()["open"]; return !ok })
	w.audit()
}

// TestStrict: a group with a fixed block size commits nothing else. Who closes, syncs or renames it is told, the name
// keeps what it had, and nothing is left. What grows to that size in time is fine; a block that is changed in
// place to another size is none any more (C14, C15).
func TestStrict(t *testing.T) {
	strict := state.GroupOptions{BlockBytes: 2 * page, Strict: true}
	pinned := state.GroupOptions{BlockBytes: 2 * page, Strict: true, Pinned: true, QuotaBytes: 8 * page}
	w := open(t, shmDir(t), state.Options{CapacityBytes: 64 * page, LookupLease: -1, Groups: map[block.GroupID]state.GroupOptions{"g": strict, "raw": pinned}})
	defer w.close(false)
	old, good := fill("2p", "o"), fill("2p", "n")
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, block.ErrInvalid) {
			t.Errorf("%s: %v, want %v", what, err, block.ErrInvalid)
		}
	}
	holds := func(name string, want []byte) {
		t.Helper()
		if got, err := w.get(20, name); !bytes.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%s holds %d bytes, %v, want %d", name, len(got), err, len(want))
		}
	}
	must(t, w.mkdir("g"), w.mkdir("h"), w.mkdir("raw"), w.put(10, "g/a", old), w.put(10, "h/short", fill("1p", "s")), w.put(10, "raw/x", fill("1p", "r")))
	for _, n := range []string{"0p", "1p", "3p"} {
		refused("close of "+n, w.put(10, "g/a", fill(n, "x")))
		holds("g/a", nil)
		must(t, w.put(10, "g/a", old))
		refused("close of a new name of "+n, w.put(10, "g/new", fill(n, "x")))
		holds("g/new", nil)
		must(t, w.put(10, "g/a.tmp", fill(n, "x")))
		refused("rename of "+n, w.rename(10, "g/a.tmp", "g/a", false))
		holds("g/a", old)
		must(t, w.unlink(10, "g/a.tmp"))
	}
	refused("rename from another group", w.rename(10, "h/short", "g/a", false))
	holds("g/a", old)
	holds("h/short", fill("1p", "s"))

	f, err := w.openOrCreate(10, "g/a")
	must(t, err)
	_, err = f.h.WriteAt(context.Background(), good[:page], 0)
	must(t, err)
	refused("fsync of half", w.e.Fsync(until(t), f.id))
	holds("g/a", nil)
	_, err = f.h.WriteAt(context.Background(), good[page:], page)
	must(t, err, w.e.Fsync(until(t), f.id), f.close())
	holds("g/a", good)

	f = w.writing(10, "g/a", false)
	_, err = f.h.WriteAt(context.Background(), old[:page], 2*page)
	must(t, err)
	refused("close after a change in place", f.close())
	holds("g/a", nil)
	must(t, w.put(10, "g/a.tmp", good), w.rename(10, "g/a.tmp", "g/a", false))
	holds("g/a", good)
	w.letGo()
	w.audit()
	if n := w.e.Stats().Writing; n != 0 {
		t.Errorf("%d files are left open for writing", n)
	}
}

// TestGroupFound shows what counts as the use of a group: its writers alone find no block, though they look their
// temporary names up.
func TestGroupFound(t *testing.T) {
	w := open(t, shmDir(t), state.Options{CapacityBytes: 64 * page})
	defer w.close(false)
	must(t, w.mkdir("g"), w.mkdir("h"))
	for i := range 3 {
		tmp := fmt.Sprintf("g/%d.tmp", i)
		f, err := w.openOrCreate(10, tmp)
		must(t, err)
		a, err := w.lookup(10, tmp)
		must(t, err, f.close(), w.rename(10, tmp, fmt.Sprintf("g/%d", i), false))
		w.forget(a.ID)
	}
	must(t, w.put(10, "h/x", []byte("x")))
	if _, err := w.get(20, "h/x"); err != nil {
		t.Error(err)
	}
	if g, h := w.groupNames()["g"], w.groupNames()["h"]; g.Stored != 3 || g.Found != 0 || h.Stored != 1 || h.Found == 0 {
		t.Errorf("%+v and %+v", g, h)
	}
}
