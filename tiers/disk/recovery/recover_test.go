package recovery

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/driver"
)

// must ends a test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// openTest opens a directory below the test's own, and closes it.
func openTest(t testing.TB, dir string) *Dir {
	t.Helper()
	d, err := Open(dir, Options{Create: true, SlabBytes: 1 << 20, AllowTmpfs: true, Logger: zap.NewNop()})
	must(t, err)
	t.Cleanup(func() { d.Close() }) // may have been closed before
	return d
}

// plantBlock writes a block to a slot of a slab file.
func plantBlock(t testing.TB, f *os.File, s *format.SlabHeader, slot uint32, key string, seq uint64, size int) {
	t.Helper()
	data := make([]byte, size)
	for i, x := 0, seq<<32|uint64(slot); i < size; i++ {
		x = x*6364136223846793005 + 1442695040888963407
		data[i] = byte(x >> 56)
	}
	h := format.SlotHeader{
		Slot: slot, Epoch: s.Epoch, Size: int64(size), Sum: block.Sum(data).Sum, Key: []byte(key),
		Attrs: driver.Attrs{Seq: seq, Mode: 0o644, UID: 1, GID: 2, Mtime: int64(seq) * 1e9, Pinned: slot%2 == 1,
			Dirs: make([]driver.DirAttrs, strings.Count(key, "/"))},
	}
	page := make([]byte, format.PageBytes)
	err := h.Encode(page)
	if err == nil {
		_, err = f.WriteAt(page, s.HeaderOff(slot))
	}
	if err == nil {
		_, err = f.WriteAt(data, s.DataOff(slot))
	}
	must(t, err)
}

// plantSlab makes a slab.
func plantSlab(t testing.TB, d *Dir, number uint32, slotBytes int64, slots uint32) (*os.File, *format.SlabHeader) {
	t.Helper()
	s := &format.SlabHeader{Number: number, UUID: d.Superblock().UUID, Epoch: 1000 + uint64(number), SlotBytes: slotBytes, Slots: slots}
	f, err := os.Create(d.SlabPath(number))
	must(t, err)
	t.Cleanup(func() { f.Close() })
	page := make([]byte, format.PageBytes)
	s.Encode(page)
	if _, err := f.WriteAt(page, 0); err != nil {
		t.Fatal(err)
	}
	// Zeros, not holes: what fallocate leaves is allocated as well.
	if _, err := f.WriteAt(make([]byte, s.WantBytes()-format.PageBytes), format.PageBytes); err != nil {
		t.Fatal(err)
	}
	return f, s
}

// plantAll makes three slabs, one of them empty, and returns what they hold.
func plantAll(t testing.TB, d *Dir) map[string]string {
	t.Helper()
	f, s := plantSlab(t, d, 1, 8192, 6)
	for _, slot := range []uint32{0, 1, 2, 5} {
		plantBlock(t, f, s, slot, fmt.Sprintf("model/%02d/block", slot), uint64(10+slot), int(slot)*1500)
	}
	plantSlab(t, d, 2, 4096, 3)
	f, s = plantSlab(t, d, 30, 4096, 9)
	for slot := range uint32(7) {
		plantBlock(t, f, s, slot+1, fmt.Sprintf("g%d/%s", slot, strings.Repeat("k", int(slot)*30+1)), uint64(20+slot), 4096-int(slot))
	}
	got, _ := recoverTest(t, d)
	if len(got) != 11 {
		t.Fatalf("planted 11 blocks, recovered %d", len(got))
	}
	return got
}

func describe(h *format.SlotHeader) string {
	return fmt.Sprintf("slot %d size %d sum %x attrs %+v", h.Slot, h.Size, h.Sum, h.Attrs)
}

// recoverTest returns what recover finds by key, of two the one that counts.
func recoverTest(t testing.TB, d *Dir) (map[string]string, *Recovered) {
	t.Helper()
	got, seqs := map[string]string{}, map[string]uint64{}
	var slabs []uint32
	r, err := d.Recover(context.Background(), Funcs{
		Slab: func(s *Slab) {
			if n := len(slabs); n > 0 && slabs[n-1] >= s.Number {
				t.Errorf("slab %d after %d", s.Number, slabs[n-1])
			}
			slabs = append(slabs, s.Number)
		},
		Slot: func(s *Slab, h *format.SlotHeader) {
			if key := string(h.Key); h.Attrs.Seq > seqs[key] {
				seqs[key], got[key] = h.Attrs.Seq, describe(h)
			}
			if h.Epoch != s.Epoch {
				t.Errorf("slot %d of slab %d has epoch %d, want %d", h.Slot, s.Number, h.Epoch, s.Epoch)
			}
		},
	})
	must(t, err)
	return got, r
}

