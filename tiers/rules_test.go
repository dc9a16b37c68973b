package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/openfile"
	"github.com/kvfs/kvfs/tiers/state"
)

// TestOrder: blocks go in the order of the policy that is configured; reading and setting the time of last access count as
// use (A28, A29).
func TestOrder(t *testing.T) {
	for policy, last := range map[string]string{"": "..mm", "lru": "..mm", "arc": "mm..", "mq": "mm..", "s3fifo": "mm.."} {
		w := open(t, shmDir(t), state.Options{CapacityBytes: 4 * page, Policy: policy})
		for _, name := range []string{"a", "b", "c", "d"} {
			must(t, w.put(10, name, fill("1p", "x")))
		}
		for range 2 { // s3fifo keeps what was used more than once
			now := int64(1)
			_, err := w.e.SetAttr(resolve(t, w, "b").ID, tiers.Change{Atime: &now})
			if got := w.content("a"); len(got) != page || err != nil {
				t.Errorf("read %d bytes; touch: %v", len(got), err)
			}
		}
		must(t, w.put(10, "e", fill("1p", "x")), w.put(10, "f", fill("1p", "x")))
		w.wantStates("mm..mm", "a", "b", "c", "d", "e", "f")
		must(t, w.put(10, "h", fill("2p", "x")))
		w.wantStates(last+"m", "a", "b", "e", "f", "h")
		w.close(false)
	}
}

// TestIdle: what no process has open for too long goes: a temporary file after TempExpiry, and a version whose open does
// not come again, by which its thread is told that there is nothing.
func TestIdle(t *testing.T) {
	clock := newTestClock()
	w := open(t, shmDir(t), state.Options{Now: clock.now, TempExpiry: time.Minute})
	left := func(what string, pages int64, names ...string) {
		t.Helper()
		w.e.Expire()
		if st := w.e.Stats(); st.UsedBytes != pages*page || st.Names != int64(len(names)) {
			t.Errorf("%s: %d bytes, %d names; want %d pages, %q", what, st.UsedBytes, st.Names, pages, names)
		}
	}
	must(t, w.put(10, "a.tmp", fill("1p", "x")))
	f := w.write(10, "b.tmp", string(fill("1p", "y")))
	clock.add(59 * time.Second)
	left("young", 2, "a.tmp", "b.tmp")
	clock.add(3 * time.Second)
	left("old, one of them open", 1, "b.tmp")
	must(t, f.close())
	clock.add(59 * time.Second)
	left("closed", 1, "b.tmp")
	must(t, w.rename(10, "b.tmp", "b", false))
	clock.add(time.Hour)
	left("a block", 1, "b")

	old := w.reading(20, "b")
	at := w.found(10, "b")
	trunc := openfile.WriteOptions{Truncate: true}
	if _, err := w.e.OpenWrite(context.Background(), at.ID, by(10), trunc); !errors.Is(err, state.ErrStale) {
		t.Errorf("open of a block that another process reads: %v", err)
	}
	w.forget(at.ID)
	anew := w.found(10, "b")
	if _, err := w.openRead(10, "b"); !errors.Is(err, block.ErrNotFound) {
		t.Errorf("read of a version before its open: %v", err)
	}
	w.forget(anew.ID)
	clock.add(11 * time.Second)
	left("the open does not come", 1)
	must(t, old.close())
	left("and nobody has the old one open", 0)
	w.close(false)
}

// TestDescriptors: a file is committed by the last close of the process that writes it: not while that has another
// descriptor, nor by a process that has inherited one.
func TestDescriptors(t *testing.T) {
	w := open(t, shmDir(t), state.Options{TempPatterns: []string{"*.tmp"}})
	f := w.write(10, "a", "1")
	for what, flush := range map[string]func() error{
		"with another descriptor left": func() error { return f.flush(closer{open: true}) },
		"by a process that inherited":  func() error { return w.e.Flush(context.Background(), f.h, by(20), closer{}) },
		"by one that is killed":        func() error { return w.e.Flush(context.Background(), f.h, by(20), closer{killed: true}) },
	} {
		must(t, flush())
		if _, err := w.lookup(20, "a"); !errors.Is(err, block.ErrNotFound) {
			t.Errorf("close %s: %v", what, err)
		}
		f.rewrite("22", 0) // it goes on
	}
	must(t, f.flush(closer{}))
	w.wantRead("22", "a")
	f.release()
	// The same for what another process renames meanwhile.
	f = w.write(10, "b.tmp", "1")
	must(t, f.flush(closer{open: true}), w.rename(20, "b.tmp", "b", false))
	if _, err := w.lookup(20, "b"); !errors.Is(err, block.ErrNotFound) {
		t.Errorf("renamed while a descriptor is left: %v", err)
	}
	f.rewrite("22", 0)
	must(t, f.flush(closer{}))
	w.wantRead("22", "b")
	f.release()
	w.close(false)
}

