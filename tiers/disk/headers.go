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
)

const (
	// headerRetry is how long the keeper waits before it first retries a header that the device
	// refused. The second value is the longest wait.
	headerRetry, maxHeaderRetry = time.Second, time.Minute
	// headerPages is how many headers the keeper writes at a time.
	headerPages = 64
)

// headers writes the slot headers of one device that change after the slot was filled: those of
// removed, evicted and renamed blocks. Its list names the slots. A header is written as its slot is
// at that time, so a slot is in the list once, however often it changes. A slot that was given up
// is freed once its free header is on the device.
//
// Only the keeper calls its methods, and finish after the keeper has ended. They alone use the
// buffer. They take Tier.mu, but not during a write. Tier.mu guards the list.
type headers struct {
	tier *Tier
	port *port.Port
	try  func(ops []directio.Op, slabs ...*slab) error // device.try
	pool *directio.Pool
	buf  *directio.Buffer // headerPages
	list headerList       // guarded by Tier.mu
}

// headerList holds the slots whose headers are to be written. The caller serialises calls.
type headerList struct {
	todo    []slotID // the oldest first
	refused []slotID // refused by the device, until retry
	cause   error    // why the last one was refused
	tried   time.Time
	wait    time.Duration // from the last try to the next
}

// add adds a slot that is not in the list.
func (l *headerList) add(id slotID) { l.todo = append(l.todo, id) }

// take takes up to n slots, the oldest, out of the list. The result is valid until the next add.
func (l *headerList) take(n int) []slotID {
	n = min(n, len(l.todo))
	list := l.todo[:n]
	if l.todo = l.todo[n:]; len(l.todo) == 0 {
		l.todo = nil
	}
	return list
}

// refuse puts a slot back. The device refused its header with err.
func (l *headerList) refuse(id slotID, err error) {
	l.refused = append(l.refused, id)
	l.cause = err
}

// refusal returns why headers wait for retry. It is nil if none waits.
func (l *headerList) refusal() error {
	if len(l.refused) == 0 {
		return nil
	}
	return l.cause
}

// retry returns the refused slots to the list of those to write, if their time has come or force is
// set. The first wait is headerRetry. Each wait is twice the last, up to maxHeaderRetry.
func (l *headerList) retry(now time.Time, force bool) {
	if len(l.refused) == 0 {
		l.wait = 0
		return
	}
	if !force && now.Sub(l.tried) < l.wait {
		return
	}
	l.todo = append(l.todo, l.refused...)
	l.refused = nil
	l.tried, l.wait = now, min(max(2*l.wait, headerRetry), maxHeaderRetry)
}