// saveTest writes the index of what is held, as a clean close does.
func saveTest(t testing.TB, d *Dir) {
	t.Helper()
	err := d.SaveIndex(func(w *IndexWriter) error {
		_, err := d.Recover(context.Background(), Funcs{
			Slab: func(*Slab) {},
			Slot: func(s *Slab, h *format.SlotHeader) {
				if w.header.Slabs == 0 || w.run.Number != s.Number {
					w.Slab(&s.SlabHeader)
				}
				w.Slot(h)
			},
		})
		return err
	})
	must(t, err)
}

func wantSame(t testing.TB, got, want map[string]string) {
	t.Helper()
	if maps.Equal(got, want) {
		return
	}
	for key := range want {
		if got[key] != want[key] {
			t.Errorf("%s: got %q, want %q", key, got[key], want[key])
		}
	}
	for key := range got {
		if want[key] == "" {
			t.Errorf("%s: got %q, want none", key, got[key])
		}
	}
}

// patch changes bytes of a file in place.
func patch(t testing.TB, path string, off int64, change func(b []byte), n int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	b := make([]byte, n)
	if _, err := f.ReadAt(b, off); err != nil {
		t.Fatal(err)
	}
	change(b)
	if _, err := f.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
}

// patchPage changes a page and mends its checksum.
func patchPage(t testing.TB, path string, off int64, change func(page []byte)) {
	t.Helper()
	patch(t, path, off, func(b []byte) { change(b); format.SealPage(b) }, format.PageBytes)
}

// TestRecoverTables: what a table may hold besides used slots and zeros.
func TestRecoverTables(t *testing.T) {
	d := openTest(t, filepath.Join(t.TempDir(), "d"))
	want := plantAll(t, d)
	f, s := plantSlab(t, d, 5, 4096, 8)
	plantBlock(t, f, s, 0, "g0/k", 99, 10)          // later than in slab 30
	plantBlock(t, f, s, 1, "model/00/block", 1, 10) // superseded
	plantBlock(t, f, s, 2, "old", 50, 10)           // of another epoch
	plantBlock(t, f, s, 3, "elsewhere", 50, 10)     // copied from another slot
	plantBlock(t, f, s, 4, "large", 50, 10)         // larger than its slot
	patch(t, f.Name(), s.HeaderOff(5)+77, noise, 8) // torn, or data of another class
	plantBlock(t, f, s, 6, "torn", 50, 10)          // its first half only
	plantBlock(t, f, s, 7, "next", 50, 10)          // of a later version and another epoch
	patch(t, f.Name(), s.HeaderOff(6)+2048, noise, 8)
	patchPage(t, f.Name(), s.HeaderOff(7), func(b []byte) { b[8], b[16] = 2, b[16]+1 })
	patchPage(t, f.Name(), s.HeaderOff(2), func(b []byte) { b[16]++ })
	patchPage(t, f.Name(), s.HeaderOff(3), func(b []byte) { b[76]++ })
	patchPage(t, f.Name(), s.HeaderOff(4), func(b []byte) { binary.LittleEndian.PutUint64(b[32:], 4097) })
	got, r := recoverTest(t, d)
	if got["g0/k"] == want["g0/k"] {
		t.Error("g0/k is not the later one")
	}
	want["g0/k"] = got["g0/k"]
	wantSame(t, got, want)
	if r.Blocks != 13 || r.Stale != 3 || r.BadSlots != 3 {
		t.Errorf("got %+v, want 13 used, 3 stale, 3 bad", r)
	}
}

func noise(b []byte) { copy(b, "noise!!!") }

func truncate(t testing.TB, path string, size int64) {
	t.Helper()
	must(t, os.Truncate(path, size))
}

