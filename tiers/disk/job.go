package disk

import (
	"errors"
	"sync/atomic"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/port"
	"github.com/kvfs/kvfs/tiers/disk/slotmap"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/policy"
)

// The states of a block of a job.
const (
	blockOpen uint32 = iota // queued, or with the device: may be given up
	blockBusy               // its file is in use for a moment
	blockDone
)

// job is a driver.Job under way.
//
// A device can keep an operation for ever. So the goroutine that fails the jobs of a failed device
// must not wait for one that waits for the kernel. The first of the two finishes each block. A
// worker enters the block before it uses the file, and again when the device has answered. abandon
// ends the blocks that no worker has entered. The memory that the kernel may still use belongs to
// the worker, not to the job.
type job struct {
	t     *Tier
	id    driver.JobID
	op    string
	done  func(*driver.Result)
	keys  []block.Key
	out   []driver.Outcome // each owned by the goroutine that has entered the block
	state []atomic.Uint32
	left  atomic.Int64 // blocks not done, plus one for the submission

	spare    bool  // driver.Job.Spare; constant
	accepted bool  // counted in Tier.mu.jobs; constant after submit
	pinned   []pin // guarded by Tier.mu until the job is complete
}

// newJob accepts a job. The caller must then call its submit.
func (t *Tier) newJob(in *driver.Job, op string) *job {
	j := &job{t: t, id: in.ID, op: op, done: in.Done, spare: in.Spare}
	j.keys = make([]block.Key, len(in.Blocks))
	j.out = make([]driver.Outcome, len(in.Blocks))
	j.state = make([]atomic.Uint32, len(in.Blocks))
	j.left.Store(int64(len(in.Blocks)) + 1)
	for i := range in.Blocks {
		j.keys[i] = in.Blocks[i].Key
	}
	return j
}

// submit gives the tasks to their devices. If there is nothing to wait for, a goroutine of its own
// completes the job, since Done must not run within Store or Load.
func (j *job) submit(tasks []*task) {
	for _, k := range tasks {
		k.dev.submit(k)
	}
	switch {
	case j.left.Add(-1) > 0:
	case j.spare:
		j.complete()
	default:
		go j.complete() // ends with Done; Close waits for it by Tier.mu.jobs
	}
}

// enter claims block i, to use its file. It returns false if the block was given up.
func (j *job) enter(i int) bool { return j.state[i].CompareAndSwap(blockOpen, blockBusy) }

// leave is the inverse of enter.
func (j *job) leave(i int) { j.state[i].Store(blockOpen) }

// finish ends block i, which the caller has entered.
func (j *job) finish(i int, o driver.Outcome) {
	o.Key = j.keys[i]
	j.out[i] = o
	j.state[i].Store(blockDone)
	j.count(o)
	if j.left.Add(-1) == 0 {
		j.complete()
	}
}

// abandon ends block i, unless another goroutine has entered or ended it.
func (j *job) abandon(i int, o driver.Outcome) {
	if j.enter(i) {
		j.finish(i, o)
	}
}

// failed is the outcome for an error. It wraps the error in a kind.
func (j *job) failed(i int, err error) driver.Outcome {
	return driver.Outcome{Status: driver.Failed, Err: j.t.fail(j.op, j.keys[i], port.KindOf(err))}
}

// skipped is the outcome for a block without room. kind is ErrNoSpace or ErrBudget.
func (j *job) skipped(i int, kind error) driver.Outcome {
	return driver.Outcome{Status: driver.Skipped, Err: j.t.fail(j.op, j.keys[i], kind)}
}

func (j *job) count(o driver.Outcome) {
	c := &j.t.counters
	switch {
	case o.Status == driver.Stored:
		c.stored.Add(1)
		c.storedBytes.Add(uint64(o.Bytes))
	case o.Status == driver.Loaded:
		c.loaded.Add(1)
		c.loadedBytes.Add(uint64(o.Bytes))
	case o.Status == driver.Skipped && errors.Is(o.Err, block.ErrBudget):
		c.budget.Add(1)
	case o.Status == driver.Skipped && errors.Is(o.Err, block.ErrNoSpace):
		c.noSpace.Add(1)
	}
}

// complete calls Done, then unpins the slots of the job.
func (j *job) complete() {
	t := j.t
	t.mu.Lock()
	t.mu.ending++
	t.mu.Unlock()
	j.done(&driver.Result{Job: j.id, Outcomes: j.out})
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.ending--
	t.mu.ended++
	if t.mu.endedNext != nil {
		close(t.mu.endedNext)
		t.mu.endedNext = nil
	}
	for _, p := range j.pinned {
		t.mu.slots.Follow(p.id, p.burst) // now, because a search for victims has passed over it meanwhile
		t.mu.slots.Unpin(p.id)
	}
	j.pinned = nil
	if !j.accepted {
		return
	}
	if t.mu.jobs--; t.mu.jobs == 0 && t.mu.closing {
		close(t.mu.idle)
	}
}

// acceptLocked counts the job. If the tier is closing, it ends all its blocks with ErrClosed. It
// needs Tier.mu.
func (j *job) acceptLocked() bool {
	if !j.t.mu.closing {
		j.accepted = true
		j.t.mu.jobs++
		return true
	}
	for i := range j.out {
		j.settle(i, j.failed(i, block.ErrClosed))
	}
	return false
}

// settle ends block i before the job is submitted.
func (j *job) settle(i int, o driver.Outcome) {
	if !j.enter(i) {
		panic("disk: block of a new job is in use")
	}
	j.finish(i, o)
}

// pin is a slot that a job pins, and the burst to which its block belongs from the end of the job on.
type pin struct {
	id    slotmap.SlotID
	burst policy.Burst
}

// pinLocked pins a slot until the job is complete. It needs Tier.mu.
func (j *job) pinLocked(id slotmap.SlotID, burst policy.Burst) {
	j.t.mu.slots.Pin(id)
	j.pinned = append(j.pinned, pin{id, burst})
}
