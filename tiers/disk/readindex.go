package disk

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
)

// readIndex passes the slots of slabs to a function, as far as the index describes them. It moves
// next of each slab past the described slots. It fails at any place with a VersionError,
// ErrCorrupt, or an error of the system. The slots passed before are right. unknown, if not nil,
// gets the slabs of the index that are not among those given, or that differ from them.
func (d *directory) readIndex(ctx context.Context, super *superblock, slabs []*slabFound,
	give func(*slabFound, *slotHeader), unknown func(*run)) (err error) {
	f, err := d.openDirect(indexName, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	head, err := readIndexHeader(f)
	if err != nil {
		return err
	}
	if head.uuid != super.uuid || head.gen != super.indexGen {
		return fmt.Errorf("index: generation %d of %v, the superblock says %d of %v: %w",
			head.gen, head.uuid, super.indexGen, super.uuid, block.ErrCorrupt)
	}
	c := indexCursor{slabs: make(map[uint32]*slabFound, len(slabs)), give: give, unknown: unknown}
	for _, s := range slabs {
		c.slabs[s.number] = s
	}
	off, number := int64(pageBytes), uint32(0)
	err = readPieces(ctx, func() (*piece, error) {
		if off >= head.fileBytes {
			return nil, nil
		}
		p := &piece{f: f, off: off, n: int(min(chunkBytes, head.fileBytes-off)), first: number}
		off, number = off+int64(p.n), number+1
		return p, nil
	}, func(p *piece) { // the checksum takes longer than the rest: on another core
		p.buf, p.err = checkChunk(p.buf, p.first, head.gen)
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
	if c.blocks != head.blocks || c.count != head.slabs {
		return corrupt("index", "%d blocks in %d slabs, the header says %d in %d", c.blocks, c.count, head.blocks, head.slabs)
	}
	return nil
}

// readIndexHeader reads the first page and compares the size of the file with it.
func readIndexHeader(f *os.File) (h indexHeader, err error) {
	mem, err := mapMemory(pageBytes)
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, unix.Munmap(mem)) }()
	page, err := readFull(f, mem, 0)
	if err != nil {
		return h, err
	}
	h, err = decodeIndexHeader(page)
	var later *VersionError
	if errors.As(err, &later) {
		later.Path = f.Name()
	}
	if err != nil {
		return h, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() != h.fileBytes {
		err = corrupt("index", "file of %d bytes, the header says %d", info.Size(), h.fileBytes)
	}
	return h, err
}

// indexCursor walks the chunks of an index.
type indexCursor struct {
	slabs   map[uint32]*slabFound
	give    func(*slabFound, *slotHeader)
	unknown func(*run)
	last    run  // the run before, if any
	begun   bool // there was one
	slots   int64
	slab    *slabFound // slab of last; nil if that slab differs from the index
	h       slotHeader
	blocks  int64
	count   uint32 // slabs
}

// chunk passes on the slots of a chunk's runs.
func (c *indexCursor) chunk(b []byte) error {
	for len(b) > 0 {
		r, rest, err := decodeRun(b)
		if err != nil {
			return err
		}
		if err := c.begin(&r); err != nil {
			return err
		}
		for range r.entries {
			if rest, err = c.h.decodeEntry(rest); err != nil {
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
func (c *indexCursor) begin(r *run) error {
	if c.begun && r.number == c.last.number {
		if r.slabHeader != c.last.slabHeader {
			return corrupt("index", "slab %d described twice", r.number)
		}
		return nil
	}
	if c.begun && r.number < c.last.number {
		return corrupt("index", "slab %d after %d", r.number, c.last.number)
	}
	s := c.slabs[r.number]
	if s != nil && (s.epoch != r.epoch || s.slots != r.slots || s.slotBytes != r.slotBytes) {
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
func (c *indexCursor) finish(next *slabFound) {
	if c.slab != nil {
		c.slab.next = c.slab.slots
	}
	c.slab = next
}

// entry passes on the slot in c.h.
func (c *indexCursor) entry(r *run) error {
	h := &c.h
	if int64(h.slot) < c.slots || h.slot >= r.slots || h.size > r.slotBytes {
		return corrupt("index", "slot %d of slab %d with %d bytes", h.slot, r.number, h.size)
	}
	c.slots = int64(h.slot) + 1
	c.blocks++
	h.epoch = r.epoch
	if c.slab != nil {
		c.slab.next = h.slot + 1
		c.give(c.slab, h)
	}
	return nil
}