// TestExpired: a block past its time is gone at once, also to who has looked it up, and its name can be made anew.
func TestExpired(t *testing.T) {
	clock := newTestClock()
	w := open(t, shmDir(t), state.Options{Now: clock.now})
	must(t, w.put(10, "a", []byte("x")))
	at, err := w.lookup(20, "a")
	must(t, err, w.e.SetTTL(at.ID, time.Second))
	clock.add(2 * time.Second)
	if _, err := w.openReadID(20, at.ID); !errors.Is(err, block.ErrNotFound) {
		t.Errorf("open of what was looked up before: %v", err)
	}
	w.forget(at.ID)
	f, err := w.create(10, "a", true, false)
	must(t, err, f.close())
	w.wantStates("m", "a")
	w.close(false)
}

// TestRenameErrors: rename refuses what POSIX refuses.
func TestRenameErrors(t *testing.T) {
	w := open(t, shmDir(t), state.Options{})
	must(t, w.mkdir("d"), w.mkdir("d/e"), w.mkdir("f"), w.put(10, "a", []byte("x")))
	for _, row := range []struct {
		from, to string
		no       bool // RENAME_NOREPLACE
		want     string
	}{
		{"none", "b", false, "ErrNotFound"}, {"a", "d", false, "ErrIsDir"}, {"d", "a", false, "ErrNotDir"}, {"d", "d/e/x", false, "ErrLoop"},
		{"d", "d/e", false, "ErrLoop"}, {"f", "d", false, "ErrNotEmpty"}, {"a", "a/b", false, "ErrNotDir"}, {"a", block.Reserved, false, "ErrReserved"},
		{"f", "d/e", true, "ErrExist"}, {"a", strings.Repeat("n", 256), false, "ErrNameTooLong"}, {"f", "d/e", false, "ok"},
	} {
		if got := kind(w.rename(10, row.from, row.to, row.no)); got != row.want {
			t.Errorf("rename of %s to %.10s: %s, want %s", row.from, row.to, got, row.want)
		}
	}
	w.close(false)
}

// TestAnew: a new version keeps the pin and the time to live of the block whose name it takes, whether a process has that
// open or not.
func TestAnew(t *testing.T) {
	for _, held := range []bool{false, true} {
		w := open(t, shmDir(t), state.Options{})
		must(t, w.put(10, "a", []byte("old")))
		id := resolve(t, w, "a").ID
		must(t, w.e.SetPinned(id, true), w.e.SetTTL(id, time.Hour))
		release := func() {}
		if held {
			f := w.reading(20, "a")
			release = f.release
		}
		must(t, w.put(10, "a", []byte("new")))
		if id := resolve(t, w, "a").ID; w.content("a") != "new" || !w.e.Pinned(id) || w.e.TTL(id) == 0 {
			t.Errorf("held %v: %q, pinned %v, to live %v", held, w.content("a"), w.e.Pinned(id), w.e.TTL(id))
		}
		release()
		w.close(false)
	}
}

// TestRetained: who looked a block up that a rename replaced meanwhile can read it, if it is one of the latest.
func TestRetained(t *testing.T) {
	w := open(t, shmDir(t), state.Options{CapacityBytes: 128 * page})
	version := func(letter string) {
		must(t, w.put(10, "t.tmp", fill("1p", letter)), w.rename(10, "t.tmp", "a", false))
	}
	version("x")
	var refs []state.Attr
	for _, letter := range []string{"y", "z", "u"} {
		at := w.found(20, "a")
		refs = append(refs, at)
		version(letter)
	}
	if st := w.e.Stats(); st.UsedBytes != 3*page || st.PinnedBytes != 2*page {
		t.Errorf("%d bytes, %d pinned; want the block and two versions before it", st.UsedBytes, st.PinnedBytes)
	}
	if f, err := w.openReadID(20, refs[0].ID); !errors.Is(err, state.ErrStale) {
		t.Errorf("open of the oldest: %v", err)
		if err == nil {
			f.release()
		}
	}
	f, err := w.openReadID(20, refs[1].ID)
	must(t, err)
	if got, err := f.read(); string(got) != string(fill("1p", "y")) {
		t.Errorf("read %.20q, %v", got, err)
	}
	must(t, f.close())
	w.forget(refs[0].ID)
	w.forget(refs[2].ID)
	if n := w.blobs(); n != 1 {
		t.Errorf("%d files in memory, want that of the block", n)
	}
	w.close(false)
}

