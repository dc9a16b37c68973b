package recovery

import (
	"context"
	"encoding/binary"
	"errors"
	"math/bits"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/disk/format"
)

// Slab is a usable slab.
type Slab struct {
	format.SlabHeader
	Path      string
	FileBytes int64 // as the file is; less than WantBytes if truncated
	// Usable is how many slots, from the first, have their table page and data within the file. The
	// others must not be used.
	Usable uint32
	next   uint32 // first slot that the index has not described
}

// Indexed reports whether Recover took all of the slab from the index.
func (s *Slab) Indexed() bool { return s.next == s.Slots }

// Problem is a slab that was set aside: it is neither used nor changed.
type Problem struct {
	Number uint32
	Path   string
	Err    error // wraps ErrCorrupt, or is an error of the system
}

// Funcs receives what a directory holds. Both functions are called on the goroutine that
// called Recover, never in parallel.
type Funcs struct {
	// Slab is called for each usable slab, in the order of their numbers, before the first call of
	// Slot. s stays valid.
	Slab func(s *Slab)
	// Slot is called for each used slot. h, with its key and Dirs, is valid until Slot returns. Two
	// slots may have one key, after a crash between a store and the removal of the replaced block.
	// The one with the higher Seq counts, and if both are equal the first. The caller must free the
	// other. Slots of one slab come in ascending order.
	Slot func(s *Slab, h *format.SlotHeader)
}

// Recovered counts what Recover has seen.
type Recovered struct {
	Slabs     int
	Blocks    int64 // given to Slot, of which
	ByIndex   int64 // came from the index
	IndexErr  error // why the index was not used, or not completely; nil if it was
	SetAside  []Problem
	BadSlots  int64 // damaged slot headers: free
	Stale     int64 // free slots with old content: headers of another epoch, data
	Truncated int64 // used slots with data beyond the end of the file; not passed to Slot
	Took      time.Duration
}

// errUnclean is why the index is not used after a crash.
var errUnclean = errors.New("not closed cleanly")

// Recover reads what the directory holds. It reads the index as far as the superblock says that it is
// valid. It reads the tables of the other slabs, of those that the index does not describe, and of those from the point where
// the index is damaged. It changes nothing on disk. It reports damage in the result only. It fails with:
//   - a VersionError if anything has a later version
//   - an error of the system if the directory cannot be listed
//   - the error of ctx
func (d *Dir) Recover(ctx context.Context, fn Funcs) (*Recovered, error) {
	start := time.Now()
	slabs, aside, err := d.findSlabs(ctx)
	if err != nil {
		return nil, err
	}
	r := &Recovered{Slabs: len(slabs), SetAside: aside}
	for _, s := range slabs {
		fn.Slab(s)
	}
	give := func(s *Slab, h *format.SlotHeader) {
		r.Blocks++
		fn.Slot(s, h)
	}
	super := d.Superblock()
	if super.Clean || super.Partial {
		described := slabs
		if super.Partial {
			described = slices.DeleteFunc(slices.Clone(slabs), func(s *Slab) bool { return super.Changed.Has(s.Number) })
		}
		r.IndexErr = d.readIndex(ctx, &super, described, func(s *Slab, h *format.SlotHeader) {
			if h.Slot >= s.Usable {
				r.Truncated++
				return
			}
			r.ByIndex++
			give(s, h)
		}, nil)
	} else {
		r.IndexErr = errUnclean
	}
	var later *format.VersionError
	if err := ctx.Err(); err != nil {
		return nil, err
	} else if errors.As(r.IndexErr, &later) {
		return nil, later
	}
	err = d.readTables(ctx, slabs, func(s *Slab, slot uint32, st pageState, h *format.SlotHeader, err error) {
		switch st {
		case pageUsed:
			if slot >= s.Usable {
				r.Truncated++
			} else {
				give(s, h)
			}
		case pageBad:
			r.BadSlots++
		case pageStale:
			r.Stale++
		}
	})
	r.Took = time.Since(start)
	return r, err
}

