package recovery

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
)

// IndexWriter writes kvfs-index. The caller passes slabs and slots in ascending order. SaveIndex
// returns the first error.
type IndexWriter struct {
	f      *os.File
	header format.IndexHeader
	chunk  []byte
	used   int
	number uint32
	run    format.Run
	at     int   // of run in chunk; 0 if none is begun
	next   int64 // lowest slot that may follow
	err    error
}

// Slab begins the slots of a slab. There may be none.
func (w *IndexWriter) Slab(h *format.SlabHeader) {
	if w.err == nil && w.header.Slabs > 0 && h.Number <= w.run.Number {
		w.err = fmt.Errorf("index: slab %d after %d: %w", h.Number, w.run.Number, block.ErrInvalid)
	}
	if w.err == nil {
		w.err = h.Check("index")
	}
	if w.err != nil {
		return
	}
	w.endRun()
	w.header.Slabs++
	w.run, w.next = format.Run{SlabHeader: *h}, 0
	if w.used+format.RunBytes > len(w.chunk) {
		w.flush()
	}
	w.beginRun()
}

// Slot adds a used slot of the slab.
func (w *IndexWriter) Slot(h *format.SlotHeader) {
	if w.err != nil {
		return
	}
	if w.err = h.Check("index"); w.err != nil {
		return
	}
	if w.at == 0 || int64(h.Slot) < w.next || h.Slot >= w.run.Slots || len(h.Key) > format.MaxKeyBytes {
		w.err = fmt.Errorf("index: slot %d of slab %d: %w", h.Slot, w.run.Number, block.ErrInvalid)
		return
	}
	dirs := format.KeepDirs(&h.Attrs, len(h.Key))
	n := format.EntryBytes(h, dirs)
	if w.used+n > len(w.chunk) {
		w.endRun()
		w.flush()
		w.run.Entries = 0
		w.beginRun()
	}
	h.EncodeEntry(w.chunk[w.used:], dirs)
	w.used += n
	w.next = int64(h.Slot) + 1
	w.run.Entries++
	w.header.Blocks++
}

func (w *IndexWriter) beginRun() {
	w.at = w.used
	w.used += format.RunBytes
}

func (w *IndexWriter) endRun() {
	if w.at != 0 {
		w.run.Encode(w.chunk[w.at:])
	}
}

// flush writes the chunk and begins the next.
func (w *IndexWriter) flush() {
	b := format.SealChunk(w.chunk, w.used, w.number, w.header.Gen)
	if w.err == nil {
		w.err = writeFull(w.f, b, w.header.FileBytes)
	}
	w.header.FileBytes += int64(len(b))
	w.number++
	w.used, w.at = format.ChunkFixedBytes, 0
}

// SaveIndex writes the index that fill makes, and then marks it as valid in the superblock. It is
// the last step before close. Everything in the slabs must be durable before. After an error the
// directory is as before, and recovery uses its tables.
func (d *Dir) SaveIndex(fill func(w *IndexWriter) error) error {
	return d.saveIndex(fill, func(s *format.Superblock) { s.Clean, s.Partial, s.Changed = true, false, format.SlabSet{} })
}

// Checkpoint is SaveIndex while the tier runs. fill leaves out the slabs whose tables are not known to be durable and the
// same as what it would write of them. A slab that it describes must be marked again, by a call of Mark that begins after
// fill has, before it changes further. Checkpoint and SaveIndex must not run in parallel.
func (d *Dir) Checkpoint(fill func(w *IndexWriter) error) error {
	var since format.SlabSet
	setSince := func(to *format.SlabSet) {
		d.mu.Lock()
		d.mu.since = to
		d.mu.Unlock()
	}
	setSince(&since)
	defer setSince(nil)
	return d.saveIndex(fill, func(s *format.Superblock) { s.Clean, s.Partial, s.Changed = false, true, since })
}

// saveIndex is SaveIndex with the change of the superblock that makes the index valid.
func (d *Dir) saveIndex(fill func(w *IndexWriter) error, valid func(*format.Superblock)) (err error) {
	gen := d.Superblock().IndexGen + 1
	if err := d.writeIndex(gen, fill); err != nil {
		return errors.Join(err, os.Remove(d.Join(format.IndexTmpName)))
	}
	if err := os.Rename(d.Join(format.IndexTmpName), d.Join(format.IndexName)); err != nil {
		return err
	}
	if err := d.SyncDir(); err != nil {
		return err
	}
	return d.updateSuper(func(s *format.Superblock) {
		s.IndexGen = gen
		valid(s)
	})
}

// writeIndex writes kvfs-index.tmp and makes it durable.
func (d *Dir) writeIndex(gen uint64, fill func(w *IndexWriter) error) (err error) {
	f, err := d.openDirect(format.IndexTmpName, unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	mem, err := mapMemory(format.PageBytes + format.ChunkBytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Munmap(mem)) }()
	w := IndexWriter{
		f: f, chunk: mem[format.PageBytes:], used: format.ChunkFixedBytes,
		header: format.IndexHeader{UUID: d.Superblock().UUID, Gen: gen, FileBytes: format.PageBytes},
	}
	if err := fill(&w); err != nil {
		return err
	}
	if w.err == nil && w.used > format.ChunkFixedBytes {
		w.endRun()
		w.flush()
	}
	if w.err != nil {
		return w.err
	}
	w.header.Encode(mem)
	if err := writeFull(f, mem[:format.PageBytes], 0); err != nil {
		return err
	}
	return fdatasync(f)
}
