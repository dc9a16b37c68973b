package recovery

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

// TestIndexNoFile: an index that is no file changes nothing but where the blocks are read from.
func TestIndexNoFile(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"a directory": func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
		"a link": func(path string) error {
			return errors.Join(os.Rename(path, path+"-other"), os.Symlink(path+"-other", path))
		},
	} {
		d := openTest(t, filepath.Join(t.TempDir(), "d"))
		want := plantAll(t, d)
		saveTest(t, d)
		must(t, spoil(d.Join(format.IndexName)))
		got, r := recoverTest(t, d)
		wantSame(t, got, want)
		if r.IndexErr == nil {
			t.Errorf("%s was believed", name)
		}
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	must(t, os.Remove(path))
}

// manySlots has an index of three chunks and more: 4 slabs of 400 blocks with keys of
// 2000 bytes.
func manySlots(t *testing.T) (*Dir, map[string]string) {
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
	info, err := os.Stat(d.Join(format.IndexName))
	if err != nil || info.Size() < 3*format.ChunkBytes {
		t.Fatalf("index of %d bytes, %v", info.Size(), err)
	}
	got, r := recoverTest(t, d)
	wantSame(t, got, want)
	if r.ByIndex != 1600 || r.IndexErr != nil {
		t.Fatalf("got %+v", r)
	}
	for i := range 20 {
		off := rng.Int64N(info.Size())
		if i < 4 {
			off = format.PageBytes + int64(i)*format.ChunkBytes + rng.Int64N(format.ChunkFixedBytes) // every chunk at least once
		}
		flip := func(b []byte) { b[0] ^= 1 << (i % 8) }
		patch(t, d.Join(format.IndexName), off, flip, 1)
		got, r := recoverTest(t, d)
		wantSame(t, got, want)
		if r.Blocks != 1600 {
			t.Errorf("byte %d: %d blocks, %v", off, r.Blocks, r.IndexErr)
		}
		if chunk := (off - format.PageBytes) / format.ChunkBytes; r.IndexErr != nil && off >= format.PageBytes && (r.ByIndex > 0) != (chunk > 0) {
			t.Errorf("byte %d of chunk %d: %d by the index", off, chunk, r.ByIndex)
		}
		patch(t, d.Join(format.IndexName), off, flip, 1)
	}
}

// TestIndexOfOtherSlabs: the index is not believed about a slab that is not as it was
// then, and it is about the others.
func TestIndexOfOtherSlabs(t *testing.T) {
	d := openTest(t, filepath.Join(t.TempDir(), "d"))
	want := plantAll(t, d)
	saveTest(t, d)
	remove(t, d.SlabPath(1))
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
	if want["new"] == "" || want["newer"] == "" || r.ByIndex != 7 || r.IndexErr != nil {
		t.Errorf("got %+v", r)
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
		fill func(w *IndexWriter)
		err  error
		want error
	}{
		"no slab":     {func(w *IndexWriter) { w.Slot(slot(0)) }, nil, block.ErrInvalid},
		"slab twice":  {func(w *IndexWriter) { w.Slab(slab(1)); w.Slab(slab(1)) }, nil, block.ErrInvalid},
		"slab before": {func(w *IndexWriter) { w.Slab(slab(2)); w.Slab(slab(1)) }, nil, block.ErrInvalid},
		"slot twice":  {func(w *IndexWriter) { w.Slab(slab(1)); w.Slot(slot(2)); w.Slot(slot(2)) }, nil, block.ErrInvalid},
		"slot beyond": {func(w *IndexWriter) { w.Slab(slab(1)); w.Slot(slot(4)) }, nil, block.ErrInvalid},
		"no seq":      {func(w *IndexWriter) { w.Slab(slab(1)); w.Slot(&format.SlotHeader{Key: []byte("k")}) }, nil, block.ErrCorrupt},
		"caller":      {func(w *IndexWriter) { w.Slab(slab(1)) }, failed, failed},
		"none":        {func(w *IndexWriter) {}, nil, nil},
		"good":        {func(w *IndexWriter) { w.Slab(slab(1)); w.Slot(slot(0)); w.Slot(slot(3)); w.Slab(slab(5)) }, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := openTest(t, filepath.Join(t.TempDir(), "d"))
			before := d.Superblock()
			err := d.SaveIndex(func(w *IndexWriter) error { tc.fill(w); return tc.err })
			if !errors.Is(err, tc.want) {
				t.Errorf("got %v", err)
			}
			if after := d.Superblock(); after.Clean != (tc.want == nil) || tc.want != nil && after != before {
				t.Errorf("superblock %+v, before %+v", after, before)
			}
			if _, err := os.Stat(d.Join(format.IndexTmpName)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %v", format.IndexTmpName, err)
			}
		})
	}
}
