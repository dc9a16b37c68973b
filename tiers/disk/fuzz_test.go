package disk

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
)

// FuzzPages: no bytes make a decoder of pages panic or fail with another error than
// ErrCorrupt or a VersionError, and what is decoded is encoded to a page that says the
// same. The checksum is mended, so that the fields behind it are reached.
func FuzzPages(f *testing.F) {
	for _, p := range pages(f) {
		f.Add(p.page)
		f.Add(p.page[:100])
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		page := make([]byte, pageBytes)
		for _, mend := range []bool{false, true} {
			copy(page, b)
			if mend {
				sealPage(page)
			}
			again := make([]byte, pageBytes)
			s, err := decodeSuperblock(page)
			if wantDecoded(t, err) {
				s.encode(again)
				if s2, err := decodeSuperblock(again); err != nil || s2 != s {
					t.Errorf("superblock %+v became %+v, %v", s, s2, err)
				}
			}
			h, err := decodeSlabHeader(page)
			if wantDecoded(t, err) {
				h.encode(again)
				if h2, err := decodeSlabHeader(again); err != nil || h2 != h || h.wantBytes() <= 0 {
					t.Errorf("slab header %+v became %+v, %v", h, h2, err)
				}
			}
			i, err := decodeIndexHeader(page)
			if wantDecoded(t, err) {
				i.encode(again)
				if i2, err := decodeIndexHeader(again); err != nil || i2 != i {
					t.Errorf("index header %+v became %+v, %v", i, i2, err)
				}
			}
			var slot slotHeader
			if wantDecoded(t, slot.decode(page)) {
				var slot2 slotHeader
				if err := slot.encode(again); err != nil || slot2.decode(again) != nil || !sameSlot(&slot, &slot2) {
					t.Errorf("slot header %+v became %+v, %v", slot, slot2, err)
				}
			}
		}
	})
}

func wantDecoded(t *testing.T, err error) bool {
	t.Helper()
	var later *VersionError
	if err != nil && !errors.Is(err, block.ErrCorrupt) && !errors.As(err, &later) {
		t.Errorf("got %v", err)
	}
	return err == nil
}

// FuzzChunk: the same for the chunks of the index, and no slot is given that cannot be
// in the slab.
func FuzzChunk(f *testing.F) {
	b := make([]byte, pageBytes)
	r, h := run{slabHeader: sampleSlab(), entries: 1}, sampleSlot()
	r.encode(b[chunkFixedBytes:])
	h.encodeEntry(b[chunkFixedBytes+runBytes:], h.attrs.Dirs)
	used := chunkFixedBytes + runBytes + entryBytes(&h, h.attrs.Dirs)
	f.Add(b[:used])
	r.entries = 3
	r.encode(b[chunkFixedBytes:])
	f.Add(b[:used])
	f.Add(b[:chunkFixedBytes])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := checkChunk(b, 0, 9); err != nil && !errors.Is(err, block.ErrCorrupt) {
			t.Errorf("got %v", err)
		}
		if len(b) < chunkFixedBytes || len(b) > chunkBytes {
			return
		}
		chunk := sealChunk(append(bytes.Clone(b), make([]byte, pageBytes)...), len(b), 0, 9)
		runs, err := checkChunk(chunk, 0, 9)
		if err != nil {
			t.Fatal(err)
		}
		slab := sampleSlab()
		s := &slabFound{slabHeader: slab, usable: slab.slots}
		last := int64(-1)
		c := indexCursor{slabs: map[uint32]*slabFound{slab.number: s}, give: func(s *slabFound, h *slotHeader) {
			if int64(h.slot) <= last || h.slot >= s.slots || h.size > s.slotBytes || checkKey(string(h.key)) != nil || s.next != h.slot+1 {
				t.Errorf("gives slot %d with %d bytes, key %q", h.slot, h.size, h.key)
			}
			last = int64(h.slot)
		}}
		wantDecoded(t, c.chunk(runs))
	})
}

// FuzzIndexFile: no file that is called kvfs-index makes recovery fail, panic, or lose a
// block that the tables know.
func FuzzIndexFile(f *testing.F) {
	dir := f.TempDir()
	d := openTest(f, dir)
	want := plantAll(f, d)
	saveTest(f, d)
	good, err := os.ReadFile(d.join(indexName))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:pageBytes])
	f.Add(good[:len(good)-1])
	f.Add([]byte("KVFSINDX"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(d.join(indexName), b, 0o600); err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		_, err := d.recover(context.Background(), recoverFuncs{
			slab: func(*slabFound) {},
			slot: func(s *slabFound, h *slotHeader) { got[string(h.key)] = describe(h) },
		})
		var later *VersionError
		if errors.As(err, &later) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		wantSame(t, got, want)
	})
}
