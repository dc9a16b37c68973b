package disk

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// The parts of kvfs-index. The package comment draws them.
const (
	indexMagic = "KVFSINDX"

	chunkBytes      = 1 << 20
	chunkFixedBytes = 24
	runBytes        = 32
	entryFixedBytes = 64
)

// indexHeader is the first page of kvfs-index.
type indexHeader struct {
	slabs     uint32
	uuid      uuid
	gen       uint64
	blocks    int64
	fileBytes int64
}

// encode fills a page.
func (h *indexHeader) encode(page []byte) {
	page = page[:pageBytes]
	clear(page)
	copy(page, indexMagic)
	le.PutUint32(page[8:], formatVersion)
	le.PutUint32(page[12:], h.slabs)
	copy(page[16:], h.uuid[:])
	le.PutUint64(page[32:], h.gen)
	le.PutUint64(page[40:], uint64(h.blocks))
	le.PutUint64(page[48:], uint64(h.fileBytes))
	sealPage(page)
}

// decodeIndexHeader is the inverse of encode. It fails with a VersionError or ErrCorrupt.
func decodeIndexHeader(page []byte) (indexHeader, error) {
	const what = "index"
	if err := checkPage(page, indexMagic, what); err != nil {
		return indexHeader{}, err
	}
	h := indexHeader{
		slabs:     le.Uint32(page[12:]),
		uuid:      uuid(page[16:32]),
		gen:       le.Uint64(page[32:]),
		blocks:    int64(le.Uint64(page[40:])),
		fileBytes: int64(le.Uint64(page[48:])),
	}
	if h.fileBytes < pageBytes || h.fileBytes%pageBytes != 0 || h.blocks < 0 {
		return indexHeader{}, corrupt(what, "%d bytes, %d blocks", h.fileBytes, h.blocks)
	}
	return h, nil
}

// sealChunk completes a chunk and returns it in whole pages. used counts the bytes that are filled
// in, the fixed part included.
func sealChunk(chunk []byte, used int, number uint32, gen uint64) []byte {
	end := int(alignUp(int64(used)))
	clear(chunk[used:end])
	le.PutUint32(chunk[8:], uint32(used))
	le.PutUint32(chunk[12:], number)
	le.PutUint64(chunk[16:], gen)
	le.PutUint64(chunk, block.Sum(chunk[8:used]).Sum)
	return chunk[:end]
}

// checkChunk returns the runs of a chunk, or ErrCorrupt.
func checkChunk(chunk []byte, number uint32, gen uint64) ([]byte, error) {
	const what = "index chunk"
	if len(chunk) < chunkFixedBytes {
		return nil, corrupt(what, "%d bytes", len(chunk))
	}
	used := le.Uint32(chunk[8:])
	switch {
	case used < chunkFixedBytes || int64(used) > int64(len(chunk)):
		return nil, corrupt(what, "%d bytes used of %d", used, len(chunk))
	case block.Sum(chunk[8:used]).Sum != le.Uint64(chunk):
		return nil, corrupt(what, "checksum")
	case le.Uint32(chunk[12:]) != number || le.Uint64(chunk[16:]) != gen:
		return nil, corrupt(what, "number %d of generation %d, not %d of %d",
			le.Uint32(chunk[12:]), le.Uint64(chunk[16:]), number, gen)
	}
	return chunk[chunkFixedBytes:used], nil
}

// run is the fixed part of a run, before its entries.
type run struct {
	slabHeader // without uuid
	entries    uint32
}

func (r *run) encode(b []byte) {
	le.PutUint32(b, r.number)
	le.PutUint32(b[4:], r.slots)
	le.PutUint64(b[8:], r.epoch)
	le.PutUint64(b[16:], uint64(r.slotBytes))
	le.PutUint32(b[24:], r.entries)
	le.PutUint32(b[28:], 0)
}

// decodeRun reads a run at the start of b and returns what follows.
func decodeRun(b []byte) (r run, rest []byte, err error) {
	const what = "index run"
	if len(b) < runBytes {
		return run{}, nil, corrupt(what, "%d bytes left", len(b))
	}
	r.number = le.Uint32(b)
	r.slots = le.Uint32(b[4:])
	r.epoch = le.Uint64(b[8:])
	r.slotBytes = int64(le.Uint64(b[16:]))
	r.entries = le.Uint32(b[24:])
	if err := r.check(what); err != nil {
		return run{}, nil, err
	}
	if r.entries > r.slots {
		return run{}, nil, corrupt(what, "%d entries for %d slots", r.entries, r.slots)
	}
	return r, b[runBytes:], nil
}

// entryBytes returns the size of h's entry. dirs are the directories that are kept.
func entryBytes(h *slotHeader, dirs []driver.DirAttrs) int {
	return entryFixedBytes + len(h.key) + dirBytes*len(dirs)
}

// encodeEntry writes an entry to b, which has entryBytes bytes.
func (h *slotHeader) encodeEntry(b []byte, dirs []driver.DirAttrs) {
	le.PutUint32(b, h.slot)
	le.PutUint32(b[4:], h.flags())
	le.PutUint16(b[8:], uint16(len(h.key)))
	le.PutUint16(b[10:], uint16(len(dirs)))
	le.PutUint32(b[12:], h.attrs.Mode)
	le.PutUint32(b[16:], h.attrs.UID)
	le.PutUint32(b[20:], h.attrs.GID)
	le.PutUint64(b[24:], h.attrs.Seq)
	le.PutUint64(b[32:], uint64(h.size))
	le.PutUint64(b[40:], h.sum)
	le.PutUint64(b[48:], uint64(h.attrs.Mtime))
	le.PutUint64(b[56:], uint64(h.attrs.Expires))
	n := entryFixedBytes + copy(b[entryFixedBytes:], h.key)
	for _, d := range dirs {
		putDir(b[n:], d)
		n += dirBytes
	}
}