// findSlabs reads the headers of all slabs. It returns the usable ones, and the others, each sorted
// by number.
func (d *Dir) findSlabs(ctx context.Context) (slabs []*Slab, aside []Problem, err error) {
	names, err := d.names()
	if err != nil {
		return nil, nil, err
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		_, ok := format.ParseSlabName(name)
		return !ok
	})
	mem, err := mapMemory(format.PageBytes * pieceReaders)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, unix.Munmap(mem)) }()
	found := make([]*Slab, len(names))
	errs := make([]error, len(names))
	var next atomic.Int64
	var wg sync.WaitGroup
	for i := range pieceReaders {
		page := mem[i*format.PageBytes : (i+1)*format.PageBytes]
		wg.Go(func() { // ends when all names are taken
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(names) {
					return
				}
				found[i], errs[i] = d.readSlab(names[i], page)
			}
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	for i, name := range names {
		var later *format.VersionError
		switch {
		case errors.As(errs[i], &later):
			return nil, nil, later
		case errors.Is(errs[i], os.ErrNotExist): // the file is gone, and no block relied on it
		case errs[i] != nil:
			number, _ := format.ParseSlabName(name)
			aside = append(aside, Problem{number, d.Join(name), errs[i]})
		default:
			slabs = append(slabs, found[i])
		}
	}
	return slabs, aside, nil
}

// readSlabHeader reads the header of a slab into page, and the size of its file. The slab may
// belong to another directory.
func (d *Dir) readSlabHeader(name string, page []byte) (_ *Slab, err error) {
	f, err := d.openDirect(name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	got, err := readFull(f, page, 0)
	if err != nil {
		return nil, err
	}
	if len(got) == 0 {
		return nil, format.Corrupt("slab header", "file of %d bytes", info.Size())
	}
	h, err := format.DecodeSlabHeader(got)
	var later *format.VersionError
	if errors.As(err, &later) {
		later.Path = f.Name()
	}
	return &Slab{SlabHeader: h, Path: f.Name(), FileBytes: info.Size()}, err
}

// readSlab is readSlabHeader for a slab of this directory.
func (d *Dir) readSlab(name string, page []byte) (*Slab, error) {
	s, err := d.readSlabHeader(name, page)
	if err != nil {
		return nil, err
	}
	h := &s.SlabHeader
	number, _ := format.ParseSlabName(name)
	switch want := d.Superblock().UUID; {
	case h.UUID != want:
		return nil, format.Corrupt("slab header", "of another directory: uuid %v, here it is %v", h.UUID, want)
	case h.Number != number:
		return nil, format.Corrupt("slab header", "of slab %d", h.Number)
	}
	s.Usable = uint32(min(max((s.FileBytes-h.DataOff(0))/h.SlotBytes, 0), int64(h.Slots)))
	if s.Usable == 0 {
		return nil, format.Corrupt("slab", "truncated to %d of %d bytes, before the first slot's end", s.FileBytes, h.WantBytes())
	}
	return s, nil
}

// pageState is the state of a slot as its page in the table shows it.
type pageState uint8

const (
	pageFree  pageState = iota // zeros
	pageUsed                   // valid
	pageBad                    // damaged
	pageStale                  // of another epoch: a header, or data from when the page was no part of a table
	pageLater                  // of a later version
)

// judge sets the states of the pages of a piece of a table.
func judge(p *piece) {
	p.state = make([]pageState, len(p.buf)/format.PageBytes)
	for i := range p.state {
		page := p.buf[i*format.PageBytes : (i+1)*format.PageBytes]
		if binary.LittleEndian.Uint64(page) == 0 && format.IsZero(page) {
			continue
		}
		err := format.CheckPage(page, format.SlotMagic, "slot header")
		ofEpoch := binary.LittleEndian.Uint64(page[16:]) == p.slab.Epoch
		switch {
		case err != nil:
			p.state[i] = judgeBad(page, ofEpoch, p.slab.Epoch, err)
		case ofEpoch:
			p.state[i] = pageUsed
		default:
			p.state[i] = pageStale
		}
	}
}

// judgeBad distinguishes a damaged header from a page that never was a header. A slab that changed
// its class may have old block data, of any content, where its table is now. Such data do not
// contain the epoch, a random number, by chance. A few flipped bits in magic and epoch do not hide
// a header.
func judgeBad(page []byte, ofEpoch bool, epoch uint64, err error) pageState {
	const few = 8
	var later *format.VersionError
	switch {
	case errors.As(err, &later): // its checksum is right, and so is its epoch
		if ofEpoch {
			return pageLater
		}
	case bits.OnesCount64(binary.LittleEndian.Uint64(page)^binary.LittleEndian.Uint64([]byte(format.SlotMagic))) <= few &&
		bits.OnesCount64(binary.LittleEndian.Uint64(page[16:])^epoch) <= few:
		return pageBad
	}
	return pageStale
}

// readTables reads the tables of slabs, each from its next slot on. It calls fn in order for all
// slots but those with zeros. h is valid with pageUsed, err with pageBad. If a table cannot be
// read, each slot of that read is pageBad.
func (d *Dir) readTables(ctx context.Context, slabs []*Slab,
	fn func(s *Slab, slot uint32, st pageState, h *format.SlotHeader, err error)) error {
	t := tableReader{d: d, slabs: slabs}
	defer t.close()
	var h format.SlotHeader
	return readPieces(ctx, t.piece, judge, func(p *piece) error {
		if p.err != nil {
			for i := range uint32(p.n / format.PageBytes) {
				fn(p.slab, p.first+i, pageBad, nil, p.err)
			}
		}
		for i, st := range p.state {
			slot := p.first + uint32(i)
			page := p.buf[i*format.PageBytes : (i+1)*format.PageBytes]
			var err error
			switch st {
			case pageFree:
				continue
			case pageUsed:
				if err = decodeIn(&h, page, p.slab, slot); err != nil {
					st = pageBad
				}
			case pageBad:
				err = format.CheckPage(page, format.SlotMagic, "slot header")
			case pageLater:
				return &format.VersionError{What: "slot header", Path: p.slab.Path, Got: binary.LittleEndian.Uint32(page[8:]), Want: format.Version}
			}
			fn(p.slab, slot, st, &h, err)
		}
		return nil
	})
}

// decodeIn reads into h a page that format.CheckPage accepts. It fails with ErrCorrupt if the page
// cannot be that of the slot.
func decodeIn(h *format.SlotHeader, page []byte, s *Slab, slot uint32) error {
	if err := h.DecodeChecked(page); err != nil {
		return err
	}
	switch {
	case h.Slot != slot:
		return format.Corrupt("slot header", "of slot %d", h.Slot)
	case h.Size > s.SlotBytes:
		return format.Corrupt("slot header", "block of %d bytes in a slot of %d", h.Size, s.SlotBytes)
	}
	return nil
}

// tableReader makes the pieces of all tables.
type tableReader struct {
	d     *Dir
	slabs []*Slab
	files fileSet
	begun bool   // next and end are those of slabs[0]
	next  uint32 // slot
	end   uint32
}

// piece returns the next piece, nil after the last.
func (t *tableReader) piece() (*piece, error) {
	for !t.begun || t.next >= t.end {
		if t.begun {
			t.begun, t.slabs = false, t.slabs[1:]
		}
		if len(t.slabs) == 0 {
			return nil, nil
		}
		t.begun, t.next, t.end = true, t.slabs[0].next, t.slabs[0].Slots
	}
	s := t.slabs[0]
	f, err := t.files.open(t.d, s.Number)
	if err != nil {
		return nil, err
	}
	n := min(t.end-t.next, pieceBytes/format.PageBytes)
	p := &piece{f: f, off: s.HeaderOff(t.next), n: int(n) * format.PageBytes, slab: s, first: t.next}
	t.next += n
	return p, nil
}

func (t *tableReader) close() { t.files.close() }
