package object

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/object/catalog"
	"github.com/kvfs/kvfs/tiers/object/pack"
)

// work is a job with the outcomes that it has so far.
type work struct {
	*driver.Job
	outcomes []driver.Outcome
	left     int // blocks without an outcome. Guarded by Tier.mu.
}

// flight is one block that is being stored.
type flight struct {
	job  *work
	i    int  // its place in the job
	void bool // removed, or superseded by a later Store. Guarded by Tier.mu.
}

func (f *flight) block() *driver.Transfer { return &f.job.Blocks[f.i] }

// frame is how many bytes the block takes before the index of a pack.
func (f *flight) frame() int64 {
	b := f.block()
	return pack.PaddedBytes(len(b.Key.Path()), b.Size, b.Attrs.User)
}

// entryBytes is the most that an entry takes in the index of a pack.
func entryBytes(path string, user block.UserAttrs) int64 { return int64(128 + 9*len(path) + len(user)) }

func newWork(job *driver.Job) *work {
	w := &work{Job: job, outcomes: make([]driver.Outcome, len(job.Blocks)), left: len(job.Blocks)}
	for i := range job.Blocks {
		w.outcomes[i].Key = job.Blocks[i].Key
	}
	return w
}

// Store implements driver.Tier.
func (t *Tier) Store(job *driver.Job) {
	w := newWork(job)
	var list []*flight
	t.mu.Lock()
	for i := range job.Blocks {
		b := &job.Blocks[i]
		status, err := t.acceptLocked(b, job.Force)
		if status == driver.Stored {
			f := &flight{job: w, i: i}
			if old := t.mu.flights[b.Key]; old != nil {
				old.void = true
			}
			t.mu.flights[b.Key] = f
			list = append(list, f)
			continue
		}
		t.outcomeLocked(w, i, "store", status, block.Checksum{}, err)
	}
	t.begunLocked(w, len(list) == 0)
	t.queue.add(list) // under the lock, so that Close sees it
	t.mu.Unlock()
}

// acceptLocked tells what becomes of a block that is to be stored; Stored if it has to be written.
func (t *Tier) acceptLocked(b *driver.Transfer, force bool) (driver.Status, error) {
	f := t.mu.flights[b.Key]
	held, has := t.catalog.Get(b.Key)
	switch {
	case t.mu.closed:
		return driver.Failed, block.ErrClosed
	case b.Size < 0:
		return driver.Failed, block.ErrInvalid
	case f != nil && f.block().Attrs.Seq == b.Attrs.Seq:
		return driver.Skipped, block.ErrPending
	case f == nil && has && held.Seq == b.Attrs.Seq:
		return driver.Skipped, nil
	case t.readOnly.Load():
		return driver.Failed, block.ErrReadOnly
	case !t.bucket.Available():
		return driver.Failed, block.ErrUnavailable
	case t.o.CapacityBytes > 0 && b.Size > t.o.CapacityBytes:
		return driver.Failed, block.ErrTooLarge
	case !t.budget.take(b.Size, force):
		t.mu.stats.SkippedBudget++
		return driver.Skipped, block.ErrBudget
	}
	return driver.Stored, nil
}

// begunLocked counts a job that was accepted. If it has all its outcomes already, it is completed soon.
func (t *Tier) begunLocked(w *work, complete bool) {
	run := t.work.Go
	if t.mu.closed {
		run = func(f func()) { go f() } // ends at once; nothing waits for it, because the tier is closed
	}
	if complete {
		run(func() { t.done(w) })
	} else {
		t.work.Add(1) // until done
	}
}

