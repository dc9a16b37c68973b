package tiertest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// serve is one worker: it runs jobs until the tier is closed and none is left.
func (r *Reference) serve() {
	for r.serveOne() {
	}
}

// serveOne waits for one job and runs it. It returns false if none will come.
func (r *Reference) serveOne() bool {
	j, ok := r.dequeue()
	if ok {
		r.complete(j, r.run(j))
	}
	return ok
}

// dequeue waits for the next job: first syncs, then loads, then stores. Jobs on Hold wait, unless the tier is closed or
// offline. ok is false when the tier is closed and no job is left.
func (r *Reference) dequeue() (j *refJob, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		down := r.downLocked() != nil
		for _, q := range []struct {
			op   Op
			jobs *[]*refJob
		}{{OpSync, &r.mu.syncs}, {OpLoad, &r.mu.loads}, {OpStore, &r.mu.stores}} {
			if r.mu.holds[q.op] > 0 && !down {
				continue
			}
			if j, ok = pop(q.jobs); ok {
				return j, true
			}
		}
		if r.mu.closed {
			return nil, false
		}
		r.mu.work.Wait()
	}
}

func pop(queue *[]*refJob) (*refJob, bool) {
	if len(*queue) == 0 {
		return nil, false
	}
	j := (*queue)[0]
	(*queue)[0] = nil
	*queue = (*queue)[1:]
	return j, true
}

// complete calls Done, without a lock. Nothing of the job is used after it. A Sync has one outcome;
// its done gets the error.
func (r *Reference) complete(j *refJob, outcomes []driver.Outcome) {
	blocks := j.blocks()
	if j.op == OpSync {
		j.synced(outcomes[0].Err)
	} else {
		j.Done(&driver.Result{Job: j.ID, Outcomes: outcomes})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.events[j.op].doneJobs++
	r.mu.events[j.op].doneBlocks += blocks
	r.changedLocked()
}

// run serves a job, block by block.
func (r *Reference) run(j *refJob) []driver.Outcome {
	err := r.pause()
	if err == nil {
		err = r.unavailable()
	}
	if err != nil {
		r.releaseAll(j)
		return r.failAll(j, err)
	}
	if j.op == OpSync {
		return r.sync(j)
	}
	outcomes := make([]driver.Outcome, len(j.Blocks))
	if j.op == OpLoad {
		for i := range j.Blocks {
			outcomes[i] = r.load(&j.Blocks[i])
		}
		return outcomes
	}
	batch := make(map[block.Key]bool, len(j.Blocks))
	for i := range j.Blocks {
		batch[j.Blocks[i].Key] = true
	}
	for i := range j.Blocks {
		outcomes[i] = r.store(j, i, batch)
		r.release(j.claims[i])
	}
	return outcomes
}

// unavailable returns why the tier is offline, or nil.
func (r *Reference) unavailable() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.offline == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", block.ErrUnavailable, r.mu.offline)
}

// pause waits for the injected latency. It fails with ErrClosed if Close gives up first.
func (r *Reference) pause() error {
	select {
	case <-r.aborted:
		return block.ErrClosed
	default:
	}
	if r.opts.Latency == 0 {
		return nil
	}
	select {
	case <-r.opts.Clock.After(r.opts.Latency):
		return nil
	case <-r.aborted:
		return block.ErrClosed
	}
}

// fault returns the error of f. It fails with ErrClosed if Close has given up.
func (r *Reference) fault(f Fault) error {
	select {
	case <-r.aborted:
		return block.ErrClosed
	default:
		return f.Err
	}
}

// store copies block i of a job down. If another version of the block is not replaced, store drops
// that version. batch has the keys of the whole job.
func (r *Reference) store(j *refJob, i int, batch map[block.Key]bool) driver.Outcome {
	tr, c := &j.Blocks[i], j.claims[i]
	f, _ := r.opts.Faults.next(OpStore, tr.Key)
	err := r.fault(f)
	switch {
	case err != nil:
	case c == nil:
		return r.skipped(tr.Key, fmt.Errorf("another job is storing it: %w", block.ErrPending))
	case r.holds(tr.Key, tr.Attrs.Seq):
		return r.skipped(tr.Key, nil)
	}
	var h *heldBlock
	if err == nil {
		h, err = r.read(tr, f)
	}
	if err == nil {
		err = r.insert(h, c, batch, j.Force)
	}
	if err == nil {
		return driver.Outcome{Key: tr.Key, Status: driver.Stored, Bytes: tr.Size, Sum: h.sum}
	}
	r.dropOther(tr.Key, c, err)
	for _, kind := range []error{block.ErrNoSpace, block.ErrBudget, block.ErrNotFound} {
		if errors.Is(err, kind) {
			return r.skipped(tr.Key, err)
		}
	}
	return r.failed(OpStore, tr.Key, err)
}

