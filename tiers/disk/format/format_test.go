package format

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

var sampleUUID = UUID{0: 0xa0, 15: 0xaf}

func sampleSuper() Superblock {
	return Superblock{Clean: true, UUID: sampleUUID, Seq: 0x0102030405060708, SlabBytes: 1 << 28, IndexGen: 9, Day: 20000, DayBytes: 1 << 33}
}

func sampleSlab() SlabHeader {
	return SlabHeader{Number: 7, UUID: sampleUUID, Epoch: 0x1112131415161718, SlotBytes: 65536, Slots: 100}
}

func sampleSlot() SlotHeader {
	return SlotHeader{
		Slot: 3, Epoch: 0x1112131415161718, Size: 65000, Sum: 0x2122232425262728, Key: []byte("group/ab\xff"),
		Attrs: driver.Attrs{Seq: 5, Mode: 0o640, UID: 1000, GID: 1001, Mtime: -1, Expires: 1 << 60, Pinned: true,
			Dirs: []driver.DirAttrs{{Mode: 0o755, UID: 1, GID: 2}}},
	}
}

// wantBytesAt compares pieces of a page, given in hex by offset, and wants all else but
// the checksum to be zero.
func wantBytesAt(t *testing.T, page []byte, want map[int]string) {
	t.Helper()
	rest := bytes.Clone(page)
	for off, digits := range want {
		w, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if got := page[off : off+len(w)]; !bytes.Equal(got, w) {
			t.Errorf("at %d: got %x, want %x", off, got, w)
		}
		clear(rest[off : off+len(w)])
	}
	for i, b := range rest[:min(len(rest), sumOffset)] {
		if b != 0 {
			t.Errorf("at %d: got %#x, want 0", i, b)
		}
	}
}

// TestPartial: a superblock whose index counts for some slabs only is read as it was written, and a kvfs that knows
// only flag 1 finds an index of another generation.
func TestPartial(t *testing.T) {
	page := make([]byte, PageBytes)
	s := sampleSuper()
	s.Clean, s.Partial = false, true
	s.Changed.Add(0)
	s.Changed.Add(1001)
	s.Changed.Add(MarkedSlabs)
	s.Encode(page)
	if got, err := DecodeSuperblock(page); err != nil || got != s {
		t.Errorf("got %+v, %v", got, err)
	}
	wantBytesAt(t, append(page[:16:16], page[32:]...), map[int]string{
		0: hex.EncodeToString([]byte(superMagic)), 8: "01 00 00 00 03 00 00 00", 16: "08 07 06 05 04 03 02 01",
		24: "00 00 00 10", 32: "08", 40: "20 4e", 52: "02", 56: "01", 56 + 1001/8: "02", PageBytes - 24: hex.EncodeToString(page[sumOffset:]),
	})
	for number, want := range map[uint32]bool{0: true, 1: false, 1001: true, MarkedSlabs - 1: false, MarkedSlabs: true} {
		if s.Changed.Has(number) != want {
			t.Errorf("slab %d: changed %v", number, !want)
		}
	}
}

// TestOutdated: which superblocks would have a start believe more of the index than another one does.
func TestOutdated(t *testing.T) {
	clean, partial, none := Superblock{Clean: true, IndexGen: 4}, Superblock{Partial: true, IndexGen: 4}, Superblock{IndexGen: 4}
	marked, next := partial, partial
	marked.Changed.Add(700)
	next.IndexGen++
	next.Changed.Add(3)
	for _, tc := range []struct {
		s, now Superblock
		want   bool
	}{
		{clean, clean, false}, {clean, partial, true}, {clean, none, true},
		{partial, clean, false}, {partial, partial, false}, {partial, marked, true}, {partial, none, true}, {partial, next, false},
		{marked, partial, false}, {marked, marked, false}, {none, clean, false}, {none, none, false},
	} {
		if got := tc.s.Outdated(&tc.now); got != tc.want {
			t.Errorf("clean %v, partial %v, generation %d beside %v, %v, %d: %v", tc.s.Clean, tc.s.Partial, tc.s.IndexGen,
				tc.now.Clean, tc.now.Partial, tc.now.IndexGen, got)
		}
	}
}