// outcomeLocked sets the outcome of a block.
func (t *Tier) outcomeLocked(w *work, i int, op string, status driver.Status, sum block.Checksum, err error) {
	o := &w.outcomes[i]
	o.Status = status
	if err != nil {
		o.Err = &block.Error{Op: op, Tier: t.o.Name, Key: o.Key, Err: err}
	}
	switch status {
	case driver.Stored:
		o.Bytes, o.Sum = w.Blocks[i].Size, sum
		t.mu.stats.Stored++
		t.mu.stats.StoredBytes += uint64(o.Bytes)
	case driver.Loaded:
		o.Bytes, o.Sum = w.Blocks[i].Size, sum
		t.mu.stats.Loaded++
		t.mu.stats.LoadedBytes += uint64(o.Bytes)
	case driver.Failed:
		if errors.Is(err, block.ErrCorrupt) {
			t.mu.stats.Corrupt++
		} else if errors.Is(err, block.ErrUnavailable) {
			t.mu.stats.IOErrors++
		}
	}
	w.left--
}

// done completes a job.
func (t *Tier) done(w *work) {
	w.Done(&driver.Result{Job: w.ID, Outcomes: w.outcomes})
}

// dispatch gives each pack a goroutine that writes it, until the queue is closed and empty. While all of them are busy
// the next pack fills.
func (t *Tier) dispatch() {
	for slots := make(chan struct{}, t.o.Uploads); ; {
		slots <- struct{}{}
		list := t.queue.wait()
		if len(list) == 0 {
			return
		}
		t.work.Go(func() { // ends with the pack
			t.upload(list)
			<-slots
		})
	}
}

// upload writes a pack of blocks and gives them their outcomes.
func (t *Tier) upload(list []*flight) {
	p := t.build(list)
	if len(p.in) > 0 {
		ctx, cancel := context.WithTimeout(t.late, t.o.StoreTime)
		p.err = t.kind(t.bucket.Put(ctx, p.name.String(), p.data))
		cancel()
	}
	t.settle(p)
	t.packs.put(p.data)
}

// packed is a pack that was built, with the blocks in it.
type packed struct {
	name pack.Name
	data []byte
	in   []*flight
	offs []int64 // of their frames
	sums []block.Checksum
	err  error // of the PUT

	out  []*flight // blocks that are not in it
	errs []error   // why
}

// build reads blocks into a pack.
func (t *Tier) build(list []*flight) *packed {
	p, at := &packed{}, t.tick() // before void is looked at: a later removal counts for the block in this pack
	size := int64(pack.FooterBytes)
	for _, f := range list {
		size += f.frame() + entryBytes(f.block().Key.Path(), f.block().Attrs.User)
	}
	buf := t.packs.get(size)
	b, offset := pack.NewBuilder(buf), int64(0)
	for _, f := range list {
		tr := f.block()
		t.mu.Lock()
		void := f.void
		t.mu.Unlock()
		if void {
			p.leave(f, block.ErrNotFound)
			continue
		}
		sum, err := addBlock(b, tr)
		if err != nil {
			p.leave(f, err)
			continue
		}
		p.in, p.sums, p.offs = append(p.in, f), append(p.sums, sum), append(p.offs, offset)
		offset += f.frame()
	}
	if p.data = buf; len(p.in) > 0 {
		p.name, p.data = b.Finish(at, t.o.Writer)
	}
	return p
}

// addBlock reads a block into a pack.
func addBlock(b *pack.Builder, tr *driver.Transfer) (block.Checksum, error) {
	data, err := b.Reserve(tr.Key.Path(), &tr.Attrs, tr.Size)
	if err != nil {
		return block.Checksum{}, err
	}
	h := block.NewChecksum()
	for at, step := 0, 0; at < len(data); at += step { // little enough to stay in a processor's cache
		step = min(len(data)-at, 256<<10)
		piece := data[at : at+step]
		if n, err := tr.File.ReadAt(piece, int64(at)); n < step {
			return block.Checksum{}, errors.Join(block.ErrInvalid, err)
		}
		h.Write(piece)
	}
	sum := block.Checksum{Sum: h.Sum64(), Valid: true}
	if tr.Sum.Valid && sum != tr.Sum {
		return sum, block.ErrCorrupt
	}
	b.Commit(sum)
	return sum, nil
}

