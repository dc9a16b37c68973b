package disk

import (
	"fmt"
	"sync/atomic"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/port"
)

// syncRequest is one call of Sync on its way through all devices.
type syncRequest struct {
	t    *Tier
	done func(error)
	left atomic.Int64
	err  atomic.Pointer[error] // the first
}

// End records that one device is done.
func (r *syncRequest) End(err error) {
	if err != nil {
		r.err.CompareAndSwap(nil, &err)
	}
	if r.left.Add(-1) > 0 {
		return
	}
	if p := r.err.Load(); p != nil {
		r.done(r.t.fail("sync", block.Key{}, port.KindOf(*p)))
		return
	}
	r.done(nil)
}

// Sync makes earlier changes durable; see driver.Syncer. It leaves out a failed device once the Host
// has been told which blocks went with it.
func (t *Tier) Sync(done func(error)) {
	r := &syncRequest{t: t, done: done}
	r.left.Store(int64(len(t.devices)) + 1)
	t.mu.Lock()
	closing := t.mu.closing
	t.mu.Unlock()
	if closing {
		r.left.Store(1)
		go r.End(block.ErrClosed) // not from within Sync
		return
	}
	online := 0
	for _, d := range t.devices {
		switch {
		case !d.port.IsDown() && d.syncer.Ask(r):
			online++
		case d.lostDone.Load():
			r.left.Add(-1)
		default:
			r.End(block.ErrUnavailable)
		}
	}
	var err error
	if online == 0 {
		err = block.ErrUnavailable
	}
	go r.End(err) // not from within Sync
}

// SyncFiles implements syncer.Medium. It also finds out that the directory was deleted.
func (d *device) SyncFiles(ops []directio.Op, names bool) error {
	err := d.do(ops)
	if err == nil && names {
		err = d.port.Call(port.BySyncer, d.root.SyncDir)
	}
	if err == nil {
		err = d.port.Call(port.BySyncer, d.root.CheckThere)
	}
	d.tier.counters.syncs.Add(1)
	return err
}

// Synced saves how many bytes were written today.
func (d *device) Synced() error {
	if d.tier.opts.DailyWriteBudgetBytes == 0 {
		return nil
	}
	return d.port.Call(port.BySyncer, func() error { return d.tier.saveBudget(d) })
}

// SyncBroken takes the device offline, unless it is closing.
func (d *device) SyncBroken(err error) {
	t := d.tier
	t.mu.Lock()
	closing := t.mu.closing
	t.mu.Unlock()
	if !closing {
		go d.port.Fail(fmt.Sprintf("sync failed: %v", err)) // ends the calls of Sync; the caller may be in one of them
	}
}
