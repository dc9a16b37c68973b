package suite

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// primaryCreate: files are empty, private and open for reading and writing, ids ascend from above
// 0, and Open gives another handle on the same bytes.
func primaryCreate(t *testing.T, h PrimaryHarness) {
	p, got := openPrimary(t, h, "create")
	if len(got) != 0 {
		t.Errorf("new store: adopted %d", len(got))
	}
	if free, err := p.FreeBytes(); err != nil || free <= 0 {
		t.Errorf("FreeBytes: got %d, %v", free, err)
	}
	var last driver.BlobID
	for i := range 300 {
		id, f, err := p.Create()
		if err != nil {
			t.Fatal(err)
		}
		if id <= last {
			t.Fatalf("Create: got id %d after %d", id, last)
		}
		last = id
		if fi, err := f.Stat(); err != nil || fi.Size() != 0 || fi.Mode().Perm() != 0o600 {
			t.Fatalf("new file: got %v, %v", fi, err)
		}
		want := fmt.Sprint("bytes of ", i)
		if _, err := f.WriteAt([]byte(want), 0); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if got := readPrimary(t, p, id); got != want {
			t.Fatalf("blob %d: got %q, want %q", id, got, want)
		}
	}
	closePrimary(t, p, false)
}

// primaryRecords are records with extreme values in every field; path and mtime are set for the
// file.
func primaryRecords() []*driver.Record {
	component := strings.Repeat("x", block.MaxName)
	long := strings.TrimSuffix(strings.Repeat(component+"/", block.MaxPath/256), "/") // 4095
	var every []byte
	for c := 1; c < 256; c++ {
		if c != '/' {
			every = append(every, byte(c))
		}
	}
	return []*driver.Record{
		{Path: "a"},
		{Path: "group/" + string(every), Mode: 0o7777, UID: 1<<32 - 1, GID: 1<<32 - 2, Seq: 1<<64 - 1},
		{Path: "x" + long[:block.MaxName-1] + long[block.MaxName:], Pinned: true},
		{Path: strings.Repeat("ab/", block.MaxPath/3) + "z", Mode: 0o600},
		{Path: "g/sum", Sum: block.Checksum{Sum: 1<<63 + 5, Valid: true}, Expires: time.Unix(4e9, 999999999)},
		{Path: "g/zero sum", Sum: block.Checksum{Valid: true}, Atime: time.Unix(-5, 7)},
		{Path: "g/times", Atime: time.Date(9999, 1, 1, 0, 0, 0, 1, time.UTC), Expires: time.Unix(1, 0)},
		{Path: "g", Dir: true, Mode: 0o755, Mtime: time.Unix(77, 88), Pinned: true},
	}
}

// fillPrimary commits a file for each of the records and closes it.
func fillPrimary(t *testing.T, p driver.Primary) map[driver.BlobID]*driver.Record {
	t.Helper()
	want := map[driver.BlobID]*driver.Record{}
	for i, r := range primaryRecords() {
		data := strings.Repeat("0123456789abcdef", i*1000)
		if r.Dir {
			data = ""
		}
		id, f := createPrimary(t, p, data)
		if !r.Dir {
			fits := recordOf(t, r.Path, f)
			r.Size, r.Mtime = fits.Size, fits.Mtime
		}
		commitPrimary(t, p, id, f, r)
		f.Close()
		want[id] = r
	}
	return want
}

// checkFilled checks that all of want was adopted, every field and byte.
func checkFilled(
	t *testing.T, p driver.Primary, got map[driver.BlobID]primaryAdopted, want map[driver.BlobID]*driver.Record,
) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("adopted %d files, want %d", len(got), len(want))
	}
	for id, r := range want {
		g, ok := got[id]
		if !ok || g.modified || !sameRecord(g.record, r) {
			t.Errorf("blob %d:\n got %+v\nwant %+v", id, g, r)
			continue
		}
		data := readPrimary(t, p, id)
		if int64(len(data)) != r.Size || strings.ReplaceAll(data, "0123456789abcdef", "") != "" {
			t.Errorf("%.40q: wrong bytes, %d of %d", r.Path, len(data), r.Size)
		}
	}
}

// primaryAdopt: a kept store comes back with every byte and field, more than
// once (A11).
func primaryAdopt(t *testing.T, h PrimaryHarness) {
	p, _ := openPrimary(t, h, "adopt")
	want := fillPrimary(t, p)
	for range 3 {
		closePrimary(t, p, true)
		var got map[driver.BlobID]primaryAdopted
		p, got = openPrimary(t, h, "adopt")
		checkFilled(t, p, got, want)
	}
	closePrimary(t, p, false)
}

