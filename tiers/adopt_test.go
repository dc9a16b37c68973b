package tiers_test

import (
	"context"
	"errors"
	"os"
	"path"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/mem"
	"github.com/kvfs/kvfs/tiers/state"
)

// crash leaves the store as the death of the process would: the lock on it goes,
// all files and records stay. The engine must not be used after that.
func (w *world) crash() {
	w.t.Helper()
	if err := w.store.Close(true); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { w.e.Close(context.Background(), true) })
}

// write makes an uncommitted file with data and leaves it open.
func (w *world) write(tid uint32, name string, data string) *file {
	w.t.Helper()
	f, err := w.openOrCreate(tid, name)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := f.h.WriteAt(context.Background(), []byte(data), 0); err != nil {
		w.t.Fatal(err)
	}
	return f
}

// found looks up a path that has to be there.
func (w *world) found(tid uint32, name string) state.Attr {
	w.t.Helper()
	a, err := w.lookup(tid, name)
	must(w.t, err)
	return a
}

// reading opens a file for reading, which has to succeed.
func (w *world) reading(tid uint32, name string) *file {
	w.t.Helper()
	f, err := w.openRead(tid, name)
	must(w.t, err)
	return f
}

// writing opens a file for writing, which has to succeed.
func (w *world) writing(tid uint32, name string, trunc bool) *file {
	w.t.Helper()
	f, err := w.openWrite(context.Background(), tid, name, trunc)
	must(w.t, err)
	return f
}

// must fails the test at the first error.
func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// content reads a file, or says why not.
func (w *world) content(name string) string {
	p, err := w.get(w.reader, name)
	if err != nil {
		return kind(err)
	}
	return string(p)
}

// wantRead compares what is read under each of the names.
func (w *world) wantRead(want string, names ...string) {
	w.t.Helper()
	for _, name := range names {
		if got := w.content(name); got != want {
			w.t.Errorf("%s reads %.60q, want %.60q", name, got, want)
		}
	}
}

// wantAll compares what is read, by name.
func (w *world) wantAll(want map[string]string) {
	w.t.Helper()
	for name, data := range want {
		w.wantRead(data, name)
	}
}

// TestAdopt: after a crash, and after a close that keeps, the next engine has
// the committed files and directories with bytes, attributes, pins, times to
// live and checksums, and nothing else (A11).
func TestAdopt(t *testing.T) {
	for _, end := range []string{"crash", "keep"} {
		t.Run(end, func(t *testing.T) {
			dir := shmDir(t)
			o := state.Options{CapacityBytes: 64 * page}
			w := open(t, dir, o)
			must(t, w.mkdir("g"), w.mkdir("g/d"), w.mkdir("g/empty"), w.mkdir("h"))
			must(t, w.put(10, "g/d/a", []byte("aaaa")), w.put(10, "g/b", []byte("old")), w.put(10, "g/b", []byte("b")))
			must(t, w.put(10, "g/gone", []byte("x")), w.unlink(10, "g/gone"))
			must(t, w.put(10, "g/t.tmp", []byte("renamed")), w.rename(10, "g/t.tmp", "h/r", false))
			must(t, w.put(10, "g/left.tmp", []byte("not renamed")))
			must(t, w.put(10, "root", []byte("root")))
			must(t, w.rename(10, "h", "i", false))
			id := resolve(t, w, "g/d/a").ID
			mode, uid, gid, mtime := uint32(0o600), uint32(7), uint32(8), int64(1_000_000_007)
			_, err := w.e.SetAttr(id, tiers.Change{Mode: &mode, UID: &uid, GID: &gid, Mtime: &mtime})
			must(t, err, w.e.SetPinned(id, true), w.e.SetTTL(resolve(t, w, "i/r").ID, time.Hour))
			sum, err := w.e.Checksum(id)
			must(t, err)
			w.write(10, "g/b", "rewritten, not committed")
			w.write(10, "g/new", "not committed")
			want := resolve(t, w, "g/d/a")
			if end == "crash" {
				w.crash()
			} else {
				w.close(true)
			}

			n := open(t, dir, o)
			defer n.close(false)
			n.wantAll(map[string]string{
				"g/d/a": "aaaa", "g/b": "ErrNotFound", "i/r": "renamed", "root": "root",
				"g/new": "ErrNotFound", "g/gone": "ErrNotFound", "g/left.tmp": "not renamed", "h/r": "ErrNotFound",
			})
			got := resolve(t, n, "g/d/a")
			if got.Mode != want.Mode || got.UID != 7 || got.GID != 8 || got.Mtime != mtime || got.Size != want.Size {
				t.Errorf("attributes: got %+v, want %+v", got, want)
			}
			if s, err := n.e.Checksum(got.ID); s != sum || err != nil || s != block.Sum([]byte("aaaa")) {
				t.Errorf("checksum: got %v, %v, want %v", s, err, sum)
			}
			if !n.e.Pinned(got.ID) || n.e.Pinned(resolve(t, n, "root").ID) {
				t.Error("pins are wrong")
			}
			if ttl := n.e.TTL(resolve(t, n, "i/r").ID); ttl <= 0 || ttl > time.Hour || n.e.TTL(got.ID) != 0 {
				t.Errorf("time to live: got %v", ttl)
			}
			if a := resolve(t, n, "g/empty"); a.Mode != 0o040755 {
				t.Errorf("empty directory: mode %#o", a.Mode)
			}
			st := n.e.Stats()
			if st.Blocks != 4 || st.Counters.Adopted != 4 || st.UsedBytes != 4*page || st.PinnedBytes != 2*page || n.blobs() != 4+4 {
				t.Errorf("got %+v, %d files", st, n.blobs())
			}
			must(t, n.put(10, "g/b", []byte("third")))
			n.crash()
			m := open(t, dir, o)
			defer m.close(false)
			m.wantRead("third", "g/b")
		})
	}
}