// TestSlabTruncated: a slab cut at any page keeps exactly the blocks that lie before
// the cut, with the index and without.
func TestSlabTruncated(t *testing.T) {
	d := openTest(t, filepath.Join(t.TempDir(), "d"))
	want := plantAll(t, d)
	saveTest(t, d)
	s := format.SlabHeader{SlotBytes: 4096, Slots: 9}
	for size := s.WantBytes() - 1; size >= 0; size -= 2048 {
		truncate(t, d.SlabPath(30), size)
		slots := max((size-s.DataOff(0))/s.SlotBytes, 0)
		left := maps.Clone(want)
		for slot := max(slots, 1); slot < 8; slot++ { // key g<n> is in slot n+1
			maps.DeleteFunc(left, func(key, _ string) bool { return strings.HasPrefix(key, fmt.Sprintf("g%d/", slot-1)) })
		}
		for _, clean := range []bool{true, false} {
			d.mu.super.Clean = clean
			got, r := recoverTest(t, d)
			wantSame(t, got, left)
			if aside := slots == 0; aside != (len(r.SetAside) == 1) {
				t.Errorf("%d bytes: got %+v", size, r)
			} else if !aside && r.Truncated != int64(len(want)-len(left)) {
				t.Errorf("%d bytes: truncated %d, want %d", size, r.Truncated, len(want)-len(left))
			}
		}
	}
}

// TestRecoverLaterVersion: a page of a later version anywhere refuses the directory, and the error
// names the file and both versions. Check with Repair changes nothing there.
func TestRecoverLaterVersion(t *testing.T) {
	for _, tc := range []struct {
		what, name string
		off        int64
	}{
		{"superblock", format.SuperName, 0},
		{"superblock", format.SuperName, format.PageBytes},
		{"slab header", format.SlabName(30), 0},
		{"slot header", format.SlabName(30), 5 * format.PageBytes},
		{"slot header", format.SlabName(2), format.PageBytes}, // where a slot is free in version 1
		{"index", format.IndexName, 0},
	} {
		t.Run(fmt.Sprintf("%s@%d", tc.name, tc.off), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "d")
			d := openTest(t, dir)
			plantAll(t, d)
			if tc.what != "slot header" {
				saveTest(t, d)
			}
			patchPage(t, filepath.Join(dir, tc.name), tc.off, func(b []byte) {
				if format.IsZero(b) {
					copy(b, format.SlotMagic)
					binary.LittleEndian.PutUint64(b[16:], 1002)
				}
				b[8] = 9
			})
			older := int64(1 - d.mu.at)
			must(t, d.Close())
			d, err := Open(dir, Options{AllowTmpfs: true})
			if err == nil {
				_, err = d.Recover(context.Background(), Funcs{Slab: func(*Slab) {}, Slot: func(*Slab, *format.SlotHeader) {}})
				d.Close()
			}
			var later *format.VersionError
			if !errors.As(err, &later) || *later != (format.VersionError{What: tc.what, Path: filepath.Join(dir, tc.name), Got: 9, Want: 1}) {
				t.Errorf("got %v", err)
			}
			// Whatever else is wrong, here what comes before it, stays as it is.
			if tc.name != format.SuperName {
				flipped(format.SuperName, older*format.PageBytes+20)(t, dir)
			}
			flipped(format.SlabName(1), format.PageBytes+100)(t, dir)
			must(t, os.WriteFile(filepath.Join(dir, format.IndexTmpName), []byte("unfinished"), 0o600))
			before := files(t, dir)
			for _, repair := range []bool{false, true} {
				if _, err := Check(context.Background(), dir, CheckOptions{Repair: repair, Data: true}); !errors.As(err, &later) {
					t.Errorf("Check with repair %v: got %v", repair, err)
				}
			}
			if !maps.Equal(files(t, dir), before) {
				t.Error("Check changed the directory")
			}
		})
	}
}

// TestRecoverCancelled: recovery ends with its context.
func TestRecoverCancelled(t *testing.T) {
	d := openTest(t, filepath.Join(t.TempDir(), "d"))
	plantAll(t, d)
	ctx, cancel := context.WithCancel(context.Background())
	fn := Funcs{Slab: func(*Slab) { cancel() }, Slot: func(*Slab, *format.SlotHeader) {}}
	if _, err := d.Recover(ctx, fn); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