// TestGuesses: a new file gets the room of a block of its group at once, as long as such guesses take no more than half of
// memory. What is not used goes back at the close.
func TestGuesses(t *testing.T) {
	w := open(t, shmDir(t), state.Options{CapacityBytes: 8 * page, Groups: map[block.GroupID]state.GroupOptions{"": {BlockBytes: 2 * page}}})
	var files []*file
	for i, want := range []struct {
		pages  int64
		direct bool
	}{{2, true}, {4, true}, {4, false}} {
		f, err := w.create(10, fmt.Sprint(i), false, true)
		must(t, err)
		files = append(files, f)
		if used := w.e.Stats().UsedBytes; used != want.pages*page || f.h.Direct() != want.direct {
			t.Errorf("file %d: %d bytes in use, direct %v; want %d pages, %v", i, used, f.h.Direct(), want.pages, want.direct)
		}
	}
	for _, f := range files {
		must(t, f.close())
	}
	if used := w.e.Stats().UsedBytes; used != 0 {
		t.Errorf("%d bytes in use by empty files", used)
	}
	w.close(false)
}

// TestOverrun: what the kernel writes past the room of a file comes out of the headroom, and other blocks go for it. Beyond
// that the close fails.
func TestOverrun(t *testing.T) {
	w := open(t, shmDir(t), state.Options{
		CapacityBytes: 8 * page, HeadroomBytes: 4 * page, Groups: map[block.GroupID]state.GroupOptions{"": {BlockBytes: page}},
	})
	must(t, w.put(10, "a", fill("6p", "x")))
	f, err := w.create(10, "b", false, true)
	must(t, err)
	f.raw(t, fill("3p", "y"))
	must(t, f.close())
	w.wantStates(".m", "a", "b")
	f, err = w.create(10, "c", false, true)
	must(t, err)
	f.raw(t, fill("9p", "z"))
	if err := f.close(); !errors.Is(err, block.ErrNoSpace) {
		t.Errorf("close of a file larger than memory: %v", err)
	}
	w.wantStates("m.", "b", "c")
	w.close(false)
}

// abandon ends a file that is open for writing, whose mount is gone.
func (f *file) abandon() {
	f.w.e.Abandon(f.h)
	f.w.forget(f.id)
}

// TestGone: a private file that was given up is told from a file without a name that somebody has
// open. A kernel may still take the file for the block, and must not find its size.
func TestGone(t *testing.T) {
	w := open(t, shmDir(t), state.Options{})
	must(t, w.put(10, "a", []byte("old")))
	f := w.writing(10, "a", true)
	if w.e.Attr(f.id).Gone {
		t.Error("a private file is gone")
	}
	w.e.Abandon(f.h)
	if a := w.e.Attr(f.id); !a.Gone {
		t.Errorf("a private file that was given up: %+v", a)
	}
	w.forget(f.id)
	must(t, w.put(10, "a", []byte("new")))
	r, err := w.openRead(20, "a")
	must(t, err, w.unlink(20, "a"))
	if a := w.e.Attr(r.id); a.Gone || a.Nlink != 0 || a.Size != 3 {
		t.Errorf("a file without a name, open: %+v", a)
	}
	must(t, r.close())
}