// newHeaders returns headers with an empty list.
func newHeaders(t *Tier, p *port.Port, try func([]directio.Op, ...*slab) error) (*headers, error) {
	h := &headers{tier: t, port: p, try: try}
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
	left := len(h.list.todo)
	t.mu.Unlock()
	var first error
	for left > 0 {
		if h.port.IsDown() {
			return block.ErrUnavailable
		}
		list := h.take(left)
		left -= len(list)
		for part := range slices.Chunk(list, headerPages) {
			first = cmp.Or(first, h.flushPart(part))
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return cmp.Or(first, h.list.refusal())
}

// retry lets flush try the refused headers again, if their time has come or now is set.
func (h *headers) retry(now bool) {
	h.tier.mu.Lock()
	defer h.tier.mu.Unlock()
	h.list.retry(time.Now(), now)
}

// dirtyHeader is a header to write. Its slot may have been freed since.
type dirtyHeader struct {
	id         slotID
	slab, slot uint32
}

// take returns up to n of the headers to write, the oldest, sorted by their places.
func (h *headers) take(n int) []dirtyHeader {
	t := h.tier
	t.mu.Lock()
	ids := h.list.take(min(n, 64*headerPages)) // limits the time under the lock
	list := make([]dirtyHeader, len(ids))
	for i, id := range ids {
		e := t.mu.table.at(id)
		list[i] = dirtyHeader{id, e.slab, e.slot}
	}
	t.mu.Unlock()
	slices.SortFunc(list, func(a, b dirtyHeader) int {
		return cmp.Or(cmp.Compare(a.slab, b.slab), cmp.Compare(a.slot, b.slot))
	})
	return list
}

// flushPart writes up to headerPages headers. Adjacent headers go in one write.
func (h *headers) flushPart(list []dirtyHeader) error {
	t := h.tier
	t.mu.Lock()
	if h.port.IsDown() { // slots become free without their headers then, and their IDs may be reused
		t.mu.Unlock()
		return block.ErrUnavailable
	}
	mem := h.buf.Bytes()
	var pages []headerPage
	for _, dirty := range list {
		e := t.mu.table.at(dirty.id)
		if e.flags&flagDirty == 0 || e.slab != dirty.slab || e.slot != dirty.slot {
			continue // freed, and perhaps reused: then it is in the list again
		}
		e.flags &^= flagDirty
		p := headerPage{id: dirty.id, at: t.placeLocked(dirty.id), mem: mem[len(pages)*format.PageBytes:][:format.PageBytes]}
		pages = append(pages, p)
		clear(p.mem)
		if e.state == slotLive {
			hdr := t.mu.table.header(e, p.at.slab.hdr.Epoch)
			if err := hdr.Encode(p.mem); err != nil {
				panic("disk: key checked by Store: " + err.Error())
			}
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
		if h.triedLocked(&pages[i]) && port.OfDevice(pages[i].err) {
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
	id  slotID
	at  place
	mem []byte
	err error // why it was not written
}

// writePages writes headers. Adjacent headers go in one write. If a write fails, each of its
// headers is written alone.
func (h *headers) writePages(pages []headerPage) {
	var ops []directio.Op
	var slabs []*slab
	opOf := make([]int, len(pages))
	for i := range pages {
		p, last := &pages[i], len(ops)-1
		if last >= 0 && ops[last].File == p.at.file && ops[last].Off+int64(len(ops[last].Mem)) == p.at.header {
			ops[last].Mem = ops[last].Mem[:len(ops[last].Mem)+format.PageBytes]
		} else {
			ops = append(ops, directio.Op{Kind: directio.Write, File: p.at.file, Mem: p.mem, Off: p.at.header})
			slabs = append(slabs, p.at.slab)
		}
		opOf[i] = len(ops) - 1
	}
	_ = h.try(ops, slabs...) // each op has its own error
	for i := range pages {
		p, op := &pages[i], &ops[opOf[i]]
		if p.err = op.Err; p.err != nil && len(op.Mem) > format.PageBytes {
			p.err = h.try([]directio.Op{{Kind: directio.Write, File: p.at.file, Mem: p.mem, Off: p.at.header}}, p.at.slab)
		}
	}
}

// triedLocked records the result of writing a header. It reports whether the device refused this
// header for the first time. It needs Tier.mu.
func (h *headers) triedLocked(p *headerPage) (refused bool) {
	t := h.tier
	e := t.mu.table.at(p.id)
	if p.err != nil {
		refused = e.flags&flagRefused == 0
		e.flags |= flagRefused
		if e.flags&flagDirty == 0 { // else it changed meanwhile and is in the list again
			e.flags |= flagDirty
			h.list.refuse(p.id, p.err)
		}
		return refused
	}
	e.flags &^= flagRefused
	if e.flags&flagDirty == 0 && e.state == slotGone {
		e.flags |= flagZeroed
		t.freeLocked(p.id)
	}
	return false
}

// dirtyLocked puts a slot in the list of headers to write. It needs t.mu.
func (t *Tier) dirtyLocked(id slotID) {
	e := t.mu.table.at(id)
	e.flags &^= flagZeroed
	if e.flags&flagDirty != 0 {
		return
	}
	e.flags |= flagDirty
	d := t.mu.slabs[e.slab].dev
	d.headers.list.add(id)
	kick(d.keeperKick)
}