// decodeEntry reads an entry at the start of b and returns what follows. h shares the entry's key
// and Dirs, as with decode. It fails with ErrCorrupt. h is then undefined.
func (h *slotHeader) decodeEntry(b []byte) (rest []byte, err error) {
	const what = "index entry"
	if len(b) < entryFixedBytes {
		return nil, corrupt(what, "%d bytes left", len(b))
	}
	keyBytes, dirs := int(le.Uint16(b[8:])), int(le.Uint16(b[10:]))
	n := entryFixedBytes + keyBytes
	end := n + dirBytes*dirs
	if keyBytes > maxKeyBytes || end-n > maxKeyBytes-keyBytes || end > len(b) {
		return nil, corrupt(what, "%d bytes of key and %d directories", keyBytes, dirs)
	}
	h.slot = le.Uint32(b)
	h.size = int64(le.Uint64(b[32:]))
	h.sum = le.Uint64(b[40:])
	h.key = b[entryFixedBytes:n:n]
	h.attrs = driver.Attrs{
		Seq:     le.Uint64(b[24:]),
		Mode:    le.Uint32(b[12:]),
		UID:     le.Uint32(b[16:]),
		GID:     le.Uint32(b[20:]),
		Mtime:   int64(le.Uint64(b[48:])),
		Expires: int64(le.Uint64(b[56:])),
		Pinned:  le.Uint32(b[4:])&slotPinned != 0,
		Dirs:    readDirs(h.attrs.Dirs[:0], b[n:], dirs),
	}
	return b[end:], h.check(what)
}

// indexWriter writes kvfs-index. The caller passes slabs and slots in ascending order. saveIndex
// returns the first error.
type indexWriter struct {
	f      *os.File
	header indexHeader
	chunk  []byte
	used   int
	number uint32
	run    run
	at     int   // of run in chunk; 0 if none is begun
	next   int64 // lowest slot that may follow
	err    error
}

// slab begins the slots of a slab. There may be none.
func (w *indexWriter) slab(h *slabHeader) {
	if w.err == nil && w.header.slabs > 0 && h.number <= w.run.number {
		w.err = fmt.Errorf("index: slab %d after %d: %w", h.number, w.run.number, block.ErrInvalid)
	}
	if w.err == nil {
		w.err = h.check("index")
	}
	if w.err != nil {
		return
	}
	w.endRun()
	w.header.slabs++
	w.run, w.next = run{slabHeader: *h}, 0
	if w.used+runBytes > len(w.chunk) {
		w.flush()
	}
	w.beginRun()
}

// slot adds a used slot of the slab.
func (w *indexWriter) slot(h *slotHeader) {
	if w.err != nil {
		return
	}
	if w.err = h.check("index"); w.err != nil {
		return
	}
	if w.at == 0 || int64(h.slot) < w.next || h.slot >= w.run.slots || len(h.key) > maxKeyBytes {
		w.err = fmt.Errorf("index: slot %d of slab %d: %w", h.slot, w.run.number, block.ErrInvalid)
		return
	}
	dirs := keepDirs(h.attrs.Dirs, len(h.key))
	n := entryBytes(h, dirs)
	if w.used+n > len(w.chunk) {
		w.endRun()
		w.flush()
		w.run.entries = 0
		w.beginRun()
	}
	h.encodeEntry(w.chunk[w.used:], dirs)
	w.used += n
	w.next = int64(h.slot) + 1
	w.run.entries++
	w.header.blocks++
}

func (w *indexWriter) beginRun() {
	w.at = w.used
	w.used += runBytes
}

func (w *indexWriter) endRun() {
	if w.at != 0 {
		w.run.encode(w.chunk[w.at:])
	}
}

// flush writes the chunk and begins the next.
func (w *indexWriter) flush() {
	b := sealChunk(w.chunk, w.used, w.number, w.header.gen)
	if w.err == nil {
		w.err = writeFull(w.f, b, w.header.fileBytes)
	}
	w.header.fileBytes += int64(len(b))
	w.number++
	w.used, w.at = chunkFixedBytes, 0
}

// saveIndex writes the index that fill makes, and then marks it as valid in the superblock. It is
// the last step before close. Everything in the slabs must be durable before. After an error the
// directory is as before, and recovery uses its tables.
func (d *directory) saveIndex(fill func(w *indexWriter) error) (err error) {
	gen := d.superblock().indexGen + 1
	if err := d.writeIndex(gen, fill); err != nil {
		return errors.Join(err, os.Remove(d.join(indexTmpName)))
	}
	if err := os.Rename(d.join(indexTmpName), d.join(indexName)); err != nil {
		return err
	}
	if err := d.syncDir(); err != nil {
		return err
	}
	return d.updateSuper(func(s *superblock) { s.clean, s.indexGen = true, gen })
}

// writeIndex writes kvfs-index.tmp and makes it durable.
func (d *directory) writeIndex(gen uint64, fill func(w *indexWriter) error) (err error) {
	f, err := d.openDirect(indexTmpName, unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	mem, err := mapMemory(pageBytes + chunkBytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Munmap(mem)) }()
	w := indexWriter{
		f: f, chunk: mem[pageBytes:], used: chunkFixedBytes,
		header: indexHeader{uuid: d.superblock().uuid, gen: gen, fileBytes: pageBytes},
	}
	if err := fill(&w); err != nil {
		return err
	}
	if w.err == nil && w.used > chunkFixedBytes {
		w.endRun()
		w.flush()
	}
	if w.err != nil {
		return w.err
	}
	w.header.encode(mem)
	if err := writeFull(f, mem[:pageBytes], 0); err != nil {
		return err
	}
	return fdatasync(f)
}
