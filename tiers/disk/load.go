package disk

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"syscall"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/disk/port"
	"github.com/kvfs/kvfs/tiers/disk/slotmap"
	"github.com/kvfs/kvfs/tiers/driver"
)

// fetch is one block on its way up. Its slot is pinned until its job is complete.
type fetch struct {
	job   *job
	index int
	id    slotmap.SlotID
	dest  transfer // with the recorded checksum
	at    slotmap.Place
}

// Load copies the blocks of in up into their files; see driver.Tier. A block that is still being
// stored fails with ErrPending.
func (t *Tier) Load(in *driver.Job) {
	j := t.newJob(in, "load")
	j.submit(t.planLoads(j, in))
}

// planLoads pins the slots to load and cuts the work into tasks.
func (t *Tier) planLoads(j *job, in *driver.Job) []*task {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !j.acceptLocked() {
		return nil
	}
	var fetches []fetch
	for i := range in.Blocks {
		if f, ok := t.planLoadLocked(j, i, &in.Blocks[i]); ok {
			fetches = append(fetches, f)
		}
	}
	// One read covers adjacent blocks of a device.
	slices.SortStableFunc(fetches, func(a, b fetch) int {
		return cmp.Or(cmp.Compare(a.at.Slab.ID, b.at.Slab.ID), cmp.Compare(a.at.Slot, b.at.Slot))
	})
	plan := planner{tasks: make(map[*device]*task)}
	for _, f := range fetches {
		plan.add(t.deviceOf(f.at.Slab), j, f.dest.size, func(k *task) { k.fetches = append(k.fetches, f) })
	}
	return plan.all
}

// planLoadLocked pins the slot of one block. It needs t.mu.
func (t *Tier) planLoadLocked(j *job, i int, tr *driver.Transfer) (f fetch, ok bool) {
	id := t.mu.slots.Find(tr.Key)
	if id == 0 {
		if t.mu.flights[tr.Key] != nil {
			j.settle(i, j.failed(i, block.ErrPending))
		} else {
			j.settle(i, driver.Outcome{Status: driver.Absent})
		}
		return f, false
	}
	size, sum := t.mu.slots.Content(id)
	if size != tr.Size || tr.Sum.Valid && tr.Sum.Sum != sum.Sum {
		j.settle(i, driver.Outcome{Status: driver.Absent})
		return f, false
	}
	t.mu.slots.Touch(id)
	j.pinLocked(id, 0)
	return fetch{job: j, index: i, id: id, dest: transfer{tr.File, tr.Size, sum}, at: t.mu.slots.Place(id)}, true
}

// load runs a task of loads.
func (d *device) load(k *task) {
	if k.fetches[0].dest.size >= largeBytes {
		d.loadLarge(&k.fetches[0])
		return
	}
	d.loadStaged(k.fetches)
}

// errMismatch: the data do not have the recorded checksum.
var errMismatch = fmt.Errorf("checksum mismatch: %w", block.ErrCorrupt)

// verify compares the start of mem with the recorded checksum.
func (f *fetch) verify(mem []byte) error {
	if block.Sum(mem[:f.dest.size]) != f.dest.sum {
		return errMismatch
	}
	return nil
}

// endLoad ends a block that was loaded, or that failed with err. It first drops a bad copy.
func (d *device) endLoad(f *fetch, err error) {
	if err == nil {
		if f.job.enter(f.index) {
			f.loaded()
		}
		return
	}
	// Enter first: then the job is not complete, and the slot is still ours. The slot of a block
	// that was given up may belong to another block by now, even on another device.
	if !f.job.enter(f.index) {
		return
	}
	if kind := lossOf(err); kind != nil {
		d.tier.lose(f.id, f.at, kind, err)
		err = fmt.Errorf("%w: %w", kind, err)
	}
	f.job.finish(f.index, f.job.failed(f.index, err))
}

// loaded ends a block that the caller has entered.
func (f *fetch) loaded() {
	f.job.finish(f.index, driver.Outcome{Status: driver.Loaded, Bytes: f.dest.size, Sum: f.dest.sum})
}

// lossOf returns why a copy that could not be read is lost. It is nil if the copy is not lost.
func lossOf(err error) error {
	for _, errno := range []error{syscall.EIO, syscall.ENODATA, syscall.EREMOTEIO, syscall.EILSEQ, syscall.EUCLEAN} {
		if errors.Is(err, errno) {
			return block.ErrUnavailable
		}
	}
	if errors.Is(err, errMismatch) || errors.Is(err, io.ErrUnexpectedEOF) {
		return block.ErrCorrupt
	}
	return nil
}

// lose drops a bad copy, if it is still the current one, and tells the Host. A slot that cannot be
// read is not used again.
func (t *Tier) lose(id slotmap.SlotID, at slotmap.Place, kind, why error) {
	t.mu.Lock()
	key, lost := t.mu.slots.Lose(id, !errors.Is(why, errMismatch))
	host := t.mu.host
	t.mu.Unlock()
	if !lost {
		return
	}
	if errors.Is(kind, block.ErrCorrupt) {
		t.counters.corrupt.Add(1)
	}
	t.log.Warn("block lost", zap.String("group", string(key.Group)), zap.String("hash", string(key.Hash)),
		zap.String("device", t.deviceOf(at.Slab).dir), zap.Uint32("slab", at.Slab.Header.Number), zap.Uint32("slot", at.Slot), zap.Error(why))
	if host != nil {
		host.Lost(key, kind)
	}
}