// follow has the times of tick be later than that of an object, so that what this process removes and stores comes after
// what it knows. A clock that is far ahead is not followed.
func (t *Tier) follow(at int64) {
	if at-t.o.Now().UnixNano() >= int64(overlap) {
		return
	}
	for last := t.last.Load(); at > last && !t.last.CompareAndSwap(last, at); last = t.last.Load() {
	}
}

// tick returns the time for the name of an object. No two are the same.
func (t *Tier) tick() int64 {
	now := t.o.Now().UnixNano()
	for {
		last := t.last.Load()
		if next := max(now, last+1); t.last.CompareAndSwap(last, next) {
			return next
		}
	}
}

func (p *packed) leave(f *flight, err error) {
	p.out, p.errs = append(p.out, f), append(p.errs, err)
}

// settle enters the blocks of a pack in the catalog and gives all blocks their outcomes.
func (t *Tier) settle(p *packed) {
	var complete []*work
	t.mu.Lock()
	for i, f := range p.out {
		complete = t.endLocked(complete, f, driver.Failed, block.Checksum{}, p.errs[i])
	}
	var number uint32
	if p.err == nil && len(p.in) > 0 {
		number, p.err = t.addPack(p.name, int64(len(p.data)))
	}
	for i, f := range p.in {
		if p.err == nil && !f.void {
			b := f.block()
			f.void = !t.put(b.Key.Path(), &b.Attrs, b.Size, number, p.offs[i])
		}
		complete = t.endLocked(complete, f, driver.Stored, p.sums[i], p.err)
	}
	if p.err == nil && len(p.in) > 0 {
		t.catalog.Complete(number, len(p.in))
	}
	t.mu.Unlock()
	if p.err != nil {
		t.outage("store", p.err)
	}
	for _, w := range complete {
		t.done(w)
		t.work.Done()
	}
}

// endLocked gives a block its outcome, and appends its job to complete if that was the last one.
func (t *Tier) endLocked(complete []*work, f *flight, status driver.Status, sum block.Checksum, err error) []*work {
	key := f.block().Key
	if t.mu.flights[key] == f {
		delete(t.mu.flights, key)
	}
	switch {
	case f.void:
		status, err = driver.Skipped, block.ErrNotFound
	case err != nil:
		status = driver.Failed
	}
	t.outcomeLocked(f.job, f.i, "store", status, sum, err)
	if f.job.left == 0 {
		complete = append(complete, f.job)
	}
	return complete
}

// addPack enters a pack in the catalog. It is not evicted or compacted before Complete.
func (t *Tier) addPack(n pack.Name, size int64) (uint32, error) {
	t.follow(n.Time)
	number, ok := t.catalog.AddPack(catalog.Pack{Time: n.Time, Writer: n.Writer, Index: n.Index, Size: size})
	if !ok {
		return 0, fmt.Errorf("%d packs: %w", catalog.MaxPacks, block.ErrNoSpace)
	}
	return number, nil
}

// put enters a block in the catalog and reports whether it is the version that counts.
func (t *Tier) put(path string, a *driver.Attrs, size int64, number uint32, offset int64) bool {
	for {
		highest := t.highest.Load()
		if a.Seq <= highest || t.highest.CompareAndSwap(highest, a.Seq) {
			break
		}
	}
	e := catalog.Entry{Seq: a.Seq, Size: size, Mode: a.Mode, UID: a.UID, GID: a.GID, Expires: a.Expires, Pack: number, Offset: offset}
	return t.catalog.Put(path, e, a.Dirs)
}

// outage logs that the store failed, once until it works again.
func (t *Tier) outage(op string, err error) {
	text := op + ": " + err.Error()
	if t.fault.Swap(&text) == nil {
		t.o.Logger.Warn("object store failed", zap.String("tier", t.o.Name), zap.String("op", op), zap.Error(err))
	}
}