func resolve(t testing.TB, w *world, name string) state.Attr {
	t.Helper()
	a, err := w.e.Resolve(context.Background(), name)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return a
}

// TestAdoptModified: a block whose bytes changed after its commit is dropped, for nobody knows whether
// the change was whole, unless it was committed anew; files that are never committed stay as they are
// (rule 5).
func TestAdoptModified(t *testing.T) {
	dir := shmDir(t)
	o := state.Options{Groups: map[block.GroupID]state.GroupOptions{"p": {Pinned: true}}}
	w := open(t, dir, o)
	must(t, w.mkdir("p"))
	names := []string{"open", "open, synced before", "closed", "synced", "not changed", "p/open", "x.lock", "x.tmp"}
	for _, name := range names {
		must(t, w.put(10, name, []byte("data")))
		f := w.writing(10, name, false)
		if name != "not changed" {
			f.rewrite("more data", 0)
		}
		switch name {
		case "closed":
			must(t, f.close())
		case "synced":
			must(t, w.e.Fsync(context.Background(), f.id))
		case "open, synced before":
			must(t, w.e.Fsync(context.Background(), f.id))
			f.rewrite("MORE", 0)
		}
	}
	w.crash()
	n := open(t, dir, o)
	defer n.close(false)
	want := map[string]string{"open": "ErrNotFound", "open, synced before": "ErrNotFound", "not changed": "data"}
	for _, name := range names {
		data := want[name]
		if data == "" {
			data = "more data"
		}
		n.wantRead(data, name)
	}
	if st := n.e.Stats(); st.Counters.AdoptDropped != 2 || st.Blocks != 6 || n.blobs() != 7 {
		t.Errorf("got %+v, %d files", st, n.blobs())
	}
}

// TestAdoptShared: of a temporary name that several processes use a crash brings back no file that
// waits for the name, nor one whose rename waits for its owner's close (rules 3 and 4). What is dropped
// because it changed after its commit leaves its name to nothing that it has replaced (rule 5).
func TestAdoptShared(t *testing.T) {
	const nothing = "ErrNotFound"
	for _, row := range []struct {
		name string
		do   func(w *world) error
		want string // at x.tmp
	}{
		{"another took the name", func(w *world) error {
			a := w.write(10, "x.tmp", "a")
			b := w.write(20, "x.tmp", "b")
			return errors.Join(a.close(), b.close())
		}, "b"},
		{"another took the name, and it was renamed", func(w *world) error {
			a := w.write(10, "x.tmp", "a")
			b := w.write(20, "x.tmp", "b")
			return errors.Join(a.close(), b.close(), w.rename(20, "x.tmp", "b", false))
		}, nothing},
		{"its rename waits", func(w *world) error {
			w.write(10, "x.tmp", "a")
			return w.rename(20, "x.tmp", "a", false)
		}, nothing},
		{"it was renamed over another, and changed", func(w *world) error {
			must(w.t, w.put(10, "a", []byte("old")))
			old := w.found(10, "a") // who has looked it up may open it for a moment yet
			must(w.t, w.put(10, "x.tmp", []byte("new")), w.rename(10, "x.tmp", "a", false))
			f := w.writing(10, "a", false)
			f.rewrite("newer", 0)
			if f.id == old.ID {
				w.t.Fatal("the block was not replaced")
			}
			return nil
		}, nothing},
	} {
		t.Run(row.name, func(t *testing.T) {
			dir := shmDir(t)
			w := open(t, dir, state.Options{CapacityBytes: 256 * page})
			must(t, row.do(w))
			w.crash()
			n := open(t, dir, state.Options{})
			defer n.close(false)
			n.wantAll(map[string]string{"x.tmp": row.want, "a": nothing})
		})
	}
}

