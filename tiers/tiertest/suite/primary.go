package suite

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/driver"
)

// PrimaryHarness tells RunPrimary how to open the implementation under test.
type PrimaryHarness struct {
	// Open opens the store of that name, a short word, or fails the test. The same name is the same
	// store, so that files kept by Close(true) can be adopted. A new name is an empty store. Open
	// registers the clean-up of all that the store may leave behind. Close may be called twice.
	Open func(t *testing.T, name string) driver.Primary

	// Crash releases everything of p without a call of Close, as the death of its process does. Nil
	// skips the tests that need it.
	Crash func(t *testing.T, p driver.Primary)
}

// RunPrimary checks that an implementation keeps the promises of driver.Primary. Each property is a
// subtest with its own store.
func RunPrimary(t *testing.T, h PrimaryHarness) {
	for _, tc := range []struct {
		name string
		run  func(*testing.T, PrimaryHarness)
	}{
		{"create", primaryCreate},
		{"adopt", primaryAdopt},
		{"crash", primaryCrash},
		{"replace", primaryReplace},
		{"uncommitted", primaryUncommitted},
		{"refused", primaryRefused},
		{"modified", primaryModified},
		{"remove", primaryRemove},
		{"ids", primaryIDs},
		{"discard", primaryDiscard},
		{"closed", primaryClosed},
		{"parallel", primaryParallel},
		{"closing", primaryClosing},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.run(t, h) })
	}
}

// primaryAdopted is the report of Adopt about one blob.
type primaryAdopted struct {
	record   *driver.Record
	modified bool
}

// openPrimary opens a store and adopts everything in it, by blob.
func openPrimary(t *testing.T, h PrimaryHarness, name string) (driver.Primary, map[driver.BlobID]primaryAdopted) {
	t.Helper()
	p := h.Open(t, name)
	got := map[driver.BlobID]primaryAdopted{}
	err := p.Adopt(func(id driver.BlobID, r *driver.Record, modified bool) bool {
		if _, ok := got[id]; ok || id == 0 {
			t.Errorf("Adopt offers blob %d twice, or 0", id)
		}
		got[id] = primaryAdopted{r, modified}
		return true
	})
	if err != nil {
		t.Fatalf("Adopt: %v", err)
	}
	return p, got
}

// createPrimary makes a file with data, last modified long ago, so that any later write is visible.
func createPrimary(t *testing.T, p driver.Primary, data string) (driver.BlobID, *os.File) {
	t.Helper()
	id, f, err := p.Create()
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.WriteString(data); err != nil {
		t.Fatal(err)
	}
	old := time.Date(2020, 2, 2, 2, 2, 2, 123456789, time.UTC)
	if err := os.Chtimes(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), old, old); err != nil {
		t.Fatal(err)
	}
	return id, f
}

// recordOf returns a record that fits the file.
func recordOf(t *testing.T, path string, f *os.File) *driver.Record {
	t.Helper()
	fi, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return &driver.Record{Path: path, Seq: 1, Size: fi.Size(), Mode: 0o644, Mtime: fi.ModTime()}
}

func commitPrimary(t *testing.T, p driver.Primary, id driver.BlobID, f *os.File, r *driver.Record) {
	t.Helper()
	if err := p.Commit(id, f, r); err != nil {
		t.Fatalf("Commit %q: %v", r.Path, err)
	}
}

// readPrimary returns the bytes of a blob through a new handle.
func readPrimary(t *testing.T, p driver.Primary, id driver.BlobID) string {
	t.Helper()
	f, err := p.Open(id)
	if err != nil {
		t.Fatalf("Open %d: %v", id, err)
	}
	defer f.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(f); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// closePrimary ends the first life of a store.
func closePrimary(t *testing.T, p driver.Primary, keep bool) {
	t.Helper()
	for range 2 { // the second call does nothing
		if err := p.Close(keep); err != nil {
			t.Fatalf("Close(%v): %v", keep, err)
		}
	}
}

func wantKind(t *testing.T, what string, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%s: got %v, want %v", what, err, kind)
	}
}

// sameRecord reports whether two records say the same; times as instants.
func sameRecord(a, b *driver.Record) bool {
	times := a.Mtime.Equal(b.Mtime) && a.Atime.Equal(b.Atime) && a.Expires.Equal(b.Expires) &&
		a.Expires.IsZero() == b.Expires.IsZero()
	x, y := *a, *b
	x.Mtime, x.Atime, x.Expires = time.Time{}, time.Time{}, time.Time{}
	y.Mtime, y.Atime, y.Expires = time.Time{}, time.Time{}, time.Time{}
	return times && x == y
}
