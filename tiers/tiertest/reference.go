package tiertest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/invariant"
)

// Reference is the reference implementation of driver.Tier: a secondary tier in memory, with
// injected latency and faults (A33, A34). It does only what the contract asks. Where the contract
// leaves a choice:
//
//  1. Lookup answers Pending from the return of Store until the job has handled the block, and Hit
//     before Done is called (A15). While another version of a held block is being stored it
//     answers Hit, and a Load gets the old version.
//  2. A Store of a version that another job is storing is Skipped with ErrPending. A Store of
//     another version cancels the earlier one.
//  3. A Load of a block that is being stored fails with ErrPending.
//  4. Remove also cancels running stores of its keys; Update cancels those of to. A cancelled store
//     is Skipped with ErrNotFound, and does not count as held.
//  5. Loads are served before stores. Load and a Store of a present block count as use, as Touch
//     does; Update does not.
//  6. A Store with a short source fails with ErrInvalid. One whose bytes disagree with Sum fails
//     with ErrCorrupt, one beyond the capacity with ErrTooLarge. Nothing is stored or evicted then.
//  7. When a Store that would replace another version fails, that version is dropped, unless the
//     store was cancelled or the tier is closing.
//  8. A pinned block is not evicted, and the Host is not asked about it.
//  9. A copy that proves bad is reported as Lost before the Done of the Load.
//  10. A job after Close fails with ErrClosed, through Done as usual. When the tier is offline,
//     jobs in the queue and later ones fail with ErrUnavailable.
type Reference struct {
	// Constant after OpenReference.
	opts    ReferenceOptions
	aborted chan struct{} // closed when the context of Close is done
	abort   func()        // closes aborted; may be called again

	close   sync.Once
	workers sync.WaitGroup

	mu struct {
		invariant.Mutex
		work sync.Cond // a job was queued or released, or closed was set

		copies
		written int64        // counts against BudgetBytes
		host    driver.Host  // nil: there is no Host
		stats   driver.Stats // counters only

		syncs   []*refJob
		loads   []*refJob
		stores  []*refJob
		holds   [OpSync + 1]int // number of holds of each kind
		events  [OpSync + 1]opEvents
		changed chan struct{} // closed and replaced whenever events changes
		offline error         // set by Fail: the cause
		closed  bool
	}
}

var (
	_ driver.Tier       = (*Reference)(nil)
	_ driver.Statser    = (*Reference)(nil)
	_ driver.Enumerator = (*Reference)(nil)
	_ driver.Hosted     = (*Reference)(nil)
	_ driver.Recorder   = (*Reference)(nil)
	_ driver.Syncer     = (*Reference)(nil)
	_ driver.Finder     = Finding{}
)

// refJob is a job in a queue, or a Sync.
type refJob struct {
	*driver.Job          // nil: a Sync
	op          Op       // OpStore, OpLoad or OpSync
	claims      []*claim // stores: one a block; nil if another job is storing it
	synced      func(error)
}

// blocks returns the number of operations of the job.
func (j *refJob) blocks() int {
	if j.op == OpSync {
		return 1
	}
	return len(j.Blocks)
}

// OpenReference starts a Reference. The caller must close it.
func OpenReference(opts ReferenceOptions) *Reference {
	opts = opts.withDefaults()
	r := &Reference{opts: opts, aborted: make(chan struct{})}
	r.abort = sync.OnceFunc(func() { close(r.aborted) })
	r.mu.work.L = &r.mu.Mutex
	r.mu.copies = newCopies(opts.CapacityBytes)
	r.mu.changed = make(chan struct{})
	r.mu.SetCheck(r.mu.copies.check)
	for range opts.Workers {
		if !opts.Direct {
			r.workers.Go(r.serve) // ends when Close has found the queue empty
		}
	}
	return r
}

// Lookup sets out[i] to the presence of keys[i]; see driver.Tier. It does not wait, so it ignores
// its context.
func (r *Reference) Lookup(_ context.Context, keys []block.Key, out []driver.Presence) error {
	clear(out)
	if len(keys) != len(out) {
		err := fmt.Errorf("%d keys, room for %d: %w", len(keys), len(out), block.ErrInvalid)
		return &block.Error{Op: "lookup", Tier: r.opts.Name, Err: err}
	}
	if err := r.lookup(keys, out); err != nil {
		return &block.Error{Op: "lookup", Tier: r.opts.Name, Err: err}
	}
	if err := r.opts.Faults.lookup(keys, out); err != nil {
		return &block.Error{Op: "lookup", Tier: r.opts.Name, Err: err}
	}
	return nil
}

// lookup fills out from the tables. It fails if the tier is closed or offline.
func (r *Reference) lookup(keys []block.Key, out []driver.Presence) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.downLocked(); err != nil {
		return err
	}
	for i, key := range keys {
		switch {
		case r.mu.held[key] != nil:
			out[i] = driver.Hit
		case r.mu.storing[key] != nil:
			out[i] = driver.Pending
		}
	}
	return nil
}

