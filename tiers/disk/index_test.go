package disk

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/driver"
)

// TestIndexDamage: an index that is lost, torn, stale or damaged anywhere changes
// nothing but where the blocks are read from.
func TestIndexDamage(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, d *directory){
		"lost":    func(t *testing.T, d *directory) { remove(t, d.join(format.IndexName)) },
		"empty":   func(t *testing.T, d *directory) { truncate(t, d.join(format.IndexName), 0) },
		"header":  func(t *testing.T, d *directory) { truncate(t, d.join(format.IndexName), format.PageBytes) },
		"longer":  func(t *testing.T, d *directory) { truncate(t, d.join(format.IndexName), 3*format.PageBytes) },
		"unalign": func(t *testing.T, d *directory) { truncate(t, d.join(format.IndexName), 2*format.PageBytes-1) },
		"uuid": func(t *testing.T, d *directory) {
			patchPage(t, d.join(format.IndexName), 0, func(b []byte) { b[16]++ })
		},
		"older": func(t *testing.T, d *directory) {
			patchPage(t, d.join(format.IndexName), 0, func(b []byte) { b[32]-- })
		},
		"later": func(t *testing.T, d *directory) {
			patchPage(t, d.join(format.IndexName), 0, func(b []byte) { b[32]++ })
		},
		"chunk": func(t *testing.T, d *directory) {
			patch(t, d.join(format.IndexName), format.PageBytes+50, func(b []byte) { b[0]++ }, 1)
		},
		"counts": func(t *testing.T, d *directory) {
			patchPage(t, d.join(format.IndexName), 0, func(b []byte) { b[40]++ })
		},
		"a directory": func(t *testing.T, d *directory) {
			remove(t, d.join(format.IndexName))
			if err := os.Mkdir(d.join(format.IndexName), 0o700); err != nil {
				t.Fatal(err)
			}
		},
		"a link": func(t *testing.T, d *directory) {
			if err := os.Rename(d.join(format.IndexName), d.join("kvfs-other")); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("kvfs-other", d.join(format.IndexName)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := openTest(t, filepath.Join(t.TempDir(), "d"))
			want := plantAll(t, d)
			saveTest(t, d)
			spoil(t, d)
			got, r := recoverTest(t, d)
			wantSame(t, got, want)
			if r.indexErr == nil {
				t.Error("the index was believed")
			}
		})
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// manySlots has an index of three chunks and more: 4 slabs of 400 blocks with keys of
// 2000 bytes.
func manySlots(t *testing.T) (*directory, map[string]string) {
	t.Helper()
	d := openTest(t, filepath.Join(t.TempDir(), "d"))
	for number := range uint32(4) {
		f, s := plantSlab(t, d, number, 4096, 450)
		for slot := range uint32(400) {
			key := fmt.Sprintf("%d/%d", number, slot) + strings.Repeat("/"+strings.Repeat("d", 199), 10)
			plantBlock(t, f, s, slot+number, key, uint64(slot)+1, 1)
		}
	}
	want, _ := recoverTest(t, d)
	if len(want) != 1600 {
		t.Fatalf("%d blocks", len(want))
	}
	saveTest(t, d)
	return d, want
}

// TestIndexChunks: an index of several chunks, of which any may be damaged: what was
// told before counts, the tables tell the rest.
func TestIndexChunks(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	d, want := manySlots(t)
	info, err := os.Stat(d.join(format.IndexName))
	if err != nil || info.Size() < 3*format.ChunkBytes {
		t.Fatalf("index of %d bytes, %v", info.Size(), err)
	}
	got, r := recoverTest(t, d)
	wantSame(t, got, want)
	if r.byIndex != 1600 || r.indexErr != nil {
		t.Fatalf("got %+v", r)
	}
	for i := range 20 {
		off := rng.Int64N(info.Size())
		if i < 4 {
			off = format.PageBytes + int64(i)*format.ChunkBytes + rng.Int64N(format.ChunkFixedBytes) // every chunk at least once
		}
		flip := func(b []byte) { b[0] ^= 1 << (i % 8) }
		patch(t, d.join(format.IndexName), off, flip, 1)
		got, r := recoverTest(t, d)
		wantSame(t, got, want)
		if r.blocks != 1600 {
			t.Errorf("byte %d: %d blocks, %v", off, r.blocks, r.indexErr)
		}
		if chunk := (off - format.PageBytes) / format.ChunkBytes; r.indexErr != nil && off >= format.PageBytes && (r.byIndex > 0) != (chunk > 0) {
			t.Errorf("byte %d of chunk %d: %d by the index", off, chunk, r.byIndex)
		}
		patch(t, d.join(format.IndexName), off, flip, 1)
	}
}

// TestIndexOfOtherSlabs: the index is not believed about a slab that is not as it was
// then, and it is about the others.
func TestIndexOfOtherSlabs(t *testing.T) {
	d := openTest(t, filepath.Join(t.TempDir(), "d"))
	want := plantAll(t, d)
	saveTest(t, d)
	remove(t, d.slabPath(1))
	f, s := plantSlab(t, d, 1, 4096, 6) // other slots
	plantBlock(t, f, s, 4, "new", 1, 100)
	f, s = plantSlab(t, d, 3, 4096, 2) // not in the index
	plantBlock(t, f, s, 1, "newer", 1, 100)
	got, r := recoverTest(t, d)
	for key := range want {
		if strings.HasPrefix(key, "model/") {
			delete(want, key)
		}
	}
	want["new"], want["newer"] = got["new"], got["newer"]
	wantSame(t, got, want)
	if want["new"] == "" || want["newer"] == "" || r.byIndex != 7 || r.indexErr != nil {
		t.Errorf("got %+v", r)
	}
}

// TestSaveIndexInterrupted: wherever the writing of the index stops, what is held is held,
// and the next index counts.
func TestSaveIndexInterrupted(t *testing.T) {
	for _, dirty := range []bool{false, true} {
		dir, want := plantClosed(t)
		for step := range 3 {
			d := openTest(t, dir)
			if dirty {
				if err := d.markDirty(); err != nil {
					t.Fatal(err)
				}
			}
			empty := func(*indexWriter) error { return nil } // wrong, so that believing it shows
			err := d.writeIndex(d.superblock().IndexGen+1, empty)
			if err == nil && step > 0 {
				err = os.Rename(d.join(format.IndexTmpName), d.join(format.IndexName))
			}
			if err == nil && step > 1 {
				saveTest(t, d)
			}
			if err := errors.Join(err, d.close()); err != nil {
				t.Fatal(err)
			}
			got, r := reopened(t, dir)
			wantSame(t, got, want)
			if believed := r.byIndex == r.blocks; believed != (step == 2 || step == 0 && !dirty) {
				t.Errorf("dirty %v, step %d: got %+v", dirty, step, r)
			}
		}
	}
}

// TestIndexWriterOrder: an index that is given slabs or slots out of order is not
// written, and the one before still counts.
func TestIndexWriterOrder(t *testing.T) {
	slab := func(n uint32) *format.SlabHeader {
		return &format.SlabHeader{Number: n, Epoch: 1, SlotBytes: 4096, Slots: 4}
	}
	slot := func(n uint32) *format.SlotHeader {
		return &format.SlotHeader{Slot: n, Epoch: 1, Key: []byte("k"), Attrs: driver.Attrs{Seq: 1}}
	}
	failed := errors.New("failed")
	for name, tc := range map[string]struct {
		fill func(w *indexWriter)
		err  error
		want error
	}{
		"no slab":     {func(w *indexWriter) { w.slot(slot(0)) }, nil, block.ErrInvalid},
		"slab twice":  {func(w *indexWriter) { w.slab(slab(1)); w.slab(slab(1)) }, nil, block.ErrInvalid},
		"slab before": {func(w *indexWriter) { w.slab(slab(2)); w.slab(slab(1)) }, nil, block.ErrInvalid},
		"slot twice":  {func(w *indexWriter) { w.slab(slab(1)); w.slot(slot(2)); w.slot(slot(2)) }, nil, block.ErrInvalid},
		"slot beyond": {func(w *indexWriter) { w.slab(slab(1)); w.slot(slot(4)) }, nil, block.ErrInvalid},
		"no seq":      {func(w *indexWriter) { w.slab(slab(1)); w.slot(&format.SlotHeader{Key: []byte("k")}) }, nil, block.ErrCorrupt},
		"caller":      {func(w *indexWriter) { w.slab(slab(1)) }, failed, failed},
		"none":        {func(w *indexWriter) {}, nil, nil},
		"good":        {func(w *indexWriter) { w.slab(slab(1)); w.slot(slot(0)); w.slot(slot(3)); w.slab(slab(5)) }, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := openTest(t, filepath.Join(t.TempDir(), "d"))
			before := d.superblock()
			err := d.saveIndex(func(w *indexWriter) error { tc.fill(w); return tc.err })
			if !errors.Is(err, tc.want) {
				t.Errorf("got %v", err)
			}
			if after := d.superblock(); after.Clean != (tc.want == nil) || tc.want != nil && after != before {
				t.Errorf("superblock %+v, before %+v", after, before)
			}
			if _, err := os.Stat(d.join(format.IndexTmpName)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %v", format.IndexTmpName, err)
			}
		})
	}
}
