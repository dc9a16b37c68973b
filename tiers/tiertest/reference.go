package tiertest

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/invariant"
)

// ReferenceOptions configures a Reference. The zero value works.
type ReferenceOptions struct {
	// Name stands in errors. Empty means "reference".
	Name string
	// CapacityBytes limits the bytes held. Zero means 1 GiB; not negative.
	CapacityBytes int64
	// MaxBlocks limits the number of blocks held. Zero means no limit; not
	// negative (A30).
	MaxBlocks int
	// QueueJobs limits the jobs that wait for a worker. Zero means 1024; not
	// negative. A Store beyond it is Skipped, a Load fails with ErrUnavailable.
	QueueJobs int
	// Workers is the number of jobs served at once. Zero means 2; not negative.
	Workers int
	// Latency passes before each job is served. Zero means none (A33).
	Latency time.Duration
	// Clock measures Latency. Nil means that of the process.
	Clock Clock
	// Faults are injected into stores, loads and look-ups. Nil means none (A33).
	Faults *Plan
}

// withDefaults returns o with its zero fields filled, or every violation.
func (o ReferenceOptions) withDefaults() (ReferenceOptions, error) {
	var errs []error
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"CapacityBytes", o.CapacityBytes},
		{"MaxBlocks", int64(o.MaxBlocks)},
		{"QueueJobs", int64(o.QueueJobs)},
		{"Workers", int64(o.Workers)},
		{"Latency", int64(o.Latency)},
	} {
		if f.value < 0 {
			errs = append(errs, fmt.Errorf("%s %d: want at least 0: %w", f.name, f.value, block.ErrInvalid))
		}
	}
	if o.Name == "" {
		o.Name = "reference"
	}
	if o.CapacityBytes == 0 {
		o.CapacityBytes = 1 << 30
	}
	if o.QueueJobs == 0 {
		o.QueueJobs = 1024
	}
	if o.Workers == 0 {
		o.Workers = 2
	}
	if o.Clock == nil {
		o.Clock = realClock{}
	}
	return o, errors.Join(errs...)
}

// Reference is the reference implementation of tiers.Tier: a secondary tier in
// memory, with injected latency and faults (A33, A34). It does no more than the
// contract asks, and where the contract leaves a choice it chooses so:
//
//  1. Lookup answers Pending from the return of Store until the job has dealt
//     with the block, and Hit before Done is called (A15).
//  2. A block that another job is storing is Skipped by a Store; a Load of it
//     fails with ErrPending.
//  3. Remove also cancels the stores under way of its keys; they come out as
//     Skipped, and do not count as held.
//  4. Loads are served before stores. Load and a Store of a present block count
//     as use, as Touch does.
//  5. A Store whose source is short fails with ErrInvalid, one whose bytes
//     disagree with Sum with ErrCorrupt, one beyond the capacity with
//     ErrTooLarge. Nothing is stored and nothing evicted then.
//  6. A Load whose Size or Sum disagrees with the copy fails with ErrCorrupt,
//     and the copy is dropped.
//  7. A job that comes after Close fails with ErrClosed, through Done as usual.
type Reference struct {
	// Constant after OpenReference.
	opts    ReferenceOptions
	aborted chan struct{} // closed when the context of Close is done
	abort   func()        // closes aborted; may be called again

	close   sync.Once
	workers sync.WaitGroup

	mu struct {
		invariant.Mutex
		work sync.Cond // a job was queued, or closed was set

		// INVARIANT: held and order have the same blocks.
		held  map[block.Key]*list.Element // of *heldBlock
		order *list.List                  // front: most recently used
		// INVARIANT: used is the sum of the sizes held, at most CapacityBytes.
		used int64

		storing map[block.Key]*claim // the store under way of each key

		refused []*refJob // beyond QueueJobs; only to be completed
		loads   []*refJob
		stores  []*refJob
		closed  bool
	}
}

var (
	_ tiers.Tier       = (*Reference)(nil)
	_ tiers.Statser    = (*Reference)(nil)
	_ tiers.Enumerator = (*Reference)(nil)
)

// heldBlock is one copy; constant once in the tables.
type heldBlock struct {
	key  block.Key
	data []byte
	sum  block.Checksum
}

// claim is the right of one job to store one key. It is lost to Remove.
type claim struct {
	key     block.Key
	removed bool // guarded by Reference.mu
}

// refJob is a job in the queue.
type refJob struct {
	*tiers.Job
	op     Op
	claims []*claim // stores: one a block; nil where another job is storing it
}

// OpenReference starts a Reference. It fails with ErrInvalid, naming each option
// that is out of range. The caller closes it.
func OpenReference(opts ReferenceOptions) (*Reference, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("open reference tier: %w", err)
	}
	r := &Reference{opts: opts, aborted: make(chan struct{})}
	r.abort = sync.OnceFunc(func() { close(r.aborted) })
	r.mu.work.L = &r.mu.Mutex
	r.mu.held = make(map[block.Key]*list.Element)
	r.mu.order = list.New()
	r.mu.storing = make(map[block.Key]*claim)
	r.mu.SetCheck(r.checkLocked)
	for range opts.Workers {
		r.workers.Go(r.serve) // ends when Close has found the queue empty
	}
	return r, nil
}