// record is a file of the memory tier as a crash may leave it.
type record struct {
	path string
	dir  bool
	seq  uint64
	data string
}

// leave fills a store with records and lets go of it.
func leave(t *testing.T, dir string, records []record) {
	t.Helper()
	s, err := mem.Open(context.Background(), mem.Options{Dir: dir + "/s", SizeBytes: 64 << 20, NoMount: true})
	must(t, err)
	for _, r := range records {
		id, f, err := s.Create()
		must(t, err)
		_, err = f.WriteString(r.data)
		must(t, err)
		fi, err := f.Stat()
		must(t, err)
		must(t, s.Commit(id, f, &driver.Record{
			Path: r.path, Dir: r.dir, Seq: r.seq, Size: fi.Size(), Mtime: fi.ModTime(), Mode: 0o700,
		}), f.Close())
	}
	must(t, s.Close(true))
}

// TestAdoptRecords: of several records with one path the latest wins, missing
// directories are made, and no set of records keeps an engine from starting: a
// crash may come between any two of the writes of a rename, and a bad record
// costs its own file only.
func TestAdoptRecords(t *testing.T) {
	for _, tc := range []struct {
		name    string
		records []record
		want    map[string]string // content; "dir" for directories
	}{
		{"latest of three", []record{{"g", true, 1, ""}, {"g/a", false, 3, "3"}, {"g/a", false, 5, "5"}, {"g/a", false, 4, "4"}},
			map[string]string{"g/a": "5"}},
		{"no directory", []record{{"g/d/a", false, 3, "3"}, {"g/d/b", false, 4, "4"}},
			map[string]string{"g/d/a": "3", "g/d/b": "4", "g/d": "dir"}},
		{"directory moved, its files not yet", []record{{"h", true, 9, ""}, {"g/a", false, 3, "3"}},
			map[string]string{"g/a": "3", "h": "dir"}},
		{"two directories", []record{{"g", true, 1, ""}, {"g", true, 2, ""}, {"g/a", false, 3, "3"}},
			map[string]string{"g/a": "3"}},
		{"file and directory", []record{{"g/x", true, 1, ""}, {"g/x", false, 2, "file"}, {"g/x/a", false, 3, "3"}},
			map[string]string{"g/x/a": "3", "g/x": "dir"}},
		{"file with the name of a lost directory", []record{{"g/x", false, 5, "file"}, {"g/x/a", false, 3, "3"}},
			nil},
		{"file with the name of a lost directory, older", []record{{"g/x", false, 2, "file"}, {"g/x/a", false, 3, "3"}},
			nil},
		{"directory below a file", []record{{"g/x", false, 2, "file"}, {"g/x/d", true, 3, ""}},
			nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := shmDir(t)
			leave(t, dir, tc.records)
			w := open(t, dir, state.Options{})
			defer w.close(false)
			for name, data := range tc.want {
				if data == "dir" {
					if a := resolve(t, w, name); a.Mode&0o170000 != 0o040000 {
						t.Errorf("%s: mode %#o", name, a.Mode)
					}
				} else if got := w.content(name); got != data {
					t.Errorf("%s: got %q, want %q", name, got, data)
				}
			}
			removeAll(t, w, "")
			if n := w.blobs(); n != 0 {
				t.Errorf("%d files left after all was removed", n)
			}
		})
	}
}

// TestAdoptShrinks: an engine with less room than the one before keeps what was
// committed last, and evicts the rest.
func TestAdoptShrinks(t *testing.T) {
	dir := shmDir(t)
	w := open(t, dir, state.Options{CapacityBytes: 8 * page})
	must(t, w.mkdir("g"))
	for _, n := range []string{"g/1", "g/2", "g/3", "g/4"} {
		must(t, w.put(10, n, make([]byte, 2*page)))
	}
	w.crash()
	n := open(t, dir, state.Options{CapacityBytes: 4 * page})
	defer n.close(false)
	names, err := n.names(10, "g")
	must(t, err)
	if len(names) != 2 || names[0] != "3" || n.e.Stats().UsedBytes != 4*page || n.blobs() != 3 {
		t.Errorf("got %v, %+v, %d files", names, n.e.Stats(), n.blobs())
	}
	if ev := n.news(); len(ev) != 2 || ev[0] != "evicted g/1 2p capacity" || ev[1] != "evicted g/2 2p capacity" {
		t.Errorf("events: got %q", ev)
	}
}

// TestClose: a close that does not keep frees everything (A11).
func TestClose(t *testing.T) {
	dir := shmDir(t)
	w := open(t, dir, state.Options{})
	must(t, w.mkdir("g"), w.put(10, "g/a", []byte("x")))
	w.close(false)
	if _, err := os.Stat(filepath.Join(dir, "s")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory after Close: %v", err)
	}
	if left, _ := filepath.Glob(path.Join(dir, "*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}