// read makes a copy of the source.
func (r *Reference) read(tr *driver.Transfer, f Fault) (*heldBlock, error) {
	switch {
	case tr.Size < 0:
		return nil, fmt.Errorf("size %d: %w", tr.Size, block.ErrInvalid)
	case tr.Size > r.opts.CapacityBytes:
		return nil, block.ErrTooLarge
	case len(tr.Key.Path()) > r.opts.MaxKeyBytes:
		return nil, block.ErrNameTooLong
	}
	data, err := readSource(tr.File, tr.Size)
	if err != nil {
		return nil, err
	}
	sum := block.Sum(data)
	if tr.Sum.Valid && tr.Sum != sum {
		return nil, block.ErrCorrupt
	}
	if f.Corrupt {
		data = damaged(data)
	}
	h := &heldBlock{key: tr.Key, data: data, size: tr.Size, sum: sum, attrs: cloneAttrs(&tr.Attrs)}
	return h, nil
}

// load copies one block up: found, verified, then written.
func (r *Reference) load(tr *driver.Transfer) driver.Outcome {
	f, _ := r.opts.Faults.next(OpLoad, tr.Key)
	if err := r.fault(f); err != nil {
		return r.failed(OpLoad, tr.Key, err)
	}
	h, storing := r.use(tr.Key)
	switch {
	case h == nil && storing:
		return r.failed(OpLoad, tr.Key, block.ErrPending)
	case h == nil, tr.Size != h.size, tr.Sum.Valid && tr.Sum != h.sum, tr.Attrs.Seq != 0 && tr.Attrs.Seq != h.attrs.Seq:
		return driver.Outcome{Key: tr.Key, Status: driver.Absent}
	}
	data := h.data
	if f.Corrupt {
		data = damaged(data)
	}
	if int64(len(data)) != h.size || block.Sum(data) != h.sum {
		r.lose(h, block.ErrCorrupt)
		return r.failed(OpLoad, tr.Key, block.ErrCorrupt)
	}
	if _, err := tr.File.WriteAt(data, 0); err != nil {
		return r.failed(OpLoad, tr.Key, kindOf(err))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.stats.Loaded++
	r.mu.stats.LoadedBytes += uint64(h.size)
	o := driver.Outcome{Key: tr.Key, Status: driver.Loaded, Bytes: tr.Size, Sum: h.sum}
	if tr.Attrs.Seq != 0 {
		a := cloneAttrs(&h.attrs)
		o.Attrs = &a
	}
	return o
}

// readSource reads exactly size bytes from the start of f.
func readSource(f *os.File, size int64) ([]byte, error) {
	data := make([]byte, size)
	n, err := f.ReadAt(data, 0)
	if n == len(data) {
		return data, nil
	}
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("source ends at %d of %d bytes: %w", n, size, block.ErrInvalid)
	}
	return nil, kindOf(err)
}

// kindOf wraps an error of the file in its kind.
func kindOf(err error) error {
	kind := block.ErrUnavailable
	switch {
	case errors.Is(err, syscall.ENOSPC):
		kind = block.ErrNoSpace
	case errors.Is(err, os.ErrClosed), errors.Is(err, syscall.EBADF):
		kind = block.ErrInvalid
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// damaged returns a copy of data with one bit of its middle byte flipped; empty
// data grows by a byte.
func damaged(data []byte) []byte {
	if len(data) == 0 {
		return []byte{1}
	}
	data = bytes.Clone(data)
	data[len(data)/2] ^= 1
	return data
}

// use returns the copy of key and marks it as used, or nil and whether a job is
// storing it.
func (r *Reference) use(key block.Key) (h *heldBlock, storing bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.mu.held[key]
	if e == nil {
		return nil, r.mu.storing[key] != nil
	}
	r.mu.order.MoveToFront(e)
	return e.Value.(*heldBlock), false
}

// release gives up a claim, unless Remove has cancelled it. A nil claim is ignored.
func (r *Reference) release(c *claim) {
	if c == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.storing[c.key] == c {
		delete(r.mu.storing, c.key)
	}
}

func (r *Reference) releaseAll(j *refJob) {
	for _, c := range j.claims {
		r.release(c)
	}
}

func (r *Reference) failAll(j *refJob, err error) []driver.Outcome {
	if j.op == OpSync {
		return []driver.Outcome{r.failed(OpSync, block.Key{}, err)}
	}
	outcomes := make([]driver.Outcome, len(j.Blocks))
	for i := range j.Blocks {
		outcomes[i] = r.failed(j.op, j.Blocks[i].Key, err)
	}
	return outcomes
}

// failed returns the outcome of a block that was not moved, and counts it.
func (r *Reference) failed(op Op, key block.Key, err error) driver.Outcome {
	if errors.Is(err, block.ErrUnavailable) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.mu.stats.IOErrors++
	}
	err = &block.Error{Op: op.String(), Tier: r.opts.Name, Key: key, Err: err}
	return driver.Outcome{Key: key, Status: driver.Failed, Err: err}
}

// skipped returns the outcome of a block that is not stored, and counts it. A nil err says that the
// tier holds the block already.
func (r *Reference) skipped(key block.Key, err error) driver.Outcome {
	o := driver.Outcome{Key: key, Status: driver.Skipped}
	if err == nil {
		return o
	}
	o.Err = &block.Error{Op: OpStore.String(), Tier: r.opts.Name, Key: key, Err: err}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case errors.Is(err, block.ErrNoSpace):
		r.mu.stats.SkippedNoSpace++
	case errors.Is(err, block.ErrBudget):
		r.mu.stats.SkippedBudget++
	}
	return o
}
