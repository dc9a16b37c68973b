package disk

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/block"
)

const (
	// keeperTick is how often the keeper looks for what nobody told it: headers that
	// could not be written.
	keeperTick = time.Second
	// headerRetry is how long the keeper waits, the first time and at most, before it tries
	// again to write a header that the device refused.
	headerRetry, maxHeaderRetry = time.Second, time.Minute
	// headerPages is how many headers the keeper writes at a time.
	headerPages = 64
	// fullRetry is how long a device that was full is not asked for a new slab.
	fullRetry = time.Minute
)

// roomRequest is a store that waits for slots.
type roomRequest struct {
	flights []*flight // of one class
	done    chan struct{}
	n       int // how many of them got a slot, or with err, are told of it
	err     error
}

// keep is the keeper of a device: it writes headers, makes room, and passes on
// calls of Sync, until the device fails or is closed.
func (d *device) keep() {
	tick := time.NewTicker(keeperTick)
	defer tick.Stop()
	for {
		select {
		case <-d.keeperKick:
		case <-tick.C:
		case <-d.down:
			return
		case <-d.keeperStop:
			return
		}
		syncs := d.takeSyncs()
		d.retryHeaders(len(syncs) > 0)
		err := d.flushHeaders()
		d.serveRoom()
		d.evictAhead()
		if err == nil {
			err = d.flushHeaders()
		}
		d.passSyncs(syncs, err)
	}
}

// kick wakes a goroutine that waits on c, a channel with room for one.
func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// call runs fn, which makes system calls that only return when the device answers.
// The watchdog sees how long it takes.
func call(since *stopwatch, fn func() error) error {
	since.start()
	defer since.stop()
	return fn()
}

// dirtyLocked has the header of a slot written as it is then. It needs t.mu.
func (t *Tier) dirtyLocked(id slotID) {
	e := t.mu.table.at(id)
	e.flags &^= flagZeroed
	if e.flags&flagDirty != 0 {
		return
	}
	e.flags |= flagDirty
	d := t.mu.slabs[e.slab].dev
	d.dirty = append(d.dirty, id)
	kick(d.keeperKick)
}