// TestLate: what the kernel sends after the engine was closed does no harm.
func TestLate(t *testing.T) {
	w := open(t, shmDir(t), state.Options{})
	must(t, w.put(10, "b", []byte("x")))
	f := w.write(10, "a", "x")
	if err := w.e.Close(context.Background(), false); err != nil {
		t.Error(err)
	}
	f.release()
	if err := w.unlink(10, "b"); err != nil && !errors.Is(err, block.ErrNotFound) && !errors.Is(err, block.ErrClosed) {
		t.Errorf("unlink: got %v", err)
	}
	if err := w.e.Close(context.Background(), false); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

// TestRenamePoisoned: a temporary file whose write failed is not renamed to a block, also if the write fails while the
// rename is under way.
func TestRenamePoisoned(t *testing.T) {
	w := open(t, shmDir(t), state.Options{CapacityBytes: 64 * page})
	defer w.close(false)
	must(t, w.mkdir("g"))
	const rounds = 3000
	var wg sync.WaitGroup
	wg.Go(func() { // each second file is whole
		for i := range rounds {
			f, err := w.openOrCreate(10, "g/t.tmp")
			if err != nil {
				t.Errorf("open: %v", err)
				return
			}
			_, err = f.h.WriteAt(context.Background(), fill("1p", "x"), 0)
			whole := i%2 == 0
			if err == nil && whole {
				_, err = f.h.WriteAt(context.Background(), fill("1p", "x"), page)
			} else if err == nil {
				_, err = f.h.WriteAt(context.Background(), fill("1p", "x"), 64*page)
			}
			if whole != (err == nil) {
				t.Errorf("write: %v", err)
			}
			f.close()
		}
	})
	blocks := 0
	done := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			err := w.rename(20, "g/t.tmp", "g/a", false)
			if err != nil && !errors.Is(err, block.ErrNotFound) && !errors.Is(err, block.ErrPoisoned) {
				t.Errorf("rename: %v", err)
				return
			}
			if data, err := w.get(30, "g/a"); err == nil && len(data) != 2*page {
				t.Errorf("a block of %d bytes, want %d", len(data), 2*page)
				return
			} else if err == nil {
				blocks++
			}
		}
	})
	wg.Wait()
	close(done)
	reader.Wait()
	if blocks == 0 {
		t.Error("no file was renamed")
	}
}

// TestRemovedDir: a kernel that has not heard yet that a directory was removed may use it: it finds nothing there, and
// makes nothing.
func TestRemovedDir(t *testing.T) {
	for _, several := range []bool{false, true} {
		w := open(t, shmDir(t), state.Options{Kernels: several})
		ctx := context.Background()
		must(t, w.mkdir("g"), w.mkdir("g/d"), w.put(10, "g/a", []byte("x")))
		g := w.found(20, "g")
		d, err := w.lookup(20, "g/d")
		must(t, err, w.rmdir("g/d"))
		absent := "ErrNotFound"
		if several {
			absent = "ErrStale"
		}
		for what, row := range map[string]struct {
			do   func() error
			want string
		}{
			"look-up": {func() error { _, err := w.e.Lookup(d.ID, "x", by(20)); return err }, absent},
			"create": {func() error {
				_, _, err := w.e.Create(ctx, openfile.CreateOptions{Parent: d.ID, Name: "x", Mode: 0o644, By: by(20)})
				return err
			}, "ErrNotFound"},
			"mkdir":  {func() error { _, err := w.e.Mkdir(d.ID, "x", 0o755, 0, 0, by(20).Proc()); return err }, "ErrNotFound"},
			"unlink": {func() error { return w.e.Unlink(d.ID, "x", by(20)) }, "ErrNotFound"},
			"rmdir":  {func() error { return w.e.Rmdir(ctx, d.ID, "x", by(20)) }, "ErrNotFound"},
			"rename into it": {func() error {
				return w.e.Rename(ctx, openfile.RenameOptions{Parent: g.ID, Name: "a", NewParent: d.ID, NewName: "x", By: by(20)})
			}, "ErrNotFound"},
			"rename out of it": {func() error {
				return w.e.Rename(ctx, openfile.RenameOptions{Parent: d.ID, Name: "x", NewParent: index.Root, NewName: "y", By: by(20)})
			}, "ErrNotFound"},
			"list": {func() error {
				if len(w.e.ReadDir(d.ID, 0, 0, by(20), nil)) != 0 {
					return block.ErrExist
				}
				return nil
			}, "ok"},
		} {
			if err := row.do(); kind(err) != row.want {
				t.Errorf("%s, several %t: %v, want %s", what, several, err, row.want)
			}
		}
		w.forget(d.ID)
		w.forget(g.ID)
		w.close(false)
	}
}

// link publishes a temporary file as link(2) does. It holds the file while it runs, as the kernel does.
func (w *world) link(tid uint32, from, to string) error {
	dir, err := w.parent(to)
	if err != nil {
		return err
	}
	a, err := w.lookup(tid, from)
	if err != nil {
		return err
	}
	defer w.forget(a.ID)
	l, err := w.e.Link(context.Background(), a.ID, dir, path.Base(to), by(tid))
	if err == nil {
		w.forget(l.ID)
	}
	return err
}

