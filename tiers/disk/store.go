package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
)

const (
	// mapBytes: blocks from here on are moved between device and file without a copy.
	// Below, the cost of mapping exceeds that of copying.
	mapBytes = 128 << 10
	// stagingBytes bounds what is moved through one staging buffer at a time.
	stagingBytes = 1 << 20
)

// flight is one block on its way into the tier. Fields below the line are guarded
// by Tier.mu.
type flight struct {
	job      *job
	index    int // of the block in job
	dev      *device
	source   transfer
	volatile bool  // source may change while it is read
	budget   int64 // bytes set aside of the write budget
	// ------
	key             block.Key
	seq             uint64
	mtime, expires  int64
	pinned          bool
	owner           uint32  // in the table of owners; 0 once the slot has it
	id              slotID  // its slot; 0: none yet
	older           *flight // of the same key, submitted before
	waiters         []waiter
	cancelled, over bool // must not be published; is out of Tier.mu.flights for good
	changed         bool // by Update, since its header was made
	headerMade      bool // and may be with the kernel, whatever becomes of the flight
}

// transfer is what the worker needs of a tiers.Transfer, which is not ours after Done.
type transfer struct {
	file *os.File
	size int64
	sum  block.Checksum
}

// waiter is a block of another job that is to share a flight's outcome.
type waiter struct {
	job   *job
	index int
}

// Store copies the blocks of in down to their devices; see tiers.Tier.
func (t *Tier) Store(in *tiers.Job) {
	j := t.newJob(in, "store")
	j.submit(t.planStores(j, in))
}

// planStores sorts out what is to be stored and where.
func (t *Tier) planStores(j *job, in *tiers.Job) []*task {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !j.acceptLocked() {
		return nil
	}
	plan := planner{tasks: make(map[*device]*task)}
	for i := range in.Blocks {
		tr := &in.Blocks[i]
		if f := t.planStoreLocked(j, i, tr, in.Force); f != nil {
			plan.add(f.dev, j, tr.Size, func(k *task) { k.flights = append(k.flights, f) })
		}
	}
	return plan.all
}

// planner cuts the blocks of a job into tasks: one for each large block, and for
// small ones as many as fit into a staging buffer.
type planner struct {
	tasks map[*device]*task // that take more small blocks
	all   []*task
}

func (p *planner) add(d *device, j *job, size int64, add func(*task)) {
	if size >= mapBytes {
		k := &task{dev: d, job: j}
		add(k)
		p.all = append(p.all, k)
		return
	}
	k := p.tasks[d]
	if k == nil || k.bytes+alignUp(size) > stagingBytes {
		k = &task{dev: d, job: j}
		p.tasks[d] = k
		p.all = append(p.all, k)
	}
	k.bytes += max(alignUp(size), pageBytes)
	add(k)
}

// planStoreLocked returns the flight for a block, or nil if its outcome is known or
// that of another flight. It needs t.mu.
func (t *Tier) planStoreLocked(j *job, i int, tr *tiers.Transfer, force bool) *flight {
	if err := checkTransfer(tr); err != nil {
		j.settle(i, j.failed(i, err))
		return nil
	}
	if id := t.mu.table.findKey(tr.Key); id != 0 && t.mu.table.at(id).same(tr) && !t.leavingLocked(id) {
		t.touchLocked(id)
		j.pinLocked(id)
		j.settle(i, tiers.Outcome{Status: tiers.Skipped})
		return nil
	}
	if f := t.mu.flights[tr.Key]; f != nil && f.seq == tr.Attrs.Seq {
		f.waiters = append(f.waiters, waiter{j, i})
		return nil
	}
	d, err := t.chooseDevice(tr.Key, tr.Size)
	if err != nil {
		j.settle(i, j.failed(i, err))
		return nil
	}
	need := alignUp(tr.Size) + pageBytes
	if !t.reserveLocked(need, force) {
		j.settle(i, j.skipped(i, block.ErrBudget))
		return nil
	}
	a := &tr.Attrs
	f := &flight{
		job: j, index: i, dev: d, source: transfer{tr.File, tr.Size, tr.Sum}, volatile: tr.Volatile, budget: need,
		key: tr.Key, seq: a.Seq, mtime: a.Mtime, expires: a.Expires, pinned: a.Pinned,
		owner: t.mu.table.owners.put(a, keepDirs(a.Dirs, len(tr.Key.Path()))),
		older: t.mu.flights[tr.Key],
	}
	t.mu.flights[tr.Key] = f
	return f
}

