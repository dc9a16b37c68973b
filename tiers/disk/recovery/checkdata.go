package recovery

import (
	"errors"
	"fmt"
	"hash"
	"hash/maphash"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
)

// free zeroes a slot header, durably once syncFreed has returned.
func (c *checker) free(s *Slab, slot uint32) (err error) {
	f, err := c.d.openDirect(format.SlabName(s.Number), unix.O_RDWR)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	mem, err := mapMemory(format.PageBytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Munmap(mem)) }()
	c.freed[s.Number] = true
	return writeFull(f, mem, s.HeaderOff(slot))
}

func (c *checker) syncFreed() error {
	for number := range c.freed {
		f, err := c.d.openFile(format.SlabName(number), unix.O_RDWR)
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
	f, err := c.d.openDirect(format.SlabName(e.slab.Number), unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	mem, err := mapMemory(format.PageBytes)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, unix.Munmap(mem)) }()
	page, err := readFull(f, mem, e.slab.HeaderOff(e.slot))
	if err != nil {
		return "", err
	}
	var h format.SlotHeader
	if err := h.Decode(page); err != nil {
		return "", err
	}
	return string(h.Key), nil
}

// index compares the index with the tables.
func (c *checker) index() error {
	path, super := c.d.Join(format.IndexName), c.d.Superblock()
	if !c.r.Clean {
		what := "the tables"
		if super.Partial {
			what = "the tables of changed slabs"
		}
		c.note(path, "not closed cleanly: the next start reads %s", what)
		return nil
	}
	x := indexCheck{c: c, path: path, rest: c.entries}
	err := c.d.readIndex(c.ctx, &super, c.slabs, x.slot, x.unknown)
	for _, s := range c.slabs {
		s.next = 0
	}
	var later *format.VersionError
	switch {
	case errors.As(err, &later):
		return later
	case c.ctx.Err() != nil:
		return c.ctx.Err()
	case err != nil:
		c.damage(Finding{Path: path, What: err.Error()}, func() error { return nil })
	default:
		for len(x.rest) > 0 {
			x.missing()
		}
	}
	return nil
}

// indexCheck goes through the index and the entries of the tables side by side.
type indexCheck struct {
	c    *checker
	path string       // of the index
	rest []checkEntry // not compared yet, in the order of the index
	buf  []byte
}

// differ reports a slot. e is its entry in the tables, or nil. The key of e is reported too.
func (x *indexCheck) differ(what string, e *checkEntry, slab *Slab, slot uint32) {
	f := Finding{Path: x.path, What: fmt.Sprintf("slot %d of slab %d: %s", slot, slab.Number, what)}
	if e != nil {
		f.Key, _ = x.c.key(e) // without a key the report still names the slot
	}
	x.c.damage(f, func() error { return nil })
}

// missing skips an entry that the index lacks.
func (x *indexCheck) missing() {
	if e := &x.rest[0]; !e.gone {
		x.differ("not in the index", e, e.slab, e.slot)
	}
	x.rest = x.rest[1:]
}

// slot compares a slot of the index.
func (x *indexCheck) slot(s *Slab, h *format.SlotHeader) {
	x.c.r.IndexEntries++
	if h.Slot >= s.Usable { // already reported
		return
	}
	for len(x.rest) > 0 && (x.rest[0].slab.Number < s.Number || x.rest[0].slab == s && x.rest[0].slot < h.Slot) {
		x.missing()
	}
	if len(x.rest) == 0 || x.rest[0].slab != s || x.rest[0].slot != h.Slot {
		x.differ("in the index, but the slot is free", nil, s, h.Slot)
		return
	}
	x.buf = slices.Grow(x.buf[:0], format.PageBytes)[:format.EntryBytes(h, h.Attrs.Dirs)]
	h.EncodeEntry(x.buf, h.Attrs.Dirs)
	if e := &x.rest[0]; !e.gone && maphash.Bytes(x.c.seed, x.buf) != e.digest {
		x.differ("the index says other things than the slot", e, s, h.Slot)
	}
	x.rest = x.rest[1:]
}

