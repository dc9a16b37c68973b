package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/disk/port"
	"github.com/kvfs/kvfs/tiers/disk/slotmap"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/policy"
)

const (
	// largeBytes: blocks of this size or more are stored from a mapping, and loaded in pieces. Smaller ones are moved whole,
	// through a buffer: they lie in pages of 4 KiB, and to map such pages, one fault each, costs more than to copy them.
	largeBytes = 2 << 20
	// loadPieces is how many pieces of a block are being loaded at a time. Those of all workers leave some of the default
	// staging memory to small blocks, which else would wait behind all large ones: 48 of 57 MiB.
	loadPieces = 4
)

// Store copies the blocks of in down to their devices; see driver.Tier.
func (t *Tier) Store(in *driver.Job) {
	j := t.newJob(in, "store")
	j.submit(t.planStores(j, in))
}

// planStores decides which blocks to store and where.
func (t *Tier) planStores(j *job, in *driver.Job) []*task {
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

// planner cuts the blocks of a job into tasks: one for each large block, and one for as many small
// ones as port.StagingBytes allow, at least one.
type planner struct {
	tasks map[*device]*task // tasks that accept more small blocks
	all   []*task
}

func (p *planner) add(d *device, j *job, size int64, add func(*task)) {
	if size >= largeBytes {
		k := &task{dev: d, job: j}
		add(k)
		p.all = append(p.all, k)
		return
	}
	k := p.tasks[d]
	if k == nil || k.bytes+format.AlignUp(size) > port.StagingBytes {
		k = &task{dev: d, job: j}
		p.tasks[d] = k
		p.all = append(p.all, k)
	}
	k.bytes += max(format.AlignUp(size), format.PageBytes)
	add(k)
}

// planStoreLocked returns the flight for a block. It returns nil if the outcome is known, or is
// that of another flight. It needs t.mu.
func (t *Tier) planStoreLocked(j *job, i int, tr *driver.Transfer, force bool) *flight {
	if err := checkTransfer(tr); err != nil {
		j.settle(i, j.failed(i, err))
		return nil
	}
	if id := t.mu.slots.Find(tr.Key); id != 0 && t.mu.slots.Holds(id, tr) {
		t.mu.slots.Touch(id)
		j.pinLocked(id, 0)
		j.settle(i, driver.Outcome{Status: driver.Skipped})
		return nil
	}
	if f := t.mu.flights[tr.Key]; f != nil && f.rec.Seq == tr.Attrs.Seq {
		f.waiters = append(f.waiters, waiter{j, i})
		return nil
	}
	d, err := t.chooseDevice(tr.Key, tr.Size)
	if err != nil {
		j.settle(i, j.failed(i, err))
		return nil
	}
	need := format.AlignUp(tr.Size) + format.PageBytes
	if !t.reserveLocked(need, force) {
		j.settle(i, j.skipped(i, block.ErrBudget))
		return nil
	}
	f := &flight{
		job: j, index: i, dev: d, source: transfer{tr.File, tr.Size, tr.Sum}, volatile: tr.Volatile, budget: need,
		burst: policy.Burst(tr.Burst),
		key:   tr.Key, rec: t.mu.slots.Record(tr.Key, &tr.Attrs), older: t.mu.flights[tr.Key],
	}
	t.mu.flights[tr.Key] = f
	return f
}

// checkTransfer returns an error for a block that no tier could store.
func checkTransfer(tr *driver.Transfer) error {
	switch {
	case tr.Size < 0:
		return fmt.Errorf("size %d: %w", tr.Size, block.ErrInvalid)
	case tr.Attrs.Seq == 0:
		return fmt.Errorf("seq 0: %w", block.ErrInvalid)
	case tr.Size > format.MaxSlotBytes:
		return fmt.Errorf("size %d: %w", tr.Size, block.ErrTooLarge)
	}
	return format.Check(tr.Key.Path(), tr.Attrs.User)
}

// write is do for the data or the header of a block. It fails with a writeError.
func (d *device) write(ops []directio.Op, s *slotmap.Slab) error {
	if err := d.do(ops, s); err != nil {
		return &writeError{err}
	}
	return nil
}

// store stores one large block, or small blocks, possibly of several jobs.
func (d *device) store(flights []*flight) {
	for len(flights) > 0 {
		n, err := d.keeper.allocate(flights)
		if err != nil {
			for _, f := range flights[:n] {
				d.tier.unbind(f, d.noRoom(f, err), false)
			}
			flights = flights[n:]
			continue
		}
		if n == 1 && flights[0].source.size >= largeBytes {
			d.storeLarge(flights[0])
		} else {
			d.storeStaged(flights[:n])
		}
		flights = flights[n:]
	}
}

// noRoom returns the outcome of a flight that got no slot.
func (d *device) noRoom(f *flight, err error) driver.Outcome {
	if errors.Is(err, block.ErrNoSpace) {
		return f.job.skipped(f.index, err)
	}
	return f.job.failed(f.index, err)
}

// storeLarge stores one block that is not batched with others.
func (d *device) storeLarge(f *flight) {
	if f.volatile {
		d.storePieces(f) // a mapping may have changed between the checksum and the write
		return
	}
	d.storeMapped(f)
}

// storeMapped stores a large block from the mapping of its file.
func (d *device) storeMapped(f *flight) {
	t, size := d.tier, f.source.size
	buf, err := d.staging.Acquire(d.port.Ctx, 2*format.PageBytes)
	if err != nil {
		t.unbind(f, f.job.failed(f.index, err), false)
		return
	}
	header, tail := buf.Bytes()[:format.PageBytes], buf.Bytes()[format.PageBytes:]
	if !f.job.enter(f.index) {
		buf.Release()
		t.unbind(f, f.outcome(errAbandoned), false)
		return
	}
	m, err := directio.Map(f.source.file, size)
	f.job.leave(f.index)
	if err != nil {
		buf.Release() // before the next one: a holder of one buffer must not wait for another
		d.storePieces(f)
		return
	}
	defer buf.Release()
	defer m.Close()
	whole := size &^ (format.PageBytes - 1)
	var sum block.Checksum
	err = directio.Guard(func() {
		// The rest of the block's last page is not ours to store.
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
	ops := []directio.Op{{Kind: directio.Write, File: at.File, Mem: m.Bytes()[:whole], Off: at.Data}}
	if whole < size {
		ops = append(ops, directio.Op{Kind: directio.Write, File: at.File, Mem: tail, Off: at.Data + whole})
	}
	d.finishStore(f, at, ops, header, sum)
}

// finishStore writes the data of a block, then its header, and publishes it.
func (d *device) finishStore(f *flight, at slotmap.Place, ops []directio.Op, header []byte, sum block.Checksum) {
	t := d.tier
	if err := d.write(ops, at.Slab); err != nil {
		t.unbind(f, f.outcome(err), false)
		return
	}
	if err := t.encodeHeader(f, sum, header); err != nil {
		t.unbind(f, f.outcome(err), false)
		return
	}
	err := d.write([]directio.Op{{Kind: directio.Write, File: at.File, Mem: header, Off: at.Header}}, at.Slab)
	if err != nil {
		t.unbind(f, f.outcome(err), true)
		return
	}
	t.publish(f, sum)
}

// encodeHeader makes the header of a flight's slot. It fails with ErrNotFound for a block that must
// not be held: after a crash the header alone would bring it back.
func (t *Tier) encodeHeader(f *flight, sum block.Checksum, page []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.cancelled || f.over {
		return fmt.Errorf("removed or replaced meanwhile: %w", block.ErrNotFound)
	}
	f.changed, f.headerMade = false, true
	return t.mu.slots.Encode(f.id, sum.Sum, page)
}

// storePieces stores a large block whose file cannot be mapped, through a staging buffer.
func (d *device) storePieces(f *flight) {
	t, size := d.tier, f.source.size
	n, _ := d.staging.Pieces(size, format.PageBytes, 1)
	buf, err := d.staging.Acquire(d.port.Ctx, n+format.PageBytes)
	if err != nil {
		t.unbind(f, f.job.failed(f.index, err), false)
		return
	}
	defer buf.Release()
	header, mem := buf.Bytes()[:format.PageBytes], buf.Bytes()[format.PageBytes:]
	at, crc := t.placeOf(f.id), block.NewChecksum()
	for off := int64(0); off < size; off += n {
		piece := mem[:min(n, format.AlignUp(size-off))]
		if !f.job.enter(f.index) {
			t.unbind(f, f.outcome(errAbandoned), false)
			return
		}
		err := readFile(f.source.file, piece, off, size-off)
		f.job.leave(f.index)
		if err == nil {
			crc.Write(piece[:min(int64(len(piece)), size-off)])
			err = d.write([]directio.Op{{Kind: directio.Write, File: at.File, Mem: piece, Off: at.Data + off}}, at.Slab)
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

// checkSum compares the checksum of the source with the given one, if there is one.
func (f *flight) checkSum(sum block.Checksum) error {
	if f.source.sum.Valid && f.source.sum != sum {
		return fmt.Errorf("source has checksum %v, not %v: %w", sum, f.source.sum, block.ErrCorrupt)
	}
	return nil
}

// readFile fills mem with the rest of a block from off on, then with zeros.
func readFile(f *os.File, mem []byte, off, left int64) error {
	n := min(int64(len(mem)), left)
	got, err := f.ReadAt(mem[:n], off)
	clear(mem[n:])
	if int64(got) == n {
		return nil
	}
	if err == io.EOF {
		return fmt.Errorf("source ends after %d bytes, before the block does: %w", off+int64(got), block.ErrInvalid)
	}
	return err
}

// storeStaged stores small blocks in adjacent slots: one write for their data, one for their
// headers.
func (d *device) storeStaged(flights []*flight) {
	t := d.tier
	at := t.placeOf(flights[0].id)
	n := len(flights)
	dataBytes := int64(n-1)*at.SlotLen + max(format.AlignUp(flights[n-1].source.size), format.PageBytes)
	buf, err := d.staging.Acquire(d.port.Ctx, dataBytes+int64(n)*format.PageBytes)
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
		end := min(int64(i+1)*at.SlotLen, dataBytes)
		sums[i], errs[i] = f.stage(data[int64(i)*at.SlotLen : end])
	}
	headersTried := d.writeStaged(flights, at, data, headers, sums, errs)
	// Only now: the write also covered the slots of the failed blocks.
	for i, f := range flights {
		if errs[i] != nil {
			t.unbind(f, f.outcome(errs[i]), headersTried)
			continue
		}
		t.publish(f, sums[i])
	}
}

// writeStaged writes the data and the headers of a run of slots. It leaves out the headers of
// blocks that have an error, and adds new errors. It reports whether any header may have been
// written.
func (d *device) writeStaged(
	flights []*flight, at slotmap.Place, data, headers []byte, sums []block.Checksum, errs []error,
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
	if err := d.write([]directio.Op{{Kind: directio.Write, File: at.File, Mem: data, Off: at.Data}}, at.Slab); err != nil {
		fail(err)
		return false
	}
	for i, f := range flights {
		if good(i) {
			errs[i] = d.tier.encodeHeader(f, sums[i], headers[i*format.PageBytes:(i+1)*format.PageBytes])
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
				Kind: directio.Write, File: at.File, Mem: headers[first*format.PageBytes : i*format.PageBytes],
				Off: at.Header + int64(first)*format.PageBytes,
			})
		}
	}
	if len(ops) == 0 {
		return false
	}
	if err := d.write(ops, at.Slab); err != nil {
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