// checkTransfer reports what no tier could store.
func checkTransfer(tr *tiers.Transfer) error {
	switch {
	case tr.Size < 0:
		return fmt.Errorf("size %d: %w", tr.Size, block.ErrInvalid)
	case tr.Attrs.Seq == 0:
		return fmt.Errorf("seq 0: %w", block.ErrInvalid)
	case tr.Size > maxSlotBytes:
		return fmt.Errorf("size %d: %w", tr.Size, block.ErrTooLarge)
	}
	return checkKey(tr.Key.Path())
}

// same reports whether the slot holds the version that tr would store.
func (e *slotInfo) same(tr *tiers.Transfer) bool {
	return e.seq == tr.Attrs.Seq && e.size == tr.Size && (!tr.Sum.Valid || tr.Sum.Sum == e.sum)
}

// cancelLocked keeps a flight, and the older ones of its key, from being published.
func (t *Tier) cancelLocked(f *flight) {
	for ; f != nil; f = f.older {
		f.cancelled = true
		f.outdatedLocked()
	}
}

// outdatedLocked takes note that the header which the kernel may have is not the one that
// is to stay: calls of Sync that come from now on wait until it is in the list of those to
// write. It needs Tier.mu.
func (f *flight) outdatedLocked() {
	if f.headerMade {
		f.dev.outdated[f] = struct{}{}
	}
}

// settledLocked takes note that the kernel is done with the header, and that it is in the
// list of those to write if it has to be. It needs Tier.mu.
func (f *flight) settledLocked() {
	f.headerMade = false
	if _, ok := f.dev.outdated[f]; ok {
		delete(f.dev.outdated, f)
		kick(f.dev.keeperKick)
	}
}

// updateFlightLocked gives a flight another name and other attributes. It needs t.mu.
func (t *Tier) updateFlightLocked(f *flight, from, to block.Key, a *tiers.Attrs) {
	if from != to {
		t.cancelLocked(f.older)
		f.older = nil
		delete(t.mu.flights, from)
		t.mu.flights[to] = f
	}
	f.key, f.seq, f.mtime, f.expires, f.pinned = to, a.Seq, a.Mtime, a.Expires, a.Pinned
	f.changed = true
	f.outdatedLocked()
	owner := t.mu.table.owners.put(a, keepDirs(a.Dirs, len(to.Path())))
	if f.id == 0 {
		t.mu.table.owners.drop(f.owner)
		f.owner = owner
		return
	}
	e := t.mu.table.at(f.id)
	t.mu.table.owners.drop(e.owner)
	e.owner = owner
	t.mu.table.setKey(e, appendPath(nil, to))
	f.fill(e)
}

// fill copies into the slot what the flight keeps of the attributes.
func (f *flight) fill(e *slotInfo) {
	e.seq, e.mtime, e.expires = f.seq, f.mtime, f.expires
	e.flags &^= flagPinned
	if f.pinned {
		e.flags |= flagPinned
	}
}

// bindLocked gives the flights the slots of a run that was taken. It needs Tier.mu.
func (t *Tier) bindLocked(s *slab, first uint32, flights []*flight) {
	for i, f := range flights {
		f.id = t.mu.table.alloc(appendPath(nil, f.key))
		e := t.mu.table.at(f.id)
		e.state, e.slab, e.slot = slotStoring, s.id, first+uint32(i)
		e.size, e.owner = f.source.size, f.owner
		f.owner, f.changed = 0, false
		f.fill(e)
		s.slots[e.slot] = f.id
	}
}

