package disk

import (
	"errors"
	"fmt"
	"hash"
	"hash/maphash"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
)

// free zeroes a slot header, durably once syncFreed has returned.
func (c *checker) free(s *slabFound, slot uint32) (err error) {
	f, err := c.d.openDirect(slabName(s.number), unix.O_RDWR)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	mem, err := mapMemory(pageBytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Munmap(mem)) }()
	c.freed[s.number] = true
	return writeFull(f, mem, s.headerOff(slot))
}

func (c *checker) syncFreed() error {
	for number := range c.freed {
		f, err := c.d.openFile(slabName(number), unix.O_RDWR)
		if err != nil {
			return err
		}
		if err := errors.Join(fdatasync(f), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// key reads the key of an entry.
func (c *checker) key(e *checkEntry) (_ string, err error) {
	f, err := c.d.openDirect(slabName(e.slab.number), unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	mem, err := mapMemory(pageBytes)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, unix.Munmap(mem)) }()
	page, err := readFull(f, mem, e.slab.headerOff(e.slot))
	if err != nil {
		return "", err
	}
	var h slotHeader
	if err := h.decode(page); err != nil {
		return "", err
	}
	return string(h.key), nil
}

// index compares the index with the tables, which it goes through side by side.
func (c *checker) index() error {
	path, super := c.d.join(indexName), c.d.superblock()
	if !c.r.Clean {
		c.note(path, "not closed cleanly: the next start reads the tables")
		return nil
	}
	rest := c.entries
	differ := func(what string, e *checkEntry, slab *slabFound, slot uint32) {
		f := Finding{Path: path, What: fmt.Sprintf("slot %d of slab %d: %s", slot, slab.number, what)}
		if e != nil {
			f.Key, _ = c.key(e) // no key is no matter: the slot is named
		}
		c.damage(f, func() error { return nil })
	}
	skipTo := func(slab *slabFound, slot uint32, end bool) {
		for len(rest) > 0 {
			e := &rest[0]
			if !end && (e.slab.number > slab.number || e.slab == slab && e.slot >= slot) {
				return
			}
			if !e.gone {
				differ("not in the index", e, e.slab, e.slot)
			}
			rest = rest[1:]
		}
	}
	var buf []byte
	err := c.d.readIndex(c.ctx, &super, c.slabs, func(s *slabFound, h *slotHeader) {
		c.r.IndexEntries++
		if h.slot >= s.usable { // has been said
			return
		}
		skipTo(s, h.slot, false)
		if len(rest) == 0 || rest[0].slab != s || rest[0].slot != h.slot {
			differ("in the index, but the slot is free", nil, s, h.slot)
			return
		}
		buf = slices.Grow(buf[:0], pageBytes)[:entryBytes(h, h.attrs.Dirs)]
		h.encodeEntry(buf, h.attrs.Dirs)
		if e := &rest[0]; !e.gone && maphash.Bytes(c.seed, buf) != e.digest {
			differ("the index says other things than the slot", e, s, h.slot)
		}
		rest = rest[1:]
	}, func(r *run) {
		if _, err := os.Lstat(c.d.slabPath(r.number)); errors.Is(err, os.ErrNotExist) {
			c.damage(Finding{Path: c.d.slabPath(r.number), What: "slab is in the index, but the file is gone"}, func() error { return nil })
		}
	})
	for _, s := range c.slabs {
		s.next = 0
	}
	var later *VersionError
	switch {
	case errors.As(err, &later):
		return later
	case c.ctx.Err() != nil:
		return c.ctx.Err()
	case err != nil:
		c.damage(Finding{Path: path, What: err.Error()}, func() error { return nil })
	default:
		skipTo(nil, 0, true)
	}
	return nil
}

// data compares the checksums of all blocks.
func (c *checker) data() error {
	if !c.o.Data {
		return nil
	}
	for i := range c.entries {
		if !c.entries[i].gone {
			c.total += c.entries[i].size
		}
	}
	r := dataReader{d: c.d, rest: c.entries}
	defer r.close()
	var running hash.Hash64 // of a block that takes several pieces
	return readPieces(c.ctx, r.piece, sumBlocks, func(p *piece) error {
		if e := &p.blocks[0]; p.part {
			if running == nil {
				running = block.NewChecksum()
			}
			var n int64
			if p.err == nil {
				n = min(e.size-p.from, int64(len(p.buf)))
				running.Write(p.buf[:n])
			}
			c.progress(n)
			last := p.from+int64(p.n) >= e.size
			if p.err != nil || last {
				c.judgeBlock(e, running.Sum64() == e.sum, p.err)
			}
			if last {
				running = nil
			}
			return nil
		}
		c.judgeBlocks(p)
		return nil
	})
}

// judgeBlocks judges the blocks that lie wholly in a piece. If it could not be read, each is
// read by itself: the device may refuse one of them only.
func (c *checker) judgeBlocks(p *piece) {
	for i := range p.blocks {
		e := &p.blocks[i]
		if e.gone {
			continue
		}
		c.progress(e.size)
		if p.err == nil {
			c.judgeBlock(e, p.state[i] == pageUsed, nil)
			continue
		}
		one := piece{blocks: p.blocks[i : i+1]}
		one.buf, one.err = readFull(p.f, p.mem[:max(alignUp(e.size), pageBytes)], e.slab.dataOff(e.slot))
		if one.err == nil {
			sumBlocks(&one)
		}
		c.judgeBlock(e, one.err == nil && one.state[0] == pageUsed, one.err)
	}
}

// judgeBlock frees the slot of a block whose data are not what they were. What cannot be
// read stays: another time, or on another device, it may be.
func (c *checker) judgeBlock(e *checkEntry, ok bool, err error) {
	if ok || e.gone {
		return
	}
	e.gone = true
	what := fmt.Sprintf("slot %d: checksum of the data", e.slot)
	fix := func() error { return c.free(e.slab, e.slot) }
	if err != nil {
		what, fix = fmt.Sprintf("slot %d: data cannot be read: %v", e.slot, err), nil
	}
	key, _ := c.key(e)
	c.damage(Finding{Path: e.slab.path, Offset: e.slab.dataOff(e.slot), Key: key, What: what}, fix)
}

// sumBlocks checks the blocks that lie wholly in a piece.
func sumBlocks(p *piece) {
	if p.part {
		return
	}
	p.state = make([]pageState, len(p.blocks))
	for i := range p.blocks {
		e := &p.blocks[i]
		b := p.buf[min(int64(i)*e.slab.slotBytes, int64(len(p.buf))):]
		p.state[i] = pageBad
		if int64(len(b)) >= e.size && block.Sum(b[:e.size]).Sum == e.sum {
			p.state[i] = pageUsed
		}
	}
}

// dataReader makes the pieces of the data of entries: of neighbours together, of a
// large one in parts.
type dataReader struct {
	d     *directory
	rest  []checkEntry
	files fileSet
	from  int64 // of rest[0] is read
}

func (r *dataReader) piece() (*piece, error) {
	for len(r.rest) > 0 && r.rest[0].gone {
		r.rest = r.rest[1:]
	}
	if len(r.rest) == 0 {
		return nil, nil
	}
	e := &r.rest[0]
	s := e.slab
	f, err := r.files.open(r.d, s.number)
	if err != nil {
		return nil, err
	}
	p := &piece{f: f, slab: s, first: e.slot, off: s.dataOff(e.slot) + r.from, from: r.from}
	if e.size > pieceBytes {
		p.part, p.blocks = true, r.rest[:1]
		p.n = int(min(alignUp(e.size-r.from), pieceBytes))
		if r.from += int64(p.n); r.from >= e.size {
			r.rest, r.from = r.rest[1:], 0
		}
		return p, nil
	}
	n := 1
	for ; n < len(r.rest); n++ {
		next := &r.rest[n]
		if next.slab != s || next.slot != e.slot+uint32(n) || next.size > pieceBytes ||
			int64(n)*s.slotBytes+alignUp(next.size) > pieceBytes {
			break
		}
	}
	p.blocks, r.rest = r.rest[:n], r.rest[n:]
	p.n = int(int64(n-1)*s.slotBytes + alignUp(p.blocks[n-1].size))
	return p, nil
}

func (r *dataReader) close() { r.files.close() }

// finish counts what is good, and writes the index.
func (c *checker) finish() error {
	for i := range c.entries {
		if e := &c.entries[i]; !e.gone {
			c.r.Blocks++
			c.r.BlockBytes += e.size
		}
	}
	c.r.DataBytes = c.done - c.r.TableBytes
	c.progress(c.total - c.done)
	if err := c.syncFreed(); err != nil {
		return err
	}
	if !c.o.Repair || c.unread || c.r.Clean && !c.changed {
		return nil
	}
	// The tables are read again, for the keys; by now they hold what is good.
	slabs, _, err := c.d.findSlabs(c.ctx)
	if err != nil {
		return err
	}
	return c.d.saveIndex(func(w *indexWriter) error {
		rest := slabs
		begin := func(until *slabFound) {
			for len(rest) > 0 && (until == nil || rest[0].number <= until.number) {
				w.slab(&rest[0].slabHeader)
				rest = rest[1:]
			}
		}
		err := c.d.readTables(c.ctx, slabs, func(s *slabFound, slot uint32, st pageState, h *slotHeader, _ error) {
			if st == pageUsed && slot < s.usable {
				begin(s)
				w.slot(h)
			}
		})
		begin(nil)
		return err
	})
}

// fileSet keeps the files open that pieces under way may use.
type fileSet struct {
	files  []*os.File
	number uint32 // slab of the last
}

// open returns the file of a slab.
func (s *fileSet) open(d *directory, number uint32) (*os.File, error) {
	if n := len(s.files); n > 0 && s.number == number {
		return s.files[n-1], nil
	}
	f, err := d.openDirect(slabName(number), unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	if len(s.files) > pieceBuffers { // a piece of each of the others has come back
		s.files[0].Close()
		s.files = s.files[1:]
	}
	s.files, s.number = append(s.files, f), number
	return f, nil
}

func (s *fileSet) close() {
	for _, f := range s.files {
		f.Close()
	}
}