// loadLarge loads a large block through staging, piece by piece.
func (d *device) loadLarge(f *fetch) {
	n, pieces := d.staging.Pieces(f.dest.size, 0, loadPieces)
	buf, err := d.staging.Acquire(d.port.Ctx, n*pieces)
	if err != nil {
		d.endLoad(f, err)
		return
	}
	defer buf.Release()
	for range 2 { // a bad copy is read again once: the bus may have failed
		crc := block.NewChecksum()
		err = d.readPieces(f, buf.Bytes(), n, func(piece []byte, off int64) error {
			crc.Write(piece)
			if !f.job.enter(f.index) {
				return errAbandoned
			}
			if _, err := f.dest.file.WriteAt(piece, off); err != nil {
				f.job.finish(f.index, f.job.failed(f.index, err)) // the error says nothing about our copy
				return errAbandoned
			}
			f.job.leave(f.index)
			return nil
		})
		if err == nil && crc.Sum64() != f.dest.sum.Sum {
			err = errMismatch
			continue
		}
		break
	}
	if !errors.Is(err, errAbandoned) {
		d.endLoad(f, err)
	}
}

// readPieces reads a block in pieces of n bytes and calls use with one after the other. Meanwhile the next ones are being read,
// as many as fit into mem. It fails with the first error of the device or of use.
func (d *device) readPieces(f *fetch, mem []byte, n int64, use func(piece []byte, off int64) error) error {
	size, slots := f.dest.size, int64(len(mem))/n
	done := make([]chan error, slots)
	var reads sync.WaitGroup
	defer reads.Wait() // they write to mem
	read := func(off int64) {
		if off >= size {
			return
		}
		slot := off / n % slots
		piece := mem[slot*n:][:min(n, format.AlignUp(size-off))]
		reads.Go(func() { // ends when the device answers, or is down
			done[slot] <- d.try([]directio.Op{{Kind: directio.Read, File: f.at.File, Mem: piece, Off: f.at.Data + off}})
		})
	}
	for slot := range slots {
		done[slot] = make(chan error, 1)
		read(slot * n)
	}
	for off := int64(0); off < size; off += n {
		slot := off / n % slots
		if err := <-done[slot]; err != nil {
			if port.OfDevice(err) {
				d.port.Count(err) // once for a block, however many of its pieces fail
			}
			return err
		}
		if err := use(mem[slot*n:][:min(n, size-off)], off); err != nil {
			return err
		}
		read(off + slots*n)
	}
	return nil
}

// loadStaged loads small blocks through one staging buffer. They come in ascending order. One read
// covers adjacent blocks.
func (d *device) loadStaged(fetches []fetch) {
	var need int64
	for i := range fetches {
		need += fetches[i].bytes()
	}
	buf, err := d.staging.Acquire(d.port.Ctx, need)
	var budget *directio.BudgetError
	if n := len(fetches); n > 1 && errors.As(err, &budget) {
		d.loadStaged(fetches[:n/2])
		d.loadStaged(fetches[n/2:])
		return
	}
	if errors.As(err, &budget) {
		d.loadLarge(&fetches[0])
		return
	}
	if err != nil {
		for i := range fetches {
			d.endLoad(&fetches[i], err)
		}
		return
	}
	defer buf.Release()
	ops, opOf := stagedReads(fetches, buf.Bytes())
	_ = d.do(ops) // each op has its own error
	mem := buf.Bytes()
	for i := range fetches {
		f := &fetches[i]
		piece := mem[:f.bytes()]
		mem = mem[f.bytes():]
		err := ops[opOf[i]].Err
		if err == nil {
			err = f.verify(piece)
		}
		if errors.Is(err, errMismatch) || len(fetches) > 1 && lossOf(err) != nil {
			// Read the block again, alone: the bus may have failed, or its neighbour may have been the bad one.
			err = d.try([]directio.Op{{Kind: directio.Read, File: f.at.File, Mem: piece, Off: f.at.Data}})
			if err == nil {
				err = f.verify(piece)
			}
		}
		d.writeOut(f, piece, err)
	}
}

// bytes is how many bytes of the device a block takes.
func (f *fetch) bytes() int64 { return max(format.AlignUp(f.dest.size), format.PageBytes) }

// writeOut copies a small block from staging into its file.
func (d *device) writeOut(f *fetch, mem []byte, err error) {
	if err != nil {
		d.endLoad(f, err)
		return
	}
	if !f.job.enter(f.index) {
		return
	}
	if _, err := f.dest.file.WriteAt(mem[:f.dest.size], 0); err != nil {
		f.job.finish(f.index, f.job.failed(f.index, err))
		return
	}
	f.loaded()
}