// outLocked takes a flight out of the table, gives back what was set aside for it and
// returns who waits for it. It needs Tier.mu.
func (t *Tier) outLocked(f *flight) []waiter {
	if f.over {
		return nil
	}
	f.over = true
	t.mu.budget.reserved -= f.budget
	t.mu.table.owners.drop(f.owner)
	f.owner = 0
	if t.mu.flights[f.key] == f {
		delete(t.mu.flights, f.key)
		if f.older != nil && !f.older.over && !f.older.cancelled {
			t.mu.flights[f.key] = f.older
		}
	} else {
		for g := t.mu.flights[f.key]; g != nil; g = g.older {
			if g.older == f {
				g.older = f.older
			}
		}
	}
	f.older = nil
	waiters := f.waiters
	f.waiters = nil
	return waiters
}

// share gives waiters the outcome of the flight they waited for.
func share(waiters []waiter, o tiers.Outcome) {
	if o.Status == tiers.Stored {
		o = tiers.Outcome{Status: tiers.Skipped}
	}
	for _, w := range waiters {
		if o.Err != nil {
			o.Err = w.job.t.fail(w.job.op, w.job.keys[w.index], errors.Unwrap(o.Err))
		}
		w.job.abandon(w.index, o)
	}
}

// end finishes a flight that the caller has entered.
func (f *flight) end(o tiers.Outcome, waiters []waiter) {
	share(waiters, o)
	f.job.finish(f.index, o)
}

// unbind ends a flight that is not published. dirty says that its header may have
// been written. It may have been ended by abandon before.
func (t *Tier) unbind(f *flight, o tiers.Outcome, dirty bool) {
	entered := f.job.enter(f.index)
	t.mu.Lock()
	waiters := t.outLocked(f)
	var bad *writeError
	if f.id != 0 && errors.As(o.Err, &bad) && ofDevice(bad.err) && errors.Is(o.Err, block.ErrUnavailable) {
		t.quarantineLocked(f.id)
	}
	t.freeFlightLocked(f, dirty)
	t.mu.Unlock()
	if entered {
		f.end(o, waiters)
		return
	}
	share(waiters, o)
}

// outcome is that of a flight that is not published because of err.
func (f *flight) outcome(err error) tiers.Outcome {
	switch {
	case errors.Is(err, block.ErrNotFound): // removed, or superseded
		return f.job.skipped(f.index, err)
	case isFull(err):
		return f.job.skipped(f.index, fmt.Errorf("%w: %w", block.ErrNoSpace, err))
	case errors.Is(err, errAbandoned) && f.job.t.ctx.Err() != nil:
		return f.job.failed(f.index, block.ErrClosed)
	}
	return f.job.failed(f.index, err)
}

// writeError is what kept the device from writing a block, as opposed to what is wrong
// with its source.
type writeError struct{ err error }

// Error is that of the device.
func (e *writeError) Error() string { return e.err.Error() }

// Unwrap returns the error of the device.
func (e *writeError) Unwrap() error { return e.err }

// write is do for the data or the header of a block. It fails with a writeError.
func (d *device) write(ops []directio.Op, s *slab) error {
	if err := d.do(ops, s); err != nil {
		return &writeError{err}
	}
	return nil
}

// quarantineLocked keeps a slot from being used again, for the medium is bad. It
// needs Tier.mu.
func (t *Tier) quarantineLocked(id slotID) {
	e := t.mu.table.at(id)
	e.flags |= flagQuarantine
	t.mu.slabs[e.slab].dev.quarantined++
}

// freeFlightLocked gives back the slot of a flight. It needs Tier.mu.
func (t *Tier) freeFlightLocked(f *flight, dirty bool) {
	if f.id == 0 {
		return
	}
	e := t.mu.table.at(f.id)
	e.state = slotGone
	if dirty {
		t.dirtyLocked(f.id)
	} else {
		e.flags |= flagZeroed
		t.freeLocked(f.id)
	}
	f.id = 0
	f.settledLocked()
}