// unknown reports a slab of the index whose file is gone.
func (x *indexCheck) unknown(r *format.Run) {
	path := x.c.d.SlabPath(r.Number)
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		x.c.damage(Finding{Path: path, What: "slab is in the index, but the file is gone"}, func() error { return nil })
	}
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

// judgeBlocks judges the blocks that lie wholly in a piece. If the piece could not be read, it
// reads each block alone: the device may refuse only one of them.
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
		one.buf, one.err = readFull(p.f, p.mem[:max(format.AlignUp(e.size), format.PageBytes)], e.slab.DataOff(e.slot))
		if one.err == nil {
			sumBlocks(&one)
		}
		c.judgeBlock(e, one.err == nil && one.state[0] == pageUsed, one.err)
	}
}

// judgeBlock frees the slot of a block with wrong data. A block that cannot be read stays: it may
// be readable later, or on another device.
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
	c.damage(Finding{Path: e.slab.Path, Offset: e.slab.DataOff(e.slot), Key: key, What: what}, fix)
}

// sumBlocks checks the blocks that lie wholly in a piece.
func sumBlocks(p *piece) {
	if p.part {
		return
	}
	p.state = make([]pageState, len(p.blocks))
	for i := range p.blocks {
		e := &p.blocks[i]
		b := p.buf[min(int64(i)*e.slab.SlotBytes, int64(len(p.buf))):]
		p.state[i] = pageBad
		if int64(len(b)) >= e.size && block.Sum(b[:e.size]).Sum == e.sum {
			p.state[i] = pageUsed
		}
	}
}

// dataReader makes the pieces of the data of entries. Adjacent entries share a piece, a large entry
// takes several.
type dataReader struct {
	d     *Dir
	rest  []checkEntry
	files fileSet
	from  int64 // next offset to read in rest[0]
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
	f, err := r.files.open(r.d, s.Number)
	if err != nil {
		return nil, err
	}
	p := &piece{f: f, slab: s, first: e.slot, off: s.DataOff(e.slot) + r.from, from: r.from}
	if e.size > pieceBytes {
		p.part, p.blocks = true, r.rest[:1]
		p.n = int(min(format.AlignUp(e.size-r.from), pieceBytes))
		if r.from += int64(p.n); r.from >= e.size {
			r.rest, r.from = r.rest[1:], 0
		}
		return p, nil
	}
	n := 1
	for ; n < len(r.rest); n++ {
		next := &r.rest[n]
		if next.slab != s || next.slot != e.slot+uint32(n) || next.size > pieceBytes ||
			int64(n)*s.SlotBytes+format.AlignUp(next.size) > pieceBytes {
			break
		}
	}
	p.blocks, r.rest = r.rest[:n], r.rest[n:]
	p.n = int(int64(n-1)*s.SlotBytes + format.AlignUp(p.blocks[n-1].size))
	return p, nil
}

func (r *dataReader) close() { r.files.close() }

// finish counts the good blocks and writes the index.
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
	// The tables are read again for the keys. By now they hold only good slots.
	slabs, _, err := c.d.findSlabs(c.ctx)
	if err != nil {
		return err
	}
	return c.d.SaveIndex(func(w *IndexWriter) error {
		rest := slabs
		begin := func(until *Slab) {
			for len(rest) > 0 && (until == nil || rest[0].Number <= until.Number) {
				w.Slab(&rest[0].SlabHeader)
				rest = rest[1:]
			}
		}
		err := c.d.readTables(c.ctx, slabs, func(s *Slab, slot uint32, st pageState, h *format.SlotHeader, _ error) {
			if st == pageUsed && slot < s.Usable {
				begin(s)
				w.Slot(h)
			}
		})
		begin(nil)
		return err
	})
}

// fileSet keeps files open while pieces may use them.
type fileSet struct {
	files  []*os.File
	number uint32 // slab number of the last file opened
}

// open returns the file of a slab.
func (s *fileSet) open(d *Dir, number uint32) (*os.File, error) {
	if n := len(s.files); n > 0 && s.number == number {
		return s.files[n-1], nil
	}
	f, err := d.openDirect(format.SlabName(number), unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	if len(s.files) > pieceBuffers { // no piece uses the oldest file any more
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