// checkLocked panics if an invariant of mu is broken. Beyond 256 blocks it leaves
// out the sum, which would make each call linear. It needs r.mu.
func (r *Reference) checkLocked() {
	m := &r.mu
	invariant.Check(len(m.held) == m.order.Len(), "held %d, order %d", len(m.held), m.order.Len())
	invariant.Check(m.used >= 0 && m.used <= r.opts.CapacityBytes, "used %d", m.used)
	if len(m.held) > 256 {
		return
	}
	var sum int64
	for e := m.order.Front(); e != nil; e = e.Next() {
		sum += int64(len(e.Value.(*heldBlock).data))
	}
	invariant.Check(sum == m.used, "used %d, sum of sizes %d", m.used, sum)
}

// Lookup sets out[i] to the presence of keys[i]; see tiers.Tier. It does not
// wait, so it takes no notice of its context.
func (r *Reference) Lookup(_ context.Context, keys []block.Key, out []tiers.Presence) error {
	clear(out)
	if len(keys) != len(out) {
		err := fmt.Errorf("%d keys, room for %d: %w", len(keys), len(out), block.ErrInvalid)
		return &block.Error{Op: "lookup", Tier: r.opts.Name, Err: err}
	}
	if !r.lookup(keys, out) {
		return &block.Error{Op: "lookup", Tier: r.opts.Name, Err: block.ErrClosed}
	}
	if err := r.opts.Faults.lookup(keys, out); err != nil {
		return &block.Error{Op: "lookup", Tier: r.opts.Name, Err: err}
	}
	return nil
}

// lookup fills out from the tables, or returns false if the tier is closed.
func (r *Reference) lookup(keys []block.Key, out []tiers.Presence) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed {
		return false
	}
	for i, key := range keys {
		switch {
		case r.mu.held[key] != nil:
			out[i] = tiers.Hit
		case r.mu.storing[key] != nil:
			out[i] = tiers.Pending
		}
	}
	return true
}

// Store copies the blocks of job into memory; see tiers.Tier.
func (r *Reference) Store(job *tiers.Job) { r.submit(&refJob{Job: job, op: OpStore}) }

// Load copies the blocks of job up into their files; see tiers.Tier.
func (r *Reference) Load(job *tiers.Job) { r.submit(&refJob{Job: job, op: OpLoad}) }

// submit queues a job, or completes it from a goroutine of its own if the tier is
// closed: Done must not run within Store or Load.
func (r *Reference) submit(j *refJob) {
	if r.enqueue(j) {
		return
	}
	// Ends with Done. Nobody is left to join it: the tier is closed.
	go r.complete(j, r.failAll(j, block.ErrClosed))
}

// enqueue puts j into its queue, or returns false if the tier is closed.
func (r *Reference) enqueue(j *refJob) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.mu.closed:
		return false
	case len(r.mu.loads)+len(r.mu.stores) >= r.opts.QueueJobs:
		r.mu.refused = append(r.mu.refused, j)
	case j.op == OpLoad:
		r.mu.loads = append(r.mu.loads, j)
	default:
		r.claimLocked(j)
		r.mu.stores = append(r.mu.stores, j)
	}
	r.mu.work.Signal()
	return true
}

// claimLocked claims the keys of a store that no other job is storing. It needs
// r.mu.
func (r *Reference) claimLocked(j *refJob) {
	j.claims = make([]*claim, len(j.Blocks))
	for i := range j.Blocks {
		key := j.Blocks[i].Key
		if r.mu.storing[key] == nil {
			j.claims[i] = &claim{key: key}
			r.mu.storing[key] = j.claims[i]
		}
	}
}

// Remove drops the blocks, cancels their stores under way, and returns how many
// were held.
func (r *Reference) Remove(keys []block.Key) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	count := 0
	for _, key := range keys {
		if c := r.mu.storing[key]; c != nil {
			c.removed = true
			delete(r.mu.storing, key)
		}
		if e := r.mu.held[key]; e != nil {
			r.evictLocked(e)
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

// Close serves the jobs in the queue, failing with ErrClosed those that have not
// ended when ctx is done, joins the workers and frees the blocks. It must not be
// called from Done. A second call waits for the first.
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
		clear(r.mu.held)
		r.mu.order.Init()
		r.mu.used = 0
		r.mu.Unlock()
	})
	return nil
}

// Stats reports the capacity and what is held.
func (r *Reference) Stats() tiers.TierStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := tiers.TierStats{
		CapacityBytes: r.opts.CapacityBytes,
		UsedBytes:     r.mu.used,
		Blocks:        int64(len(r.mu.held)),
		State:         "online",
	}
	if r.mu.closed {
		s.State, s.Reason = "offline", "closed"
	}
	return s
}

// Blocks calls fn for each block held when it was called, the most recently used
// first, without a lock.
func (r *Reference) Blocks(fn func(key block.Key, size int64, sum block.Checksum) bool) error {
	for _, h := range r.snapshot() {
		if !fn(h.key, int64(len(h.data)), h.sum) {
			break
		}
	}
	return nil
}

func (r *Reference) snapshot() []*heldBlock {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*heldBlock, 0, len(r.mu.held))
	for e := r.mu.order.Front(); e != nil; e = e.Next() {
		all = append(all, e.Value.(*heldBlock))
	}
	return all
}
