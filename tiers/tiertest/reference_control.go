package tiertest

import (
	"context"
	"sync"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// NewReference opens a Reference for a test. It closes it when the test has ended, and fails all
// jobs that are not done by then.
func NewReference(t testing.TB, opts ReferenceOptions) *Reference {
	t.Helper()
	r := OpenReference(opts)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = r.Close(ctx) // always succeeds
	})
	return r
}

// opEvents counts one kind of operation.
type opEvents struct{ begunJobs, begunBlocks, doneJobs, doneBlocks int }

// changedLocked wakes the callers that await events. It needs r.mu.
func (r *Reference) changedLocked() {
	close(r.mu.changed)
	r.mu.changed = make(chan struct{})
}

// Hold holds back all jobs of one kind, or of all kinds with OpAny, that no worker has begun. They
// wait until release is called (it may be called again), or until Close or Fail. Other jobs are
// served meanwhile. Look-ups are never held.
func (r *Reference) Hold(op Op) (release func()) {
	r.hold(op, 1)
	return sync.OnceFunc(func() { r.hold(op, -1) })
}

func (r *Reference) hold(op Op, delta int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for each := range r.mu.holds {
		if op == OpAny || op == Op(each) {
			r.mu.holds[each] += delta
		}
	}
	r.mu.work.Broadcast()
}

// Jobs returns how many jobs of a kind (OpStore, OpLoad or OpSync) were submitted, and how many are
// done: their Done has returned.
func (r *Reference) Jobs(op Op) (submitted, done int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.events[op].begunJobs, r.mu.events[op].doneJobs
}

// AwaitSubmitted returns once n blocks or more, counted from the start, were submitted in jobs of a
// kind, or with the error of ctx. A Sync counts as one block.
func (r *Reference) AwaitSubmitted(ctx context.Context, op Op, n int) error {
	return r.await(ctx, func() bool { return r.mu.events[op].begunBlocks >= n })
}

// AwaitDone is AwaitSubmitted for blocks whose Done has returned.
func (r *Reference) AwaitDone(ctx context.Context, op Op, n int) error {
	return r.await(ctx, func() bool { return r.mu.events[op].doneBlocks >= n })
}

// await returns once reached, called with r.mu held, is true.
func (r *Reference) await(ctx context.Context, reached func() bool) error {
	check := func() (bool, <-chan struct{}) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return reached(), r.mu.changed
	}
	for {
		ok, changed := check()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Corrupt flips a bit in the copies of the keys. Only a Load or Scrub detects that. It returns how
// many the tier held.
func (r *Reference) Corrupt(keys ...block.Key) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	count := 0
	for _, key := range keys {
		if e := r.mu.held[key]; e != nil {
			bad := *e.Value.(*heldBlock)
			bad.data = damaged(bad.data)
			e.Value = &bad
			count++
		}
	}
	return count
}

// Scrub verifies all copies, drops the bad ones, reports them as Lost with ErrCorrupt, and returns
// their number.
func (r *Reference) Scrub() int {
	count := 0
	for _, h := range r.oldestFirst() {
		if block.Sum(h.data) != h.sum && r.lose(h, block.ErrCorrupt) {
			count++
		}
	}
	return count
}

// Fail takes the tier offline, as a broken device does. All blocks are gone and reported as Lost
// with ErrUnavailable before it returns. Queued and later jobs fail with ErrUnavailable; err is the
// cause.
func (r *Reference) Fail(err error) {
	lost, host := r.fail(err)
	for _, h := range lost {
		r.tell(host, h.key, block.ErrUnavailable)
	}
}

// fail goes offline and returns the lost blocks.
func (r *Reference) fail(err error) ([]*heldBlock, driver.Host) {
	r.mu.Lock()
	defer r.mu.Unlock()
	lost := r.mu.oldestFirst()
	r.mu.offline = err
	r.mu.clear()
	for key := range r.mu.storing {
		r.mu.cancel(key)
	}
	r.mu.work.Broadcast()
	return lost, r.mu.host
}

// Recover brings a failed tier online again, empty.
func (r *Reference) Recover() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.offline = nil
}
