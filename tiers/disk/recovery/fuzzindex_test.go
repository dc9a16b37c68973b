package recovery

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/driver"
)

// FuzzChunk: the same for the chunks of the index, and no slot is given that cannot be
// in the slab.
func FuzzChunk(f *testing.F) {
	b := make([]byte, format.PageBytes)
	slab := format.SlabHeader{Number: 7, Epoch: 0x1112131415161718, SlotBytes: 65536, Slots: 100}
	r := format.Run{SlabHeader: slab, Entries: 1}
	h := format.SlotHeader{Slot: 3, Size: 65000, Key: []byte("group/ab\xff"), Attrs: driver.Attrs{Seq: 5, Dirs: make([]driver.DirAttrs, 1)}}
	r.Encode(b[format.ChunkFixedBytes:])
	h.EncodeEntry(b[format.ChunkFixedBytes+format.RunBytes:], h.Attrs.Dirs)
	used := format.ChunkFixedBytes + format.RunBytes + format.EntryBytes(&h, h.Attrs.Dirs)
	f.Add(b[:used])
	r.Entries = 3
	r.Encode(b[format.ChunkFixedBytes:])
	f.Add(b[:used])
	f.Add(b[:format.ChunkFixedBytes])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := format.CheckChunk(b, 0, 9); err != nil && !errors.Is(err, block.ErrCorrupt) {
			t.Errorf("got %v", err)
		}
		if len(b) < format.ChunkFixedBytes || len(b) > format.ChunkBytes {
			return
		}
		chunk := format.SealChunk(append(bytes.Clone(b), make([]byte, format.PageBytes)...), len(b), 0, 9)
		runs, err := format.CheckChunk(chunk, 0, 9)
		must(t, err)
		s := &Slab{SlabHeader: slab, Usable: slab.Slots}
		last := int64(-1)
		c := indexCursor{slabs: map[uint32]*Slab{slab.Number: s}, give: func(s *Slab, h *format.SlotHeader) {
			if int64(h.Slot) <= last || h.Slot >= s.Slots || h.Size > s.SlotBytes || format.Check(string(h.Key), h.Attrs.User) != nil || s.next != h.Slot+1 {
				t.Errorf("gives slot %d with %d bytes, key %q", h.Slot, h.Size, h.Key)
			}
			last = int64(h.Slot)
		}}
		var later *format.VersionError
		if err := c.chunk(runs); err != nil && !errors.Is(err, block.ErrCorrupt) && !errors.As(err, &later) {
			t.Errorf("got %v", err)
		}
	})
}

// FuzzIndexFile: no file that is called kvfs-index makes recovery fail, panic, or lose a
// block that the tables know.
func FuzzIndexFile(f *testing.F) {
	dir := f.TempDir()
	d := openTest(f, dir)
	want := plantAll(f, d)
	saveTest(f, d)
	good, err := os.ReadFile(d.Join(format.IndexName))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:format.PageBytes])
	f.Add(good[:len(good)-1])
	f.Add([]byte("KVFSINDX"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		must(t, os.WriteFile(d.Join(format.IndexName), b, 0o600))
		got := map[string]string{}
		_, err := d.Recover(context.Background(), Funcs{
			Slab: func(*Slab) {},
			Slot: func(s *Slab, h *format.SlotHeader) { got[string(h.Key)] = describe(h) },
		})
		var later *format.VersionError
		if errors.As(err, &later) {
			return
		}
		must(t, err)
		wantSame(t, got, want)
	})
}