// TestGoldenPages: the bytes of each page are those that the package comment draws, the full
// key among them (C20).
func TestGoldenPages(t *testing.T) {
	page := bytes.Repeat([]byte{0xee}, PageBytes)
	super := sampleSuper()
	super.Encode(page)
	wantBytesAt(t, page, map[int]string{
		0: hex.EncodeToString([]byte("KVFSDISK")), 8: "01000000", 12: "01000000", 16: "a0", 31: "af",
		32: "0807060504030201", 40: "00000010", 48: "09", 56: "204e", 64: "00000000 02",
	})
	if got, want := le.Uint64(page[4088:]), block.Sum(page[:4088]).Sum; got != want {
		t.Errorf("checksum %x, want %x", got, want)
	}
	slab := sampleSlab()
	slab.Encode(page)
	wantBytesAt(t, page, map[int]string{
		0: hex.EncodeToString([]byte("KVFSSLAB")), 8: "01000000", 12: "07000000", 16: "a0", 31: "af",
		32: "1817161514131211", 40: "000001", 48: "64000000",
	})
	slot := sampleSlot()
	if err := slot.Encode(page); err != nil {
		t.Fatal(err)
	}
	wantBytesAt(t, page, map[int]string{
		0: hex.EncodeToString([]byte("KVFSSLOT")), 8: "01000000", 12: "01000000", 16: "1817161514131211",
		24: "05", 32: "e8fd", 40: "2827262524232221", 48: "ffffffffffffffff", 56: "0000000000000010",
		64: "a0010000", 68: "e8030000", 72: "e9030000", 76: "03000000", 80: "0900", 82: "0100",
		88: hex.EncodeToString([]byte("group/ab\xff")) + "ed010000 01000000 02000000",
	})
	index := IndexHeader{Slabs: 2, UUID: sampleUUID, Gen: 9, Blocks: 3, FileBytes: 8192}
	index.Encode(page)
	wantBytesAt(t, page, map[int]string{
		0: hex.EncodeToString([]byte("KVFSINDX")), 8: "01000000", 12: "02000000", 16: "a0", 31: "af",
		32: "09", 40: "03", 48: "0020",
	})
}

// TestGoldenIndex: the same for the chunks of the index.
func TestGoldenIndex(t *testing.T) {
	b := bytes.Repeat([]byte{0xee}, PageBytes)
	r, h := Run{SlabHeader: sampleSlab(), Entries: 1}, sampleSlot()
	r.Encode(b[24:])
	h.EncodeEntry(b[56:], h.Attrs.Dirs)
	chunk := SealChunk(b, 24+32+64+9+12, 2, 9)
	wantBytesAt(t, chunk, map[int]string{
		0: hex.EncodeToString(le.AppendUint64(nil, block.Sum(chunk[8:141]).Sum)),
		8: "8d000000", 12: "02000000", 16: "09",
		24: "07000000 64000000 1817161514131211 0000010000000000 01000000 00000000",
		56: "03000000 01000000 0900 0100 a0010000 e8030000 e9030000 05",
		88: "e8fd", 96: "2827262524232221", 104: "ffffffffffffffff", 112: "0000000000000010",
		120: hex.EncodeToString([]byte("group/ab\xff")) + "ed010000 01000000 02000000",
	})
	if len(chunk) != PageBytes || h.Slot != 3 {
		t.Errorf("chunk of %d bytes", len(chunk))
	}
}

// TestUserAttrs: attributes of processes follow the directories, in a header and in an entry, and are never left out (H2).
func TestUserAttrs(t *testing.T) {
	const user = "\x06\x01\x00user.a1"
	var page [PageBytes]byte
	h := sampleSlot()
	h.Attrs.User = user
	if err := h.Encode(page[:]); err != nil {
		t.Fatal(err)
	}
	const want = "group/ab\xff\xed\x01\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00" + user
	if s := string(page[80 : 88+len(want)]); s != "\x09\x00\x01\x00\x0a\x00\x00\x00"+want {
		t.Errorf("a header has %q", s)
	}
	var got SlotHeader
	if err := got.Decode(page[:]); err != nil || got.Attrs.User != user || !sameSlot(&got, &h) {
		t.Errorf("got %+v, %v", got, err)
	}
	entry := make([]byte, EntryBytes(&h, h.Attrs.Dirs)+1)
	h.EncodeEntry(entry, h.Attrs.Dirs)
	if s := string(entry[4:12]); s != "\x01\x00\x0a\x00\x09\x00\x01\x00" || string(entry[64:64+len(want)]) != want {
		t.Errorf("an entry has %q and %q", s, entry[64:])
	}
	rest, err := got.DecodeEntry(entry)
	if got.Epoch = h.Epoch; err != nil || len(rest) != 1 || got.Attrs.User != user || !sameSlot(&got, &h) {
		t.Errorf("got %+v, %d left, %v", got, len(rest), err)
	}
	h.Attrs.Dirs = make([]driver.DirAttrs, 400)
	h.Attrs.User = block.UserAttrs("\x06" + "\xd0\x07" + "user.b" + strings.Repeat("v", 2000))
	if err := errors.Join(h.Encode(page[:]), got.Decode(page[:])); err != nil || got.Attrs.User != h.Attrs.User || len(got.Attrs.Dirs) != (4000-9-2009)/12 {
		t.Errorf("got %d bytes, %d directories, %v", len(got.Attrs.User), len(got.Attrs.Dirs), err)
	}
	h.Key = []byte(strings.Repeat("n/", 1000))
	if err := h.Encode(page[:]); !errors.Is(err, block.ErrNameTooLong) {
		t.Errorf("more than a header holds: %v", err)
	}
	if err := Check(string(h.Key), h.Attrs.User); !errors.Is(err, block.ErrTooLarge) {
		t.Errorf("more than a header holds: %v", err)
	}
	h.Key, h.Attrs.User = []byte("a"), "x"
	if err := errors.Join(h.Encode(page[:]), got.Decode(page[:])); !errors.Is(err, block.ErrCorrupt) {
		t.Errorf("attributes that are none: %v", err)
	}
}