// publish makes a flight's block visible, in place of the version before.
func (t *Tier) publish(f *flight, sum block.Checksum) {
	entered := f.job.enter(f.index)
	t.mu.Lock()
	cancelled := f.cancelled || !entered || f.over
	if cancelled {
		waiters := t.outLocked(f)
		t.freeFlightLocked(f, true)
		t.mu.Unlock()
		if o := f.job.skipped(f.index, block.ErrNotFound); entered {
			f.end(o, waiters)
		} else {
			share(waiters, o)
		}
		return
	}
	t.cancelLocked(f.older)
	waiters := t.outLocked(f)
	if old := t.mu.table.findKey(f.key); old != 0 {
		t.giveUpLocked(old)
	}
	e := t.mu.table.at(f.id)
	e.state, e.sum = slotLive, sum.Sum
	t.mu.table.link(f.id)
	t.enterLocked(f.id)
	if f.changed {
		t.dirtyLocked(f.id)
	}
	f.settledLocked()
	f.job.pinLocked(f.id)
	t.mu.Unlock()
	f.end(tiers.Outcome{Status: tiers.Stored, Bytes: f.source.size, Sum: sum}, waiters)
}

// store stores one large block, or small ones, which may be of several jobs.
func (d *device) store(flights []*flight) {
	for len(flights) > 0 {
		n, err := d.allocate(flights)
		if err != nil {
			for _, f := range flights[:n] {
				d.tier.unbind(f, d.noRoom(f, err), false)
			}
			flights = flights[n:]
			continue
		}
		if n == 1 && flights[0].source.size >= mapBytes {
			d.storeLarge(flights[0])
		} else {
			d.storeStaged(flights[:n])
		}
		flights = flights[n:]
	}
}

// noRoom is the outcome of a flight that got no slot.
func (d *device) noRoom(f *flight, err error) tiers.Outcome {
	if errors.Is(err, block.ErrNoSpace) {
		return f.job.skipped(f.index, err)
	}
	return f.job.failed(f.index, err)
}

// place is where a slot lies.
type place struct {
	file    *directio.File
	slab    *slab
	slot    uint32
	header  int64 // offset
	data    int64 // offset
	slotLen int64
}

// placeOf returns where the slot of id lies; it stays so while the slot is in use.
func (t *Tier) placeOf(id slotID) place {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.placeLocked(id)
}

func (t *Tier) placeLocked(id slotID) place {
	e := t.mu.table.at(id)
	s := t.mu.slabs[e.slab]
	return place{s.file, s, e.slot, s.hdr.headerOff(e.slot), s.hdr.dataOff(e.slot), s.hdr.slotBytes}
}

// storeLarge stores one block that is not batched with others.
func (d *device) storeLarge(f *flight) {
	if f.volatile {
		d.storePieces(f) // what the device read of a mapping need not be what was summed up
		return
	}
	d.storeMapped(f)
}

// storeMapped stores a large block from the mapping of its file.
func (d *device) storeMapped(f *flight) {
	t, size := d.tier, f.source.size
	buf, err := d.staging.acquire(d.ctx, 2*pageBytes)
	if err != nil {
		t.unbind(f, f.job.failed(f.index, err), false)
		return
	}
	header, tail := buf.Bytes()[:pageBytes], buf.Bytes()[pageBytes:]
	if !f.job.enter(f.index) {
		buf.Release()
		t.unbind(f, f.outcome(errAbandoned), false)
		return
	}
	m, err := directio.Map(f.source.file, size, false)
	f.job.leave(f.index)
	if err != nil {
		buf.Release() // first: who holds one buffer must not wait for another
		d.storePieces(f)
		return
	}
	defer buf.Release()
	defer m.Close()
	whole := size &^ (pageBytes - 1)
	var sum block.Checksum
	err = directio.Guard(func() {
		// What follows the block in its last page is not ours to store.
		clear(tail[copy(tail, m.Bytes()[whole:size]):])
		sum = block.Sum(m.Bytes()[:size])
	})
	if err == nil {
		err = f.checkSum(sum)
	}
	if err != nil {
		t.unbind(f, f.job.failed(f.index, err), false)
		return
	}
	at := t.placeOf(f.id)
	ops := []directio.Op{{Kind: directio.Write, File: at.file, Mem: m.Bytes()[:whole], Off: at.data}}
	if whole < size {
		ops = append(ops, directio.Op{Kind: directio.Write, File: at.file, Mem: tail, Off: at.data + whole})
	}
	d.finishStore(f, at, ops, header, sum)
}