// downLocked returns why the tier is down, or nil. It needs r.mu.
func (r *Reference) downLocked() error {
	switch {
	case r.mu.closed:
		return block.ErrClosed
	case r.mu.offline != nil:
		return fmt.Errorf("%w: %w", block.ErrUnavailable, r.mu.offline)
	}
	return nil
}

// Store copies the blocks of job into memory; see driver.Tier.
func (r *Reference) Store(job *driver.Job) { r.submit(&refJob{Job: job, op: OpStore}) }

// Load copies the blocks of job up into their files; see driver.Tier.
func (r *Reference) Load(job *driver.Job) { r.submit(&refJob{Job: job, op: OpLoad}) }

// submit queues a job. If the tier is closed, it completes the job on a separate goroutine, because
// Done must not run within Store or Load.
func (r *Reference) submit(j *refJob) {
	if r.opts.OnJob != nil && j.op != OpSync {
		r.opts.OnJob(j.op, j.Job)
	}
	if r.enqueue(j) {
		return
	}
	// Ends with Done. Nothing waits for it: the tier is closed.
	go r.complete(j, r.failAll(j, block.ErrClosed))
}

// enqueue puts j into its queue, or returns false if the tier is closed.
func (r *Reference) enqueue(j *refJob) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.mu.closed:
		return false
	case j.op == OpSync:
		r.mu.syncs = append(r.mu.syncs, j)
	case j.op == OpLoad:
		r.mu.loads = append(r.mu.loads, j)
	default:
		r.mu.claimAll(j)
		r.mu.stores = append(r.mu.stores, j)
	}
	r.mu.events[j.op].begunJobs++
	r.mu.events[j.op].begunBlocks += j.blocks()
	r.changedLocked()
	if r.opts.Direct {
		r.workers.Go(func() { r.serveOne() }) // ends with one job
		return true
	}
	r.mu.work.Signal()
	return true
}

// Remove drops the blocks, cancels their running stores, and returns how many were held.
func (r *Reference) Remove(keys []block.Key) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	count := 0
	for _, key := range keys {
		r.mu.cancel(key)
		if e := r.mu.held[key]; e != nil {
			r.mu.drop(e)
			count++
		}
	}
	return count
}

// Touch marks the blocks as recently used, the last key as the latest.
func (r *Reference) Touch(keys []block.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range keys {
		if e := r.mu.held[key]; e != nil {
			r.mu.order.MoveToFront(e)
		}
	}
}

// Close serves the queued jobs. Jobs that have not ended when ctx is done fail with ErrClosed. Then
// it waits for the workers and frees the blocks. It ends every Hold. It must not be called from
// Done. A second call waits for the first.
func (r *Reference) Close(ctx context.Context) error {
	r.close.Do(func() {
		r.mu.Lock()
		r.mu.closed = true
		r.mu.work.Broadcast()
		r.mu.Unlock()

		stop := context.AfterFunc(ctx, r.abort)
		r.workers.Wait()
		stop()

		r.mu.Lock()
		if r.mu.offline == nil {
			r.mu.durable = r.mu.oldestFirst()
		}
		r.mu.clear()
		r.mu.Unlock()
	})
	return nil
}

// Stats reports the capacity, the held blocks and the counters.
func (r *Reference) Stats() driver.Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.mu.stats
	s.CapacityBytes = r.opts.CapacityBytes
	s.UsedBytes = r.mu.used
	s.Blocks = int64(len(r.mu.held))
	for _, e := range r.mu.held {
		if h := e.Value.(*heldBlock); h.attrs.Pinned {
			s.PinnedBytes += h.size
		}
	}
	s.State = "online"
	switch {
	case r.mu.closed:
		s.State, s.Reason = "offline", "closed"
	case r.mu.offline != nil:
		s.State, s.Reason = "offline", r.mu.offline.Error()
	}
	return s
}

// Blocks calls fn, without a lock, for each block held at the call, the most recently used first.
func (r *Reference) Blocks(fn func(h *driver.Held) bool) error {
	for _, h := range slices.Backward(r.oldestFirst()) {
		held := driver.Held{Key: h.key, Size: h.size, Sum: h.sum, Attrs: cloneAttrs(&h.attrs)}
		if !fn(&held) {
			break
		}
	}
	return nil
}

// cloneAttrs returns a deep copy of a.
func cloneAttrs(a *driver.Attrs) driver.Attrs {
	c := *a
	c.Dirs = slices.Clone(a.Dirs)
	return c
}

// oldestFirst returns the blocks held, the least recently used first.
func (r *Reference) oldestFirst() []*heldBlock {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.oldestFirst()
}