// TestLinkExpires: the temporary name that a killed publisher left goes like any temporary file, unless a process reads it. It
// pins the block that long, and no longer (H5).
func TestLinkExpires(t *testing.T) {
	now := time.Unix(1700000000, 0)
	w := open(t, shmDir(t), state.Options{Now: func() time.Time { return now }, TempExpiry: time.Minute})
	must(t, w.mkdir("g"))
	must(t, w.put(10, "g/a.tmp", []byte("x")))
	must(t, w.link(10, "g/a.tmp", "g/a"))
	if st := w.e.Stats(); st.PinnedBytes != page {
		t.Errorf("%d bytes pinned, want those of the file with two names", st.PinnedBytes)
	}
	f, err := w.openRead(20, "g/a.tmp")
	if err != nil {
		t.Fatal(err)
	}
	must(t, w.unlink(20, "g/a"))
	now = now.Add(2 * time.Minute)
	w.e.Expire()
	if b, err := w.get(20, "g/a.tmp"); string(b) != "x" {
		t.Errorf("while it is open: %q, %v", b, err)
	}
	f.release()
	w.e.Expire()
	if b, err := w.get(20, "g/a.tmp"); kind(err) != "ErrNotFound" {
		t.Errorf("after a minute: %q, %v", b, err)
	}
	if st := w.e.Stats(); st.UsedBytes != 0 || st.PinnedBytes != 0 {
		t.Errorf("%d bytes used, %d pinned; want none", st.UsedBytes, st.PinnedBytes)
	}
	w.close(false)
}

// TestLinkLimit: the number of files with two names is bounded (H5).
func TestLinkLimit(t *testing.T) {
	w := open(t, shmDir(t), state.Options{CapacityBytes: 2048 * page})
	must(t, w.mkdir("g"))
	one := func(i int) error {
		tmp := fmt.Sprintf("g/%d.tmp", i)
		must(t, w.put(10, tmp, nil))
		return w.link(10, tmp, fmt.Sprintf("g/%d", i))
	}
	for i := range 1024 {
		must(t, one(i))
	}
	if err := one(1024); !errors.Is(err, syscall.EMLINK) {
		t.Errorf("one more: %v, want EMLINK", err)
	}
	must(t, w.unlink(10, "g/7.tmp"))
	must(t, w.link(10, "g/1024.tmp", "g/1024"))
	w.close(false)
}

// TestMissesAreNotStores: a look-up counts as a miss unless its process makes the name, and began to at most 100 ms later.
func TestMissesAreNotStores(t *testing.T) {
	clock := newTestClock()
	w := open(t, shmDir(t), state.Options{Now: clock.now})
	defer w.close(false)
	must(t, w.mkdir("g"))
	last := w.e.Stats().Counters.LookupMisses
	misses := func(what string, want uint64) {
		t.Helper()
		clock.add(101 * time.Millisecond) // all is decided
		now := w.e.Stats()
		if got := now.Counters.LookupMisses - last; got != want || now.Summary.UnknownKeys != now.Counters.LookupMisses {
			t.Errorf("%s: %d misses, want %d; summary %d", what, got, want, now.Summary.UnknownKeys)
		}
		last = now.Counters.LookupMisses
	}
	look := func(pid uint32, names ...string) {
		for _, name := range names {
			if _, err := w.lookup(pid, name); err == nil {
				t.Errorf("%s is there", name)
			}
		}
	}
	look(10, "g/1", "g/1", "g/1.tmp")
	f := w.write(10, "g/1.tmp", "x")
	clock.add(time.Hour) // a slow write
	look(10, "g/1")
	must(t, f.close(), w.rename(10, "g/1.tmp", "g/1", false))
	misses("access, temporary file, rename", 0)

	look(10, "g/2")
	must(t, w.write(10, "g/2", "x").close())
	look(10, "g/dir")
	must(t, w.mkdirBy(10, "g/dir"))
	misses("in place, and a directory", 0)

	look(10, "g/3", "g/other")
	clock.add(101 * time.Millisecond) // to compute it
	look(10, "g/3")
	must(t, w.put(10, "g/3", []byte("x")))
	misses("computed, then stored", 2)

	look(20, "g/4")
	must(t, w.put(10, "g/4", []byte("x")))
	misses("stored by another process", 1)

	for i := range 100_000 {
		look(10, fmt.Sprint("g/none", i))
	}
	misses("many that nobody stores", 100_000)

	look(10, "g/5")
	if got := w.e.Stats().Counters.LookupMisses; got != last {
		t.Errorf("not decided yet: %d misses, want %d", got, last)
	}
	must(t, w.put(10, "g/5", []byte("x")))
	misses("stored, and looked at meanwhile", 0)
	look(10, "g/6")
	misses("a miss after that", 1)
}
