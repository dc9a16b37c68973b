package disk

import (
	"errors"
	"fmt"
	"os"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/port"
	"github.com/kvfs/kvfs/tiers/disk/slotmap"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/policy"
)

// flight is one block on its way into the tier. Tier.mu guards the fields below the line.
type flight struct {
	job      *job
	index    int // of the block in job
	dev      *device
	source   transfer
	volatile bool // source may change while it is read
	burst    policy.Burst
	budget   int64 // bytes of the write budget that are reserved
	// ------
	key             block.Key
	rec             slotmap.Record // the slot's, once there is one
	id              slotmap.SlotID // its slot; 0: none yet
	older           *flight        // same key, submitted before
	waiters         []waiter
	cancelled, over bool // must not be published; is out of Tier.mu.flights for good
	changed         bool // Update changed it after its header was made
	headerMade      bool // the kernel may have the header, even after the flight has ended
	headerOutdated  bool // the syncer knows that the kernel's header is outdated
}

// transfer is what the worker needs of a driver.Transfer. The Transfer itself is the caller's again
// after Done.
type transfer struct {
	file *os.File
	size int64
	sum  block.Checksum
}

// waiter is a block of another job that shares the outcome of a flight.
type waiter struct {
	job   *job
	index int
}

// cancelLocked keeps a flight, and the older flights of its key, from being published.
func (t *Tier) cancelLocked(f *flight) {
	for ; f != nil; f = f.older {
		f.cancelled = true
		f.outdatedLocked()
	}
}

// outdatedLocked tells the syncer that the header in the kernel is not the final one. Later calls
// of Sync wait until the final header is in the list of headers to write. It needs Tier.mu.
func (f *flight) outdatedLocked() {
	if f.headerMade && !f.headerOutdated {
		f.headerOutdated = true
		f.dev.syncer.HeaderOutdated(f)
	}
}

// settledLocked tells the syncer that the kernel is done with the header. The final header, if
// there is one, is in the list of headers to write. It needs Tier.mu.
func (f *flight) settledLocked() {
	f.headerMade = false
	if f.headerOutdated {
		f.headerOutdated = false
		f.dev.syncer.HeaderSettled(f)
	}
}

// updateFlightLocked gives a flight another name and other attributes. It needs t.mu.
func (t *Tier) updateFlightLocked(f *flight, from, to block.Key, a *driver.Attrs) {
	if from != to {
		t.cancelLocked(f.older)
		f.older = nil
		delete(t.mu.flights, from)
		t.mu.flights[to] = f
	}
	rec := t.mu.slots.Record(to, a)
	t.mu.slots.DropRecord(&f.rec)
	f.key, f.rec, f.changed = to, rec, true
	f.outdatedLocked()
	if f.id != 0 {
		t.mu.slots.Rebind(f.id, to, &f.rec)
	}
}

// bindLocked gives the slots of a run to the flights. It needs Tier.mu.
func (t *Tier) bindLocked(s *slotmap.Slab, first uint32, flights []*flight) {
	for i, f := range flights {
		f.id = t.mu.slots.Bind(s, first+uint32(i), f.key, f.source.size, &f.rec)
		f.changed = false
	}
}

// outLocked takes a flight out of the table and returns its reserved bytes to the budget. It
// returns the waiters of the flight. It needs Tier.mu.
func (t *Tier) outLocked(f *flight) []waiter {
	if f.over {
		return nil
	}
	f.over = true
	t.mu.budget.reserved -= f.budget
	t.mu.slots.DropRecord(&f.rec)
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

// share gives the outcome of a flight to its waiters.
func share(waiters []waiter, o driver.Outcome) {
	if o.Status == driver.Stored {
		o = driver.Outcome{Status: driver.Skipped}
	}
	for _, w := range waiters {
		if o.Err != nil {
			o.Err = w.job.t.fail(w.job.op, w.job.keys[w.index], errors.Unwrap(o.Err))
		}
		w.job.abandon(w.index, o)
	}
}

// end finishes a flight that the caller has entered.
func (f *flight) end(o driver.Outcome, waiters []waiter) {
	share(waiters, o)
	f.job.finish(f.index, o)
}

// unbind ends a flight that is not published. dirty says that its header may have been written.
// abandon may have ended the flight before.
func (t *Tier) unbind(f *flight, o driver.Outcome, dirty bool) {
	entered := f.job.enter(f.index)
	t.mu.Lock()
	waiters := t.outLocked(f)
	var bad *writeError
	if f.id != 0 && errors.As(o.Err, &bad) && port.OfDevice(bad.err) && errors.Is(o.Err, block.ErrUnavailable) {
		t.mu.slots.Quarantine(f.id)
	}
	t.freeFlightLocked(f, dirty)
	t.mu.Unlock()
	if entered {
		f.end(o, waiters)
		return
	}
	share(waiters, o)
}

// outcome is that of a flight that err keeps from being published.
func (f *flight) outcome(err error) driver.Outcome {
	switch {
	case errors.Is(err, block.ErrNotFound): // removed or superseded
		return f.job.skipped(f.index, err)
	case port.IsFull(err):
		return f.job.skipped(f.index, fmt.Errorf("%w: %w", block.ErrNoSpace, err))
	case errors.Is(err, errAbandoned) && f.job.t.ctx.Err() != nil:
		return f.job.failed(f.index, block.ErrClosed)
	}
	return f.job.failed(f.index, err)
}

// writeError says why the device could not write a block. It is no error of the block's source.
type writeError struct{ err error }

// Error returns the text of the device's error.
func (e *writeError) Error() string { return e.err.Error() }

// Unwrap returns the error of the device.
func (e *writeError) Unwrap() error { return e.err }

// freeFlightLocked frees the slot of a flight. It needs Tier.mu.
func (t *Tier) freeFlightLocked(f *flight, dirty bool) {
	if f.id == 0 {
		return
	}
	t.mu.slots.Abandon(f.id, dirty)
	f.id = 0
	f.settledLocked()
}

// publish makes the block of a flight visible, in place of the version before.
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
	t.mu.slots.Publish(f.id, sum.Sum)
	if f.changed {
		t.mu.slots.MarkDirty(f.id)
	}
	f.settledLocked()
	f.job.pinLocked(f.id, f.burst)
	t.mu.Unlock()
	f.end(driver.Outcome{Status: driver.Stored, Bytes: f.source.size, Sum: sum}, waiters)
}

// errAbandoned: another goroutine completed the job of the block.
var errAbandoned = errors.New("abandoned")