// flushHeaders writes the headers that are to be written by now. It fails if one was not
// written, and as long as there is one that the device has refused; see retryHeaders.
func (d *device) flushHeaders() error {
	t := d.tier
	t.mu.Lock()
	left := len(d.dirty)
	t.mu.Unlock()
	var first error
	for left > 0 {
		if d.isDown() {
			return block.ErrUnavailable
		}
		list := d.takeDirty(left)
		left -= len(list)
		for part := range slices.Chunk(list, headerPages) {
			first = cmp.Or(first, d.flushPart(part))
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if first == nil && len(d.refused) > 0 {
		first = d.refusal
	}
	return first
}

// retryHeaders has the headers that the device has refused tried again by flushHeaders, if
// it is time or now is set.
func (d *device) retryHeaders(now bool) {
	t := d.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(d.refused) == 0 {
		d.refusedWait = 0
		return
	}
	if !now && time.Since(d.refusedAt) < d.refusedWait {
		return
	}
	d.dirty = append(d.dirty, d.refused...)
	d.refused = nil
	d.refusedAt, d.refusedWait = time.Now(), min(max(2*d.refusedWait, headerRetry), maxHeaderRetry)
}

// dirtyHeader is a header to write. Its slot may have been freed since.
type dirtyHeader struct {
	id         slotID
	slab, slot uint32
}

// takeDirty returns up to n of the headers to write, the oldest, in the order of
// their places.
func (d *device) takeDirty(n int) []dirtyHeader {
	t := d.tier
	t.mu.Lock()
	n = min(n, len(d.dirty), 64*headerPages) // not too much under the lock
	list := make([]dirtyHeader, n)
	for i, id := range d.dirty[:n] {
		e := t.mu.table.at(id)
		list[i] = dirtyHeader{id, e.slab, e.slot}
	}
	if d.dirty = d.dirty[n:]; len(d.dirty) == 0 {
		d.dirty = nil
	}
	t.mu.Unlock()
	slices.SortFunc(list, func(a, b dirtyHeader) int {
		return cmp.Or(cmp.Compare(a.slab, b.slab), cmp.Compare(a.slot, b.slot))
	})
	return list
}

// flushPart writes up to headerPages headers, neighbours as one.
func (d *device) flushPart(list []dirtyHeader) error {
	t := d.tier
	t.mu.Lock()
	if d.isDown() { // then slots are free without their headers, and their IDs may be others'
		t.mu.Unlock()
		return block.ErrUnavailable
	}
	mem := d.headers.Bytes()
	var pages []headerPage
	for _, h := range list {
		e := t.mu.table.at(h.id)
		if e.flags&flagDirty == 0 || e.slab != h.slab || e.slot != h.slot {
			continue // freed, and perhaps used again: then it is in the list once more
		}
		e.flags &^= flagDirty
		p := headerPage{id: h.id, at: t.placeLocked(h.id), mem: mem[len(pages)*pageBytes:][:pageBytes]}
		pages = append(pages, p)
		clear(p.mem)
		if e.state == slotLive {
			h := t.mu.table.header(e, p.at.slab.hdr.epoch)
			if err := h.encode(p.mem); err != nil {
				panic("disk: key checked by Store: " + err.Error())
			}
		}
	}
	t.mu.Unlock()
	if len(pages) == 0 {
		return nil
	}
	d.writePages(pages)
	t.mu.Lock()
	if d.isDown() {
		t.mu.Unlock()
		return block.ErrUnavailable
	}
	var first error
	var failed []error // that are to be counted
	for i := range pages {
		first = cmp.Or(first, pages[i].err)
		if d.headerTriedLocked(&pages[i]) && ofDevice(pages[i].err) {
			failed = append(failed, pages[i].err)
		}
	}
	t.mu.Unlock()
	for _, err := range failed {
		d.ioError(err)
	}
	return first
}

// headerPage is a header as it is to be written.
type headerPage struct {
	id  slotID
	at  place
	mem []byte
	err error // why it was not
}

// writePages writes headers, neighbours as one, and those of what failed each by itself.
func (d *device) writePages(pages []headerPage) {
	var ops []directio.Op
	var slabs []*slab
	opOf := make([]int, len(pages))
	for i := range pages {
		p, last := &pages[i], len(ops)-1
		if last >= 0 && ops[last].File == p.at.file && ops[last].Off+int64(len(ops[last].Mem)) == p.at.header {
			ops[last].Mem = ops[last].Mem[:len(ops[last].Mem)+pageBytes]
		} else {
			ops = append(ops, directio.Op{Kind: directio.Write, File: p.at.file, Mem: p.mem, Off: p.at.header})
			slabs = append(slabs, p.at.slab)
		}
		opOf[i] = len(ops) - 1
	}
	_ = d.try(ops, slabs...) // looked at op by op
	for i := range pages {
		p, op := &pages[i], &ops[opOf[i]]
		if p.err = op.Err; p.err != nil && len(op.Mem) > pageBytes {
			p.err = d.try([]directio.Op{{Kind: directio.Write, File: p.at.file, Mem: p.mem, Off: p.at.header}}, p.at.slab)
		}
	}
}

// headerTriedLocked takes note of what became of a header. It reports whether it is the
// first time that the device has refused it. It needs Tier.mu.
func (d *device) headerTriedLocked(p *headerPage) (refused bool) {
	t := d.tier
	e := t.mu.table.at(p.id)
	if p.err != nil {
		refused = e.flags&flagRefused == 0
		e.flags |= flagRefused
		d.refusal = p.err
		if e.flags&flagDirty == 0 { // else changed meanwhile, and in the list again
			e.flags |= flagDirty
			d.refused = append(d.refused, p.id)
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

// allocate gives slots to the first of the flights, which it returns the number
// of. It waits for the keeper if there is no room at once. With an error, which may
// be ErrNoSpace, ErrTooLarge or ErrUnavailable, n flights are to be told of it.
func (d *device) allocate(flights []*flight) (n int, err error) {
	t := d.tier
	t.mu.Lock()
	slotBytes := d.slotBytesFor(flights[0].source.size)
	n = 1
	for n < len(flights) && d.slotBytesFor(flights[n].source.size) == slotBytes {
		n++
	}
	r := &roomRequest{flights: flights[:n], done: make(chan struct{})}
	if len(d.room) == 0 && d.bindSomeLocked(d.classOf(slotBytes), r) {
		t.mu.Unlock()
		return r.n, nil
	}
	d.room = append(d.room, r)
	t.mu.Unlock()
	kick(d.keeperKick)
	select {
	case <-r.done:
		return r.n, r.err
	case <-d.down:
	}
	// The keeper ends when the device is down, perhaps with r in hand.
	<-d.keeperGone
	select {
	case <-r.done:
		return r.n, r.err
	default:
		return n, block.ErrUnavailable
	}
}

// bindSomeLocked gives slots to as many flights of r as lie together. It needs Tier.mu.
func (d *device) bindSomeLocked(c *class, r *roomRequest) bool {
	s, first, n := c.takeRun(len(r.flights))
	if n == 0 {
		return false
	}
	r.n = n
	d.tier.bindLocked(s, first, r.flights[:n])
	if !c.low && c.nfree < c.reserve() {
		c.low = true
		kick(d.keeperKick)
	}
	return true
}

// serveRoom answers the stores that wait, in their order.
func (d *device) serveRoom() {
	t := d.tier
	for {
		t.mu.Lock()
		if len(d.room) == 0 {
			t.mu.Unlock()
			return
		}
		r := d.room[0]
		t.mu.Unlock()
		if err := d.makeRoom(r); err != nil {
			r.n, r.err = len(r.flights), err
		}
		t.mu.Lock()
		d.room = d.room[1:]
		t.mu.Unlock()
		close(r.done)
		if d.isDown() {
			return
		}
	}
}

// slabShape returns the header of a new slab for slots of slotBytes in a file of up
// to fileBytes, or else one with a single slot.
func (d *device) slabShape(slotBytes, fileBytes int64) slabHeader {
	h := slabHeader{uuid: d.uuid, slotBytes: slotBytes, slots: max(slotsFor(fileBytes, slotBytes), 1)}
	for h.epoch == 0 {
		h.epoch = rand.Uint64()
	}
	return h
}

// mayGrowLocked reports whether a slab file of n bytes more is within the capacity.
// It needs Tier.mu.
func (d *device) mayGrowLocked(n int64) bool {
	return d.fileBytes+n <= d.capacity && (d.fullAt.IsZero() || time.Since(d.fullAt) > fullRetry)
}

// grow makes a slab for slots of slotBytes and reports whether it could.
func (d *device) grow(slotBytes int64) bool {
	t := d.tier
	t.mu.Lock()
	h := d.slabShape(slotBytes, d.slabBytes)
	size := h.wantBytes()
	if !d.mayGrowLocked(size) {
		t.mu.Unlock()
		return false
	}
	h.number = d.takeNumberLocked()
	d.fileBytes += size
	t.mu.Unlock()

	s := &slab{dev: d, hdr: h, usable: h.slots, size: size, path: d.home.slabPath(h.number)}
	err := call(&d.keeperSince, func() error { return d.createSlab(s) })
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		d.fileBytes -= size
		d.growthFailedLocked(err)
		return false
	}
	d.fullAt = time.Time{}
	d.namesDirty = true
	t.addSlabLocked(s)
	d.classOf(slotBytes).add(s)
	return true
}

// takeNumberLocked returns a number for a slab: the one after the highest that was ever
// seen, or if there is none the lowest that is free. It needs Tier.mu.
func (d *device) takeNumberLocked() uint32 {
	if d.nextNumber <= maxSlabNumber {
		d.nextNumber++
		return d.nextNumber - 1
	}
	used := make(map[uint32]bool)
	for s := range d.slabs {
		used[s.hdr.number] = true
	}
	for _, p := range d.recovered.setAside {
		used[p.number] = true
	}
	n := uint32(0)
	for used[n] {
		n++
	}
	return n
}

// growthFailedLocked takes note of why there is no new slab. It needs Tier.mu.
func (d *device) growthFailedLocked(err error) {
	d.fullAt = time.Now()
	d.fullReason = "device full at " + sizeText(d.fileBytes)
	if !isFull(err) {
		d.fullReason = "no new slab: " + err.Error()
		d.tier.counters.ioErrors.Add(1)
	}
	d.tier.log.Warn("no new slab", zap.String("device", d.dir), zap.Int64("bytes", d.fileBytes), zap.Error(err))
}

// createSlab makes the file of a slab, with its blocks allocated and its header
// written. It gets its name last, so that no slab is ever half made. If it fails no
// file is left.
func (d *device) createSlab(s *slab) (err error) {
	tmp := d.home.join(slabTmpName)
	if s.file, err = directio.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
		return err
	}
	err = unix.Fallocate(s.file.Fd(), 0, 0, s.size)
	if err == unix.EOPNOTSUPP {
		err = s.file.OS().Truncate(s.size)
	}
	if err == nil {
		err = d.writeSlabHeader(s)
	}
	err = errors.Join(err, s.file.Close())
	if _, e := os.Lstat(s.path); err == nil && e == nil {
		err = &os.PathError{Op: "rename", Path: s.path, Err: unix.EEXIST}
	}
	if err == nil {
		err = os.Rename(tmp, s.path)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return err
	}
	if s.file, err = directio.OpenFile(s.path, os.O_RDWR, 0); err != nil {
		_ = os.Remove(s.path)
	}
	return err
}

// writeSlabHeader writes the header of a slab. It uses the keeper's buffer.
func (d *device) writeSlabHeader(s *slab) error {
	page := d.headers.Bytes()[:pageBytes]
	s.hdr.encode(page)
	return d.do([]directio.Op{{Kind: directio.Write, File: s.file, Mem: page}}, s)
}

// do has the engine do ops, and afterwards counts what was written and what failed.
// slabs are those that ops write to.
func (d *device) do(ops []directio.Op, slabs ...*slab) error {
	err := d.try(ops, slabs...)
	for i := range ops {
		if ofDevice(ops[i].Err) {
			d.ioError(ops[i].Err)
		}
	}
	return err
}

// try is do without counting what failed, for what has been tried and counted before.
func (d *device) try(ops []directio.Op, slabs ...*slab) error {
	err := d.engine.Do(d.ctx, ops)
	var written int64
	for i := range ops {
		if ops[i].Kind == directio.Write {
			written += int64(ops[i].N)
		}
	}
	if written == 0 && len(slabs) == 0 {
		return err
	}
	t := d.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spendLocked(d, written)
	for _, s := range slabs {
		if s != nil {
			s.dirty = true
		}
	}
	if d.unsynced += written; d.unsynced >= t.opts.SyncBytes {
		kick(d.syncKick)
	}
	return err
}

// withGrace returns a context that ends with ctx, but not before some grace has passed.
func withGrace(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(grace, cancel)
		context.AfterFunc(out, func() { timer.Stop() })
	})
	return out, func() { stop(); cancel() }
}
