package tiertest

import (
	"bytes"
	"container/list"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
)

// serve is one worker: it runs jobs until the tier is closed and none is left.
func (r *Reference) serve() {
	for {
		j, refused, ok := r.dequeue()
		if !ok {
			return
		}
		if refused {
			r.complete(j, r.refuse(j))
			continue
		}
		r.complete(j, r.run(j))
	}
}

// dequeue waits for the next job: the refused ones first, which cost nothing,
// then loads, then stores. ok is false when the tier is closed and none is left.
func (r *Reference) dequeue() (j *refJob, refused, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if j, ok = pop(&r.mu.refused); ok {
			return j, true, true
		}
		if j, ok = pop(&r.mu.loads); ok {
			return j, false, true
		}
		if j, ok = pop(&r.mu.stores); ok {
			return j, false, true
		}
		if r.mu.closed {
			return nil, false, false
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

// complete calls Done, without a lock. Nothing of the job is used after it.
func (r *Reference) complete(j *refJob, outcomes []tiers.Outcome) {
	j.Done(&tiers.Result{Job: j.ID, Outcomes: outcomes})
}

// run serves a job, block by block.
func (r *Reference) run(j *refJob) []tiers.Outcome {
	if err := r.pause(); err != nil {
		r.releaseAll(j)
		return r.failAll(j, err)
	}
	outcomes := make([]tiers.Outcome, len(j.Blocks))
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
		outcomes[i] = r.store(&j.Blocks[i], j.claims[i], batch)
		r.release(j.claims[i])
	}
	return outcomes
}

// pause lets the injected latency pass. It fails with ErrClosed if Close gives up
// first.
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

// fault waits out a stall and returns the fault's error. It fails with ErrClosed
// if Close gives up first.
func (r *Reference) fault(f Fault) error {
	if f.Stall != nil {
		select {
		case <-f.Stall:
		case <-r.aborted:
		}
	}
	select {
	case <-r.aborted:
		return block.ErrClosed
	default:
		return f.Err
	}
}

// store copies one block down. batch has the keys of the whole job.
func (r *Reference) store(tr *tiers.Transfer, c *claim, batch map[block.Key]bool) tiers.Outcome {
	f, _ := r.opts.Faults.next(OpStore, tr.Key)
	if err := r.fault(f); err != nil {
		return r.failed(OpStore, tr.Key, err)
	}
	if h, _ := r.use(tr.Key); c == nil || h != nil {
		return tiers.Outcome{Key: tr.Key, Status: tiers.Skipped}
	}
	switch {
	case tr.Size < 0:
		err := fmt.Errorf("size %d: %w", tr.Size, block.ErrInvalid)
		return r.failed(OpStore, tr.Key, err)
	case tr.Size > r.opts.CapacityBytes:
		return r.failed(OpStore, tr.Key, block.ErrTooLarge)
	}
	data, err := readSource(tr.File, tr.Size, f.Short)
	if err != nil {
		return r.failed(OpStore, tr.Key, err)
	}
	sum := block.Sum(data)
	if tr.Sum.Valid && tr.Sum != sum {
		return r.failed(OpStore, tr.Key, block.ErrCorrupt)
	}
	if f.Corrupt {
		data = damaged(data)
	}
	if !r.insert(&heldBlock{key: tr.Key, data: data, sum: sum}, c, batch) {
		return tiers.Outcome{Key: tr.Key, Status: tiers.Skipped}
	}
	return tiers.Outcome{Key: tr.Key, Status: tiers.Stored, Bytes: tr.Size}
}

// load copies one block up: found, verified, then written.
func (r *Reference) load(tr *tiers.Transfer) tiers.Outcome {
	f, _ := r.opts.Faults.next(OpLoad, tr.Key)
	if err := r.fault(f); err != nil {
		return r.failed(OpLoad, tr.Key, err)
	}
	h, storing := r.use(tr.Key)
	switch {
	case h == nil && storing:
		return r.failed(OpLoad, tr.Key, block.ErrPending)
	case h == nil:
		return tiers.Outcome{Key: tr.Key, Status: tiers.Absent}
	}
	data := h.data
	if f.Corrupt {
		data = damaged(data)
	}
	if f.Short {
		data = data[:len(data)/2]
	}
	sum := block.Sum(data)
	if int64(len(data)) != tr.Size || sum != h.sum || tr.Sum.Valid && tr.Sum != sum {
		r.drop(h)
		return r.failed(OpLoad, tr.Key, block.ErrCorrupt)
	}
	if _, err := tr.File.WriteAt(data, 0); err != nil {
		return r.failed(OpLoad, tr.Key, kindOf(err))
	}
	return tiers.Outcome{Key: tr.Key, Status: tiers.Loaded, Bytes: tr.Size, Sum: sum}
}

// readSource reads exactly size bytes from the start of f; short pretends that f
// ends half way.
func readSource(f *os.File, size int64, short bool) ([]byte, error) {
	if short {
		return nil, fmt.Errorf("source ends at %d of %d bytes: %w", size/2, size, block.ErrInvalid)
	}
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

// kindOf wraps an error of the file in the kind it belongs to.
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

// insert enters h, evicting blocks outside batch as needed. It returns false if
// Remove has taken the claim, or if there is no room without evicting a block of
// batch; nothing is evicted then (A31).
func (r *Reference) insert(h *heldBlock, c *claim, batch map[block.Key]bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.removed {
		return false
	}
	victims, ok := r.victimsLocked(int64(len(h.data)), batch)
	if !ok {
		return false
	}
	for _, e := range victims {
		r.evictLocked(e)
	}
	r.mu.held[h.key] = r.mu.order.PushFront(h)
	r.mu.used += int64(len(h.data))
	return true
}

// victimsLocked chooses what to evict for one more block of size bytes: the least
// recently used blocks that are not in batch. ok is false if those are not
// enough. It needs r.mu.
func (r *Reference) victimsLocked(
	size int64, batch map[block.Key]bool,
) (victims []*list.Element, ok bool) {
	used, count := r.mu.used+size, len(r.mu.held)+1
	fits := func() bool {
		return used <= r.opts.CapacityBytes && (r.opts.MaxBlocks == 0 || count <= r.opts.MaxBlocks)
	}
	for e := r.mu.order.Back(); e != nil && !fits(); e = e.Prev() {
		h := e.Value.(*heldBlock)
		if batch[h.key] {
			continue
		}
		victims = append(victims, e)
		used -= int64(len(h.data))
		count--
	}
	return victims, fits()
}

// evictLocked drops one block. It needs r.mu.
func (r *Reference) evictLocked(e *list.Element) {
	h := r.mu.order.Remove(e).(*heldBlock)
	delete(r.mu.held, h.key)
	r.mu.used -= int64(len(h.data))
}

// drop evicts this copy, unless a later one has taken its place.
func (r *Reference) drop(h *heldBlock) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.mu.held[h.key]; e != nil && e.Value == h {
		r.evictLocked(e)
	}
}

// release gives up a claim that Remove has not taken. A nil claim is ignored.
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

// refuse returns the outcomes of a job that the queue had no room for.
func (r *Reference) refuse(j *refJob) []tiers.Outcome {
	if j.op == OpLoad {
		return r.failAll(j, fmt.Errorf("queue full: %w", block.ErrUnavailable))
	}
	outcomes := make([]tiers.Outcome, len(j.Blocks))
	for i := range j.Blocks {
		outcomes[i] = tiers.Outcome{Key: j.Blocks[i].Key, Status: tiers.Skipped}
	}
	return outcomes
}

func (r *Reference) failAll(j *refJob, err error) []tiers.Outcome {
	outcomes := make([]tiers.Outcome, len(j.Blocks))
	for i := range j.Blocks {
		outcomes[i] = r.failed(j.op, j.Blocks[i].Key, err)
	}
	return outcomes
}

func (r *Reference) failed(op Op, key block.Key, err error) tiers.Outcome {
	err = &block.Error{Op: op.String(), Tier: r.opts.Name, Key: key, Err: err}
	return tiers.Outcome{Key: key, Status: tiers.Failed, Err: err}
}