// primaryCrash: a store whose process died comes back in the same way (A11).
func primaryCrash(t *testing.T, h PrimaryHarness) {
	if h.Crash == nil {
		t.Skip("the harness cannot crash")
	}
	p, _ := openPrimary(t, h, "crash")
	want := fillPrimary(t, p)
	id, _ := createPrimary(t, p, "not committed")
	h.Crash(t, p)
	p, got := openPrimary(t, h, "crash")
	checkFilled(t, p, got, want)
	if _, err := p.Open(id); !errors.Is(err, block.ErrNotFound) {
		t.Errorf("uncommitted file: got %v, want %v", err, block.ErrNotFound)
	}
	closePrimary(t, p, false)
}

// primaryReplace: a second commit of a blob replaces the record, shorter or longer.
func primaryReplace(t *testing.T, h PrimaryHarness) {
	p, _ := openPrimary(t, h, "replace")
	id, f := createPrimary(t, p, "data")
	var r *driver.Record
	for seq, path := range []string{"g/long name of a block", "g/b", "g/another name"} {
		r = recordOf(t, path, f)
		r.Seq = uint64(seq)
		commitPrimary(t, p, id, f, r)
	}
	closePrimary(t, p, true)
	p, got := openPrimary(t, h, "replace")
	if g := got[id]; len(got) != 1 || g.modified || !sameRecord(g.record, r) {
		t.Errorf("got %+v, want %+v", g, r)
	}
	closePrimary(t, p, false)
}

// primaryUncommitted: files without a record, or whose record was dropped, are gone after adoption.
// Dropping a record twice is no error.
func primaryUncommitted(t *testing.T, h PrimaryHarness) {
	p, _ := openPrimary(t, h, "uncommitted")
	never, _ := createPrimary(t, p, "never")
	dropped, f := createPrimary(t, p, "dropped")
	commitPrimary(t, p, dropped, f, recordOf(t, "g/dropped", f))
	for range 2 {
		if err := p.Uncommit(dropped, f); err != nil {
			t.Fatalf("Uncommit: %v", err)
		}
	}
	again, f := createPrimary(t, p, "again")
	commitPrimary(t, p, again, f, recordOf(t, "g/again", f))
	if err := p.Uncommit(again, f); err != nil {
		t.Fatal(err)
	}
	commitPrimary(t, p, again, f, recordOf(t, "g/again", f))
	closePrimary(t, p, true)
	p, got := openPrimary(t, h, "uncommitted")
	if _, ok := got[again]; !ok || len(got) != 1 {
		t.Errorf("adopted %v, want blob %d only", got, again)
	}
	for _, id := range []driver.BlobID{never, dropped} {
		_, err := p.Open(id)
		wantKind(t, "Open of an uncommitted file", err, block.ErrNotFound)
	}
	closePrimary(t, p, false)
}

// primaryRefused: files that fn refuses are removed at once.
func primaryRefused(t *testing.T, h PrimaryHarness) {
	p, _ := openPrimary(t, h, "refused")
	keep := map[driver.BlobID]bool{}
	for i := range 100 {
		id, f := createPrimary(t, p, "x")
		commitPrimary(t, p, id, f, recordOf(t, fmt.Sprint("g/", i), f))
		f.Close()
		keep[id] = i%2 == 0
	}
	closePrimary(t, p, true)
	p = h.Open(t, "refused")
	if err := p.Adopt(func(id driver.BlobID, _ *driver.Record, _ bool) bool { return keep[id] }); err != nil {
		t.Fatal(err)
	}
	for id, k := range keep {
		f, err := p.Open(id)
		if k != (err == nil) || !k && !errors.Is(err, block.ErrNotFound) {
			t.Errorf("blob %d, kept %v: Open gives %v", id, k, err)
		}
		f.Close()
	}
	closePrimary(t, p, true)
	p, got := openPrimary(t, h, "refused")
	if len(got) != 50 {
		t.Errorf("second adoption: got %d, want 50", len(got))
	}
	closePrimary(t, p, false)
}

