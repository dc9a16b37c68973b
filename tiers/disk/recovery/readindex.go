package recovery

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
)

// readIndex passes the slots of slabs to a function, as far as the index describes them. It moves
// next of each slab past the described slots. It fails at any place with a VersionError,
// ErrCorrupt, or an error of the system. The slots passed before are right. unknown, if not nil,
// gets the slabs of the index that are not among those given, or that differ from them.
func (d *Dir) readIndex(ctx context.Context, super *format.Superblock, slabs []*Slab,
	give func(*Slab, *format.SlotHeader), unknown func(*format.Run)) (err error) {
	f, err := d.openDirect(format.IndexName, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	head, err := readIndexHeader(f)
	if err != nil {
		return err
	}
	if head.UUID != super.UUID || head.Gen != super.IndexGen {
		return fmt.Errorf("index: generation %d of %v, the superblock says %d of %v: %w",
			head.Gen, head.UUID, super.IndexGen, super.UUID, block.ErrCorrupt)
	}
	c := indexCursor{slabs: make(map[uint32]*Slab, len(slabs)), give: give, unknown: unknown}
	for _, s := range slabs {
		c.slabs[s.Number] = s
	}
	off, number := int64(format.PageBytes), uint32(0)
	err = readPieces(ctx, func() (*piece, error) {
		if off >= head.FileBytes {
			return nil, nil
		}
		p := &piece{f: f, off: off, n: int(min(format.ChunkBytes, head.FileBytes-off)), first: number}
		off, number = off+int64(p.n), number+1
		return p, nil
	}, func(p *piece) { // the checksum takes longer than the rest: on another core
		p.buf, p.err = format.CheckChunk(p.buf, p.first, head.Gen)
	}, func(p *piece) error {
		if p.err != nil {
			return p.err
		}
		return c.chunk(p.buf)
	})
	if err != nil {
		return err
	}
	c.finish(nil)
	if c.blocks != head.Blocks || c.count != head.Slabs {
		return format.Corrupt("index", "%d blocks in %d slabs, the header says %d in %d", c.blocks, c.count, head.Blocks, head.Slabs)
	}
	return nil
}

// readIndexHeader reads the first page and compares the size of the file with it.
func readIndexHeader(f *os.File) (h format.IndexHeader, err error) {
	mem, err := mapMemory(format.PageBytes)
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, unix.Munmap(mem)) }()
	page, err := readFull(f, mem, 0)
	if err != nil {
		return h, err
	}
	h, err = format.DecodeIndexHeader(page)
	var later *format.VersionError
	if errors.As(err, &later) {
		later.Path = f.Name()
	}
	if err != nil {
		return h, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() != h.FileBytes {
		err = format.Corrupt("index", "file of %d bytes, the header says %d", info.Size(), h.FileBytes)
	}
	return h, err
}

// indexCursor walks the chunks of an index.
type indexCursor struct {
	slabs   map[uint32]*Slab
	give    func(*Slab, *format.SlotHeader)
	unknown func(*format.Run)
	last    format.Run // the run before, if any
	begun   bool       // there was one
	slots   int64
	slab    *Slab // slab of last; nil if that slab differs from the index
	h       format.SlotHeader
	blocks  int64
	count   uint32 // slabs
}

// chunk passes on the slots of a chunk's runs.
func (c *indexCursor) chunk(b []byte) error {
	for len(b) > 0 {
		r, rest, err := format.DecodeRun(b)
		if err != nil {
			return err
		}
		if err := c.begin(&r); err != nil {
			return err
		}
		for range r.Entries {
			if rest, err = c.h.DecodeEntry(rest); err != nil {
				return err
			}
			if err := c.entry(&r); err != nil {
				return err
			}
		}
		b = rest
	}
	return nil
}

// begin starts the slab of a run.
func (c *indexCursor) begin(r *format.Run) error {
	if c.begun && r.Number == c.last.Number {
		if r.SlabHeader != c.last.SlabHeader {
			return format.Corrupt("index", "slab %d described twice", r.Number)
		}
		return nil
	}
	if c.begun && r.Number < c.last.Number {
		return format.Corrupt("index", "slab %d after %d", r.Number, c.last.Number)
	}
	s := c.slabs[r.Number]
	if s != nil && (s.Epoch != r.Epoch || s.Slots != r.Slots || s.SlotBytes != r.SlotBytes) {
		s = nil
	}
	if s == nil && c.unknown != nil {
		c.unknown(r)
	}
	c.finish(s)
	c.last, c.begun, c.slots = *r, true, 0
	c.count++
	return nil
}

// finish records that the index has described the last slab completely.
func (c *indexCursor) finish(next *Slab) {
	if c.slab != nil {
		c.slab.next = c.slab.Slots
	}
	c.slab = next
}

// entry passes on the slot in c.h.
func (c *indexCursor) entry(r *format.Run) error {
	h := &c.h
	if int64(h.Slot) < c.slots || h.Slot >= r.Slots || h.Size > r.SlotBytes {
		return format.Corrupt("index", "slot %d of slab %d with %d bytes", h.Slot, r.Number, h.Size)
	}
	c.slots = int64(h.Slot) + 1
	c.blocks++
	h.Epoch = r.Epoch
	if c.slab != nil {
		c.slab.next = h.Slot + 1
		c.give(c.slab, h)
	}
	return nil
}