// finishStore writes the data of a block, then its header, and publishes it.
func (d *device) finishStore(f *flight, at place, ops []directio.Op, header []byte, sum block.Checksum) {
	t := d.tier
	if err := d.write(ops, at.slab); err != nil {
		t.unbind(f, f.outcome(err), false)
		return
	}
	if err := t.encodeHeader(f, sum, header); err != nil {
		t.unbind(f, f.outcome(err), false)
		return
	}
	err := d.write([]directio.Op{{Kind: directio.Write, File: at.file, Mem: header, Off: at.header}}, at.slab)
	if err != nil {
		t.unbind(f, f.outcome(err), true)
		return
	}
	t.publish(f, sum)
}

// encodeHeader makes the header of a flight's slot. It fails with ErrNotFound for a block
// that is not to be held: after a crash the header alone would bring it back.
func (t *Tier) encodeHeader(f *flight, sum block.Checksum, page []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.cancelled || f.over {
		return fmt.Errorf("not wanted any more: %w", block.ErrNotFound)
	}
	e := t.mu.table.at(f.id)
	e.sum = sum.Sum
	f.changed, f.headerMade = false, true
	h := t.mu.table.header(e, t.mu.slabs[e.slab].hdr.epoch)
	return h.encode(page)
}

// storePieces stores a large block whose file cannot be mapped, through a staging
// buffer.
func (d *device) storePieces(f *flight) {
	t, size := d.tier, f.source.size
	n := d.staging.piece(size, pageBytes)
	buf, err := d.staging.acquire(d.ctx, n+pageBytes)
	if err != nil {
		t.unbind(f, f.job.failed(f.index, err), false)
		return
	}
	defer buf.Release()
	header, mem := buf.Bytes()[:pageBytes], buf.Bytes()[pageBytes:]
	at, crc := t.placeOf(f.id), block.NewChecksum()
	for off := int64(0); off < size; off += n {
		piece := mem[:min(n, alignUp(size-off))]
		if !f.job.enter(f.index) {
			t.unbind(f, f.outcome(errAbandoned), false)
			return
		}
		err := readFile(f.source.file, piece, off, size-off)
		f.job.leave(f.index)
		if err == nil {
			crc.Write(piece[:min(int64(len(piece)), size-off)])
			err = d.write([]directio.Op{{Kind: directio.Write, File: at.file, Mem: piece, Off: at.data + off}}, at.slab)
		}
		if err != nil {
			t.unbind(f, f.outcome(err), false)
			return
		}
	}
	sum := block.Checksum{Sum: crc.Sum64(), Valid: true}
	if err := f.checkSum(sum); err != nil {
		t.unbind(f, f.job.failed(f.index, err), false)
		return
	}
	d.finishStore(f, at, nil, header, sum)
}

// checkSum compares the checksum of the source with the one that was given, if any.
func (f *flight) checkSum(sum block.Checksum) error {
	if f.source.sum.Valid && f.source.sum != sum {
		return fmt.Errorf("source has checksum %v, not %v: %w", sum, f.source.sum, block.ErrCorrupt)
	}
	return nil
}

