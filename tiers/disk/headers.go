package disk

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/disk/port"
	"github.com/kvfs/kvfs/tiers/disk/slotmap"
)

// headerPages is how many headers the keeper writes at a time.
const headerPages = 64

// headers writes the slot headers of one device that change after the slot was filled: those of
// removed, evicted and renamed blocks. The slot map lists them. A header is written as its slot is at
// that time. A slot that was given up is freed once its free header is on the device.
//
// Only the keeper calls its methods, and finish after the keeper has ended. They alone use the
// buffer. They take Tier.mu, but not during a write.
type headers struct {
	tier  *Tier
	space *slotmap.Space // guarded by Tier.mu
	port  *port.Port
	try   func(ops []directio.Op, slabs ...*slotmap.Slab) error // device.try
	pool  *directio.Pool
	buf   *directio.Buffer // headerPages
}

// newHeaders returns the headers of a space.
func newHeaders(t *Tier, sp *slotmap.Space, p *port.Port, try func([]directio.Op, ...*slotmap.Slab) error) (*headers, error) {
	h := &headers{tier: t, space: sp, port: p, try: try}
	var err error
	h.pool, err = directio.NewPool(directio.PoolOptions{SizeBytes: headerPages * format.PageBytes, UsableRatio: 1})
	if err != nil {
		return nil, err
	}
	if h.buf, err = h.pool.Acquire(context.Background(), headerPages*format.PageBytes); err != nil {
		return nil, errors.Join(err, h.pool.Close())
	}
	return h, nil
}

// close frees the buffer.
func (h *headers) close() error {
	h.buf.Release()
	return h.pool.Close()
}

// page is a page of the buffer, for the header of a slab.
func (h *headers) page() []byte { return h.buf.Bytes()[:format.PageBytes] }

// flush writes the headers in the list. It fails if one was not written, and as long as one is
// refused; see retry.
func (h *headers) flush() error {
	t := h.tier
	t.mu.Lock()
	left := h.space.Unwritten()
	t.mu.Unlock()
	var first error
	for left > 0 {
		if h.port.IsDown() {
			return block.ErrUnavailable
		}
		t.mu.Lock()
		list := t.mu.slots.TakeDirty(h.space, min(left, 64*headerPages)) // limits the time under the lock
		t.mu.Unlock()
		slotmap.SortDirty(list)
		left -= len(list)
		for part := range slices.Chunk(list, headerPages) {
			first = cmp.Or(first, h.flushPart(part))
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return cmp.Or(first, h.space.Refusal())
}

// retry lets flush try the refused headers again, if their time has come or now is set.
func (h *headers) retry(now bool) {
	h.tier.mu.Lock()
	defer h.tier.mu.Unlock()
	h.space.Retry(time.Now(), now)
}

// flushPart writes up to headerPages headers. Adjacent headers go in one write.
func (h *headers) flushPart(list []slotmap.DirtyHeader) error {
	t := h.tier
	t.mu.Lock()
	if h.port.IsDown() { // slots become free without their headers then, and their IDs may be reused
		t.mu.Unlock()
		return block.ErrUnavailable
	}
	mem := h.buf.Bytes()
	var pages []headerPage
	for _, dirty := range list {
		page := mem[len(pages)*format.PageBytes:][:format.PageBytes]
		if at, ok := t.mu.slots.EncodeDirty(dirty, page); ok {
			pages = append(pages, headerPage{id: dirty.ID, at: at, mem: page})
		}
	}
	t.mu.Unlock()
	if len(pages) == 0 {
		return nil
	}
	h.writePages(pages)
	t.mu.Lock()
	if h.port.IsDown() {
		t.mu.Unlock()
		return block.ErrUnavailable
	}
	var first error
	var failed []error // errors to count
	for i := range pages {
		first = cmp.Or(first, pages[i].err)
		if t.mu.slots.WroteDirty(pages[i].id, pages[i].err) && port.OfDevice(pages[i].err) {
			failed = append(failed, pages[i].err)
		}
	}
	t.mu.Unlock()
	for _, err := range failed {
		h.port.Count(err)
	}
	return first
}

// headerPage is a header as it will be written.
type headerPage struct {
	id  slotmap.SlotID
	at  slotmap.Place
	mem []byte
	err error // why it was not written
}

// writePages writes headers. Adjacent headers go in one write. If a write fails, each of its
// headers is written alone.
func (h *headers) writePages(pages []headerPage) {
	var ops []directio.Op
	var slabs []*slotmap.Slab
	opOf := make([]int, len(pages))
	for i := range pages {
		p, last := &pages[i], len(ops)-1
		if last >= 0 && ops[last].File == p.at.File && ops[last].Off+int64(len(ops[last].Mem)) == p.at.Header {
			ops[last].Mem = ops[last].Mem[:len(ops[last].Mem)+format.PageBytes]
		} else {
			ops = append(ops, directio.Op{Kind: directio.Write, File: p.at.File, Mem: p.mem, Off: p.at.Header})
			slabs = append(slabs, p.at.Slab)
		}
		opOf[i] = len(ops) - 1
	}
	_ = h.try(ops, slabs...) // each op has its own error
	for i := range pages {
		p, op := &pages[i], &ops[opOf[i]]
		if p.err = op.Err; p.err != nil && len(op.Mem) > format.PageBytes {
			p.err = h.try([]directio.Op{{Kind: directio.Write, File: p.at.File, Mem: p.mem, Off: p.at.Header}}, p.at.Slab)
		}
	}
}