func sameSlot(a, b *SlotHeader) bool {
	var p, q [PageBytes]byte
	return a.Encode(p[:]) == nil && b.Encode(q[:]) == nil && p == q
}

// TestSlotLimits: a key that does not fit is refused, directories that do not are cut
// from the end.
func TestSlotLimits(t *testing.T) {
	var page [PageBytes]byte
	dirs := make([]driver.DirAttrs, 400)
	for i := range dirs {
		dirs[i].UID = uint32(i)
	}
	for _, tc := range []struct{ keyBytes, dirs int }{
		{1, 333}, {4, 333}, {5, 332}, {3988, 1}, {3989, 0}, {4000, 0}, {4001, -1}, {4096, -1},
	} {
		h, key := sampleSlot(), strings.Repeat("n/", 2048)[:tc.keyBytes]
		if key[len(key)-1] == '/' {
			key = key[:len(key)-1] + "n"
		}
		h.Key, h.Attrs.Dirs = []byte(key), dirs
		err := h.Encode(page[:])
		if err2 := Check(key, ""); (err == nil) != (err2 == nil) {
			t.Errorf("%d bytes: encode says %v, checkKey %v", tc.keyBytes, err, err2)
		}
		if tc.dirs < 0 {
			if !errors.Is(err, block.ErrNameTooLong) {
				t.Errorf("%d bytes of key: got %v", tc.keyBytes, err)
			}
			continue
		}
		var got SlotHeader
		if err = errors.Join(err, got.Decode(page[:])); err != nil || string(got.Key) != key || len(got.Attrs.Dirs) != tc.dirs {
			t.Fatalf("%d bytes of key: got %d, %d directories, want %d, %v", tc.keyBytes, len(got.Key), len(got.Attrs.Dirs), tc.dirs, err)
		}
		for i, d := range got.Attrs.Dirs {
			if d.UID != uint32(i) {
				t.Errorf("directory %d is %d", i, d.UID)
			}
		}
	}
}