// readFile fills mem from off on with what is left of a block, then with zeros.
func readFile(f *os.File, mem []byte, off, left int64) error {
	n := min(int64(len(mem)), left)
	got, err := f.ReadAt(mem[:n], off)
	clear(mem[n:])
	if int64(got) == n {
		return nil
	}
	if err == io.EOF {
		return fmt.Errorf("source ends at %d bytes, before the block: %w", off+int64(got), block.ErrInvalid)
	}
	return err
}

// storeStaged stores small blocks whose slots follow each other: one write for
// their data, one for their headers.
func (d *device) storeStaged(flights []*flight) {
	t := d.tier
	at := t.placeOf(flights[0].id)
	n := len(flights)
	dataBytes := int64(n-1)*at.slotLen + max(alignUp(flights[n-1].source.size), pageBytes)
	buf, err := d.staging.acquire(d.ctx, dataBytes+int64(n)*pageBytes)
	if err != nil {
		var budget *directio.BudgetError
		if n > 1 && errors.As(err, &budget) {
			d.storeStaged(flights[:n/2])
			d.storeStaged(flights[n/2:])
			return
		}
		if errors.As(err, &budget) {
			d.storeLarge(flights[0])
			return
		}
		for _, f := range flights {
			t.unbind(f, f.job.failed(f.index, err), false)
		}
		return
	}
	defer buf.Release()
	data, headers := buf.Bytes()[:dataBytes], buf.Bytes()[dataBytes:]
	clear(headers)
	sums, errs := make([]block.Checksum, n), make([]error, n)
	for i, f := range flights {
		end := min(int64(i+1)*at.slotLen, dataBytes)
		sums[i], errs[i] = f.stage(data[int64(i)*at.slotLen : end])
	}
	headersTried := d.writeStaged(flights, at, data, headers, sums, errs)
	// Only now, for the write covered the slots of those that had failed, too.
	for i, f := range flights {
		if errs[i] != nil {
			t.unbind(f, f.outcome(errs[i]), headersTried)
			continue
		}
		t.publish(f, sums[i])
	}
}

// writeStaged writes the data and the headers of a run of slots, leaving out the
// headers of those that have an error, and adds the errors. It reports whether
// any header may have been written.
func (d *device) writeStaged(
	flights []*flight, at place, data, headers []byte, sums []block.Checksum, errs []error,
) (headersTried bool) {
	good := func(i int) bool { return errs[i] == nil }
	fail := func(err error) {
		for i := range errs {
			if errs[i] == nil {
				errs[i] = err
			}
		}
	}
	if !slices.Contains(errs, nil) {
		return false
	}
	if err := d.write([]directio.Op{{Kind: directio.Write, File: at.file, Mem: data, Off: at.data}}, at.slab); err != nil {
		fail(err)
		return false
	}
	for i, f := range flights {
		if good(i) {
			errs[i] = d.tier.encodeHeader(f, sums[i], headers[i*pageBytes:(i+1)*pageBytes])
		}
	}
	var ops []directio.Op
	for i := 0; i < len(errs); i++ {
		first := i
		for i < len(errs) && good(i) {
			i++
		}
		if first < i {
			ops = append(ops, directio.Op{
				Kind: directio.Write, File: at.file, Mem: headers[first*pageBytes : i*pageBytes],
				Off: at.header + int64(first)*pageBytes,
			})
		}
	}
	if len(ops) == 0 {
		return false
	}
	if err := d.write(ops, at.slab); err != nil {
		fail(err)
	}
	return true
}

// stage copies a small block into staging and verifies it.
func (f *flight) stage(mem []byte) (block.Checksum, error) {
	if !f.job.enter(f.index) {
		return block.Checksum{}, errAbandoned
	}
	err := readFile(f.source.file, mem, 0, f.source.size)
	f.job.leave(f.index)
	if err != nil {
		return block.Checksum{}, err
	}
	sum := block.Sum(mem[:f.source.size])
	return sum, f.checkSum(sum)
}

// errAbandoned: the job of a block was completed by somebody else.
var errAbandoned = errors.New("abandoned")