// primaryModified: adoption detects a write after the commit, whether it changes the size or not,
// and reports the size of the file. A new commit repairs it.
func primaryModified(t *testing.T, h PrimaryHarness) {
	p, _ := openPrimary(t, h, "modified")
	type want struct {
		modified bool
		size     int64
	}
	wants := map[driver.BlobID]want{}
	for name, change := range map[string]func(*os.File) error{
		"same":      func(*os.File) error { return nil },
		"overwrite": func(f *os.File) error { _, err := f.WriteAt([]byte("DATA"), 0); return err },
		"longer":    func(f *os.File) error { _, err := f.WriteAt([]byte("more"), 4); return err },
		"shorter":   func(f *os.File) error { return f.Truncate(1) },
		"healed":    func(f *os.File) error { return f.Truncate(9) },
	} {
		id, f := createPrimary(t, p, "data")
		commitPrimary(t, p, id, f, recordOf(t, "g/"+name, f))
		if err := change(f); err != nil {
			t.Fatal(err)
		}
		if name == "healed" {
			commitPrimary(t, p, id, f, recordOf(t, "g/"+name, f))
		}
		fi, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		wants[id] = want{name != "same" && name != "healed", fi.Size()}
		f.Close()
	}
	closePrimary(t, p, true)
	p, got := openPrimary(t, h, "modified")
	for id, w := range wants {
		g := got[id]
		if g.record == nil || g.modified != w.modified || g.record.Size != w.size {
			t.Errorf("got %+v of %+v, want %+v", g, g.record, w)
		}
	}
	closePrimary(t, p, false)
}

// primaryRemove: a removed blob is not found, but handles and mappings made
// before keep its bytes, through later files and Close (A9).
func primaryRemove(t *testing.T, h PrimaryHarness) {
	p, _ := openPrimary(t, h, "remove")
	data := strings.Repeat("A9", 1<<16)
	id, f := createPrimary(t, p, data)
	commitPrimary(t, p, id, f, recordOf(t, "g/r", f))
	mapping, err := syscall.Mmap(int(f.Fd()), 0, len(data), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(mapping)
	if err := p.Remove(id); err != nil {
		t.Fatalf("Remove: %v", err)
	}
	_, err = p.Open(id)
	wantKind(t, "Open after Remove", err, block.ErrNotFound)
	wantKind(t, "Remove twice", p.Remove(id), block.ErrNotFound)
	_, err = p.Open(1 << 62)
	wantKind(t, "Open of an id never given", err, block.ErrNotFound)

	check := func(when string) {
		t.Helper()
		got := make([]byte, len(data))
		if _, err := f.ReadAt(got, 0); err != nil || string(got) != data {
			t.Errorf("%s: the handle has other bytes, %v", when, err)
		}
		if string(mapping) != data {
			t.Errorf("%s: the mapping has other bytes", when)
		}
	}
	check("after Remove")
	for range 20 {
		other, g := createPrimary(t, p, strings.Repeat("zz", 1<<16))
		g.Close()
		if other == id {
			t.Errorf("id %d given out twice", id)
		}
	}
	check("after other files")
	closePrimary(t, p, false)
	check("after Close")
}

// primaryIDs: ids ascend over the whole life of a store, also if all blobs of an earlier process
// are gone.
func primaryIDs(t *testing.T, h PrimaryHarness) {
	var last driver.BlobID
	for life := range 4 {
		p, _ := openPrimary(t, h, "ids")
		for range 10 {
			id, f := createPrimary(t, p, "x")
			if id <= last {
				t.Fatalf("life %d: got id %d after %d", life, id, last)
			}
			last = id
			if life%2 == 0 {
				commitPrimary(t, p, id, f, recordOf(t, "g/x", f))
			}
			if life < 2 {
				if err := p.Remove(id); err != nil {
					t.Fatal(err)
				}
			}
			f.Close()
		}
		closePrimary(t, p, life < 3)
	}
}

// primaryDiscard: Close without keep leaves nothing to adopt.
func primaryDiscard(t *testing.T, h PrimaryHarness) {
	p, _ := openPrimary(t, h, "discard")
	fillPrimary(t, p)
	closePrimary(t, p, false)
	p, got := openPrimary(t, h, "discard")
	if len(got) != 0 {
		t.Errorf("adopted %d, want none", len(got))
	}
	closePrimary(t, p, false)
}

// primaryClosed: every method after Close fails with ErrClosed.
func primaryClosed(t *testing.T, h PrimaryHarness) {
	for _, keep := range []bool{true, false} {
		p := h.Open(t, "closed")
		id, f := createPrimary(t, p, "x")
		r := recordOf(t, "g/x", f)
		closePrimary(t, p, keep)
		_, _, err := p.Create()
		wantKind(t, "Create", err, block.ErrClosed)
		_, err = p.Open(id)
		wantKind(t, "Open", err, block.ErrClosed)
		_, err = p.FreeBytes()
		wantKind(t, "FreeBytes", err, block.ErrClosed)
		wantKind(t, "Commit", p.Commit(id, f, r), block.ErrClosed)
		wantKind(t, "Uncommit", p.Uncommit(id, f), block.ErrClosed)
		wantKind(t, "Remove", p.Remove(id), block.ErrClosed)
		err = p.Adopt(func(driver.BlobID, *driver.Record, bool) bool { return true })
		wantKind(t, "Adopt", err, block.ErrClosed)
	}
}
