package tiers_test

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
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