// pages are one of each kind, with its decoder.
func pages(t testing.TB) map[string]struct {
	page   []byte
	decode func([]byte) error
} {
	super, slab, slot := sampleSuper(), sampleSlab(), sampleSlot()
	index := IndexHeader{Slabs: 2, UUID: sampleUUID, Gen: 9, Blocks: 3, FileBytes: 8192}
	type row = struct {
		page   []byte
		decode func([]byte) error
	}
	m := map[string]row{
		"superblock":  {make([]byte, PageBytes), func(b []byte) error { _, err := DecodeSuperblock(b); return err }},
		"slab header": {make([]byte, PageBytes), func(b []byte) error { _, err := DecodeSlabHeader(b); return err }},
		"slot header": {make([]byte, PageBytes), func(b []byte) error { return new(SlotHeader).Decode(b) }},
		"index":       {make([]byte, PageBytes), func(b []byte) error { _, err := DecodeIndexHeader(b); return err }},
	}
	super.Encode(m["superblock"].page)
	slab.Encode(m["slab header"].page)
	index.Encode(m["index"].page)
	if err := slot.Encode(m["slot header"].page); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestFlippedPages: no flip of any one bit, and no cut, is believed.
func TestFlippedPages(t *testing.T) {
	for what, p := range pages(t) {
		for i := range len(p.page) * 8 {
			p.page[i/8] ^= 1 << (i % 8)
			if err := p.decode(p.page); !errors.Is(err, block.ErrCorrupt) {
				t.Errorf("%s, bit %d: got %v", what, i, err)
			}
			p.page[i/8] ^= 1 << (i % 8)
		}
		for n := range len(p.page) {
			if err := p.decode(p.page[:n]); !errors.Is(err, block.ErrCorrupt) {
				t.Errorf("%s, %d bytes: got %v", what, n, err)
			}
		}
		if err := p.decode(p.page); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestLaterVersions: each structure of a later version is refused with an error that
// names it, and version 0 is damage.
func TestLaterVersions(t *testing.T) {
	for what, p := range pages(t) {
		for _, v := range []uint32{2, 1 << 31} {
			le.PutUint32(p.page[8:], v)
			SealPage(p.page)
			var later *VersionError
			if err := p.decode(p.page); !errors.As(err, &later) || *later != (VersionError{what, "", v, 1}) {
				t.Errorf("%s %d: got %v", what, v, err)
			}
		}
		le.PutUint32(p.page[8:], 0)
		SealPage(p.page)
		if err := p.decode(p.page); !errors.Is(err, block.ErrCorrupt) {
			t.Errorf("%s 0: got %v", what, err)
		}
	}
	err := &VersionError{What: "slab header", Path: "/d/slab-00000001", Got: 2, Want: 1}
	want := "/d/slab-00000001: slab header has format version 2, this kvfs reads up to version 1: upgrade kvfs"
	if err.Error() != want {
		t.Errorf("got %q", err)
	}
}

// TestImpossibleFields: pages with a good checksum that say what cannot be.
func TestImpossibleFields(t *testing.T) {
	for _, tc := range []struct {
		what string
		off  int
		hex  string
	}{
		{"superblock", 47, "80"},             // negative slab bytes
		{"superblock", 71, "80"},             // negative bytes of the day
		{"slab header", 12, "ffffffff"},      // number of nine digits
		{"slab header", 32, "00000000 0000"}, // not yet 0
		{"slab header", 40, "01"},            // odd slot bytes
		{"slab header", 40, "0000000000"},    // no slot bytes
		{"slab header", 47, "80"},            // negative
		{"slab header", 48, "00000000"},      // no slots
		{"slab header", 48, "ffffffff"},      // too many
		{"slot header", 24, "00"},            // seq 0
		{"slot header", 39, "80"},            // negative size
		{"slot header", 80, "0000"},          // no key
		{"slot header", 80, "ffff"},          // key beyond the page
		{"slot header", 82, "4e01"},          // directories beyond the page
		{"slot header", 88, "2f"},            // absolute path
		{"slot header", 89, "00"},            // NUL
		{"index", 48, "01"},                  // odd size
		{"index", 55, "80"},
		{"index", 47, "80"},
	} {
		p := pages(t)[tc.what]
		w, err := hex.DecodeString(strings.ReplaceAll(tc.hex, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		copy(p.page[tc.off:], w)
		if tc.what == "slab header" && tc.off == 32 {
			clear(p.page[32:40])
		}
		SealPage(p.page)
		if err := p.decode(p.page); !errors.Is(err, block.ErrCorrupt) {
			t.Errorf("%s with %s at %d: got %v", tc.what, tc.hex, tc.off, err)
		}
	}
}

// TestNames: the names of slabs, and which names are ours.
func TestNames(t *testing.T) {
	for _, tc := range []struct {
		name   string
		number uint32
		ok     bool
		ours   bool
	}{
		{"slab-00000007", 7, true, true},
		{"slab-99999999", 99999999, true, true},
		{"slab-0000007", 0, false, false},
		{"slab-000000007", 0, false, false},
		{"slab-0000000x", 0, false, false},
		{"slab-00000007.tmp", 0, false, true},
		{"kvfs-disk", 0, false, true},
		{"kvfs-index.tmp", 0, false, true},
		{"lost+found", 0, false, true},
		{"notes.txt", 0, false, false},
	} {
		number, ok := ParseSlabName(tc.name)
		if ok != tc.ok || ok && (number != tc.number || SlabName(number) != tc.name) || Ours(tc.name) != tc.ours {
			t.Errorf("%s: got %d, %v, ours %v", tc.name, number, ok, Ours(tc.name))
		}
	}
}

// TestSlabLayout: slots of a slab neither overlap nor leave the file, which is no larger
// than was asked for.
func TestSlabLayout(t *testing.T) {
	for _, slotBytes := range []int64{4096, 65536, 1 << 20, 3 << 20} {
		for _, slabBytes := range []int64{0, 4096, 3 * 4096, 1 << 20, 64 << 20, 1<<30 + 1} {
			h := SlabHeader{Number: 1, Epoch: 1, SlotBytes: slotBytes, Slots: SlotsFor(slabBytes, slotBytes)}
			if h.Slots == 0 {
				if slabBytes >= slotBytes+2*PageBytes {
					t.Errorf("no slot of %d in %d", slotBytes, slabBytes)
				}
				continue
			}
			if err := h.Check("slab"); err != nil {
				t.Error(err)
			}
			last := h.Slots - 1
			if h.WantBytes() > slabBytes || slabBytes-h.WantBytes() > slotBytes+2*PageBytes ||
				h.HeaderOff(last)+PageBytes != h.DataOff(0) || h.DataOff(last)+slotBytes != h.WantBytes() {
				t.Errorf("%d slots of %d in %d: %d bytes", h.Slots, slotBytes, slabBytes, h.WantBytes())
			}
		}
	}
}
