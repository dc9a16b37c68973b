package format

import (
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// The parts of kvfs-index. The package comment draws them.
const (
	indexMagic = "KVFSINDX"

	ChunkBytes      = 1 << 20 // of a chunk, at most
	ChunkFixedBytes = 24      // of a chunk, before its runs
	RunBytes        = 32      // of a run, before its entries
	entryFixedBytes = 64
)

// IndexHeader is the first page of kvfs-index.
type IndexHeader struct {
	Slabs     uint32
	UUID      UUID
	Gen       uint64
	Blocks    int64
	FileBytes int64
}

// Encode fills page, which has at least PageBytes.
func (h *IndexHeader) Encode(page []byte) {
	page = page[:PageBytes]
	clear(page)
	copy(page, indexMagic)
	le.PutUint32(page[8:], Version)
	le.PutUint32(page[12:], h.Slabs)
	copy(page[16:], h.UUID[:])
	le.PutUint64(page[32:], h.Gen)
	le.PutUint64(page[40:], uint64(h.Blocks))
	le.PutUint64(page[48:], uint64(h.FileBytes))
	SealPage(page)
}

// DecodeIndexHeader is the inverse of Encode. It fails with a VersionError or ErrCorrupt.
func DecodeIndexHeader(page []byte) (IndexHeader, error) {
	const what = "index"
	if err := CheckPage(page, indexMagic, what); err != nil {
		return IndexHeader{}, err
	}
	h := IndexHeader{
		Slabs:     le.Uint32(page[12:]),
		UUID:      UUID(page[16:32]),
		Gen:       le.Uint64(page[32:]),
		Blocks:    int64(le.Uint64(page[40:])),
		FileBytes: int64(le.Uint64(page[48:])),
	}
	if h.FileBytes < PageBytes || h.FileBytes%PageBytes != 0 || h.Blocks < 0 {
		return IndexHeader{}, Corrupt(what, "%d bytes, %d blocks", h.FileBytes, h.Blocks)
	}
	return h, nil
}

// SealChunk completes a chunk and returns it in whole pages. used counts the bytes that are filled
// in, the fixed part included.
func SealChunk(chunk []byte, used int, number uint32, gen uint64) []byte {
	end := int(AlignUp(int64(used)))
	clear(chunk[used:end])
	le.PutUint32(chunk[8:], uint32(used))
	le.PutUint32(chunk[12:], number)
	le.PutUint64(chunk[16:], gen)
	le.PutUint64(chunk, block.Sum(chunk[8:used]).Sum)
	return chunk[:end]
}

// CheckChunk returns the runs of a chunk. It fails with ErrCorrupt if the chunk is not the one of
// that number and generation.
func CheckChunk(chunk []byte, number uint32, gen uint64) ([]byte, error) {
	const what = "index chunk"
	if len(chunk) < ChunkFixedBytes {
		return nil, Corrupt(what, "%d bytes", len(chunk))
	}
	used := le.Uint32(chunk[8:])
	switch {
	case used < ChunkFixedBytes || int64(used) > int64(len(chunk)):
		return nil, Corrupt(what, "%d bytes used of %d", used, len(chunk))
	case block.Sum(chunk[8:used]).Sum != le.Uint64(chunk):
		return nil, Corrupt(what, "checksum")
	case le.Uint32(chunk[12:]) != number || le.Uint64(chunk[16:]) != gen:
		return nil, Corrupt(what, "number %d of generation %d, not %d of %d",
			le.Uint32(chunk[12:]), le.Uint64(chunk[16:]), number, gen)
	}
	return chunk[ChunkFixedBytes:used], nil
}

// Run is the fixed part of a run, before its entries.
type Run struct {
	SlabHeader // without uuid
	Entries    uint32
}

// Encode fills the first RunBytes of b.
func (r *Run) Encode(b []byte) {
	le.PutUint32(b, r.Number)
	le.PutUint32(b[4:], r.Slots)
	le.PutUint64(b[8:], r.Epoch)
	le.PutUint64(b[16:], uint64(r.SlotBytes))
	le.PutUint32(b[24:], r.Entries)
	le.PutUint32(b[28:], 0)
}

// DecodeRun reads a run at the start of b and returns what follows. It fails with ErrCorrupt.
func DecodeRun(b []byte) (r Run, rest []byte, err error) {
	const what = "index run"
	if len(b) < RunBytes {
		return Run{}, nil, Corrupt(what, "%d bytes left", len(b))
	}
	r.Number = le.Uint32(b)
	r.Slots = le.Uint32(b[4:])
	r.Epoch = le.Uint64(b[8:])
	r.SlotBytes = int64(le.Uint64(b[16:]))
	r.Entries = le.Uint32(b[24:])
	if err := r.Check(what); err != nil {
		return Run{}, nil, err
	}
	if r.Entries > r.Slots {
		return Run{}, nil, Corrupt(what, "%d entries for %d slots", r.Entries, r.Slots)
	}
	return r, b[RunBytes:], nil
}

// EntryBytes returns the size of h's entry. dirs are the directories that are kept.
func EntryBytes(h *SlotHeader, dirs []driver.DirAttrs) int {
	return entryFixedBytes + len(h.Key) + dirBytes*len(dirs) + len(h.Attrs.User)
}

// EncodeEntry writes an entry to b, which has EntryBytes bytes.
func (h *SlotHeader) EncodeEntry(b []byte, dirs []driver.DirAttrs) {
	le.PutUint32(b, h.Slot)
	le.PutUint16(b[4:], uint16(h.flags()))
	le.PutUint16(b[6:], uint16(len(h.Attrs.User)))
	le.PutUint16(b[8:], uint16(len(h.Key)))
	le.PutUint16(b[10:], uint16(len(dirs)))
	le.PutUint32(b[12:], h.Attrs.Mode)
	le.PutUint32(b[16:], h.Attrs.UID)
	le.PutUint32(b[20:], h.Attrs.GID)
	le.PutUint64(b[24:], h.Attrs.Seq)
	le.PutUint64(b[32:], uint64(h.Size))
	le.PutUint64(b[40:], h.Sum)
	le.PutUint64(b[48:], uint64(h.Attrs.Mtime))
	le.PutUint64(b[56:], uint64(h.Attrs.Expires))
	n := entryFixedBytes + copy(b[entryFixedBytes:], h.Key)
	for _, d := range dirs {
		putDir(b[n:], d)
		n += dirBytes
	}
	copy(b[n:], h.Attrs.User)
}

// DecodeEntry reads an entry at the start of b and returns what follows. h shares the entry's key
// and Dirs, as with Decode. It fails with ErrCorrupt. h is then undefined.
func (h *SlotHeader) DecodeEntry(b []byte) (rest []byte, err error) {
	const what = "index entry"
	if len(b) < entryFixedBytes {
		return nil, Corrupt(what, "%d bytes left", len(b))
	}
	keyBytes, dirs, user := int(le.Uint16(b[8:])), int(le.Uint16(b[10:])), int(le.Uint16(b[6:]))
	n := entryFixedBytes + keyBytes
	end := n + dirBytes*dirs + user
	if end-entryFixedBytes > MaxKeyBytes || end > len(b) {
		return nil, Corrupt(what, "%d bytes of key, %d directories and %d bytes of attributes", keyBytes, dirs, user)
	}
	h.Slot = le.Uint32(b)
	h.Size = int64(le.Uint64(b[32:]))
	h.Sum = le.Uint64(b[40:])
	h.Key = b[entryFixedBytes:n:n]
	h.Attrs = driver.Attrs{
		Seq:     le.Uint64(b[24:]),
		Mode:    le.Uint32(b[12:]),
		UID:     le.Uint32(b[16:]),
		GID:     le.Uint32(b[20:]),
		Mtime:   int64(le.Uint64(b[48:])),
		Expires: int64(le.Uint64(b[56:])),
		Pinned:  le.Uint16(b[4:])&slotPinned != 0,
		Dirs:    readDirs(h.Attrs.Dirs[:0], b[n:], dirs),
		User:    block.UserAttrs(b[end-user : end]),
	}
	return b[end:], h.Check(what)
}
