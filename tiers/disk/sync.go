package disk

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/block"
)

// syncRequest is one call of Sync on its way through all devices.
type syncRequest struct {
	t    *Tier
	done func(error)
	left atomic.Int64
	err  atomic.Pointer[error] // the first
}

// end takes note that one device is through.
func (r *syncRequest) end(err error) {
	if err != nil {
		r.err.CompareAndSwap(nil, &err)
	}
	if r.left.Add(-1) > 0 {
		return
	}
	if p := r.err.Load(); p != nil {
		r.done(r.t.fail("sync", block.Key{}, kindOf(*p)))
		return
	}
	r.done(nil)
}

// Sync makes durable what was done before; see tiers.Syncer. A device that has
// failed is left out once the Host has been told what went with it.
func (t *Tier) Sync(done func(error)) {
	r := &syncRequest{t: t, done: done}
	r.left.Store(int64(len(t.devices)) + 1)
	t.mu.Lock()
	closing := t.mu.closing
	t.mu.Unlock()
	if closing {
		r.left.Store(1)
		go r.end(block.ErrClosed) // not from within Sync
		return
	}
	online := 0
	for _, d := range t.devices {
		switch {
		case d.requestSync(r):
			online++
		case d.lostDone.Load():
			r.left.Add(-1)
		default:
			r.end(block.ErrUnavailable)
		}
	}
	var err error
	if online == 0 {
		err = block.ErrUnavailable
	}
	go r.end(err) // not from within Sync
}

// requestSync queues a call of Sync behind all changes made so far. False: the device
// is down.
func (d *device) requestSync(r *syncRequest) bool {
	t := d.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	if d.state != "online" || d.finished {
		return false
	}
	d.syncs = append(d.syncs, r)
	kick(d.keeperKick)
	return true
}

// takeSyncs returns the calls that came so far; the headers to write now are all that
// they wait for, besides the sync itself. It returns none while the kernel has a header
// that was outdated before them: what replaces it is not in the list yet.
func (d *device) takeSyncs() []*syncRequest {
	t := d.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(d.heldSyncs) == 0 {
		if len(d.syncs) == 0 {
			return nil
		}
		d.heldSyncs, d.syncs = d.syncs, nil
		d.heldFor = slices.Collect(maps.Keys(d.outdated))
	}
	for _, f := range d.heldFor {
		if _, ok := d.outdated[f]; ok {
			return nil
		}
	}
	list := d.heldSyncs
	d.heldSyncs, d.heldFor = nil, nil
	if len(d.syncs) > 0 {
		kick(d.keeperKick)
	}
	return list
}

// passSyncs hands calls whose headers are written to the syncer.
func (d *device) passSyncs(list []*syncRequest, err error) {
	if len(list) == 0 {
		return
	}
	t := d.tier
	t.mu.Lock()
	if d.state != "online" {
		err = block.ErrUnavailable
	}
	if err == nil {
		d.syncReady = append(d.syncReady, list...)
	}
	t.mu.Unlock()
	if err == nil {
		kick(d.syncKick)
		return
	}
	for _, r := range list {
		r.end(err)
	}
}

// endSyncs ends, with err or success, all calls that have not begun to sync, and
// refuses those to come.
func (d *device) endSyncs(err error) {
	t := d.tier
	t.mu.Lock()
	list := slices.Concat(d.syncReady, d.heldSyncs, d.syncs)
	d.syncReady, d.heldSyncs, d.heldFor, d.syncs = nil, nil, nil, nil
	d.finished = true
	t.mu.Unlock()
	for _, r := range list {
		r.end(err)
	}
}

// runSyncer syncs for callers of Sync, all that have come by then at once; and
// unasked, after so many bytes or so much time.
func (d *device) runSyncer() {
	t := d.tier
	tick := time.NewTicker(t.opts.SyncInterval)
	defer tick.Stop()
	for {
		timed := false
		select {
		case <-d.syncKick:
		case <-tick.C:
			timed = true
		case <-d.syncStop:
			return
		case <-d.down:
			return
		}
		t.mu.Lock()
		list := d.syncReady
		d.syncReady = nil
		needed := len(list) > 0 || d.unsynced >= t.opts.SyncBytes || timed && d.unsynced > 0
		t.mu.Unlock()
		if !needed {
			continue
		}
		d.syncFor(list)
	}
}

// syncFor syncs and ends the calls in list. If the device fails meanwhile, it does so
// without waiting for it.
func (d *device) syncFor(list []*syncRequest) {
	result := make(chan error, 1)
	go func() { result <- d.syncSlabs() }()
	var err error
	select {
	case err = <-result:
	case <-d.down:
		err = block.ErrUnavailable
	}
	if err != nil {
		d.tier.log.Warn("sync failed", zap.String("device", d.dir), zap.Error(err))
	}
	for _, r := range list {
		r.end(err)
	}
}

// syncSlabs makes durable all that was written to slabs, and the names of the slabs.
func (d *device) syncSlabs() error {
	t := d.tier
	var slabs []*slab
	var ops []directio.Op
	t.mu.Lock()
	if err := d.unsyncable; err != nil {
		t.mu.Unlock()
		return err
	}
	for s := range d.slabs {
		if s.dirty {
			s.dirty = false
			s.syncs++
			slabs = append(slabs, s)
			ops = append(ops, directio.Op{Kind: directio.Sync, File: s.file})
		}
	}
	names := d.namesDirty
	d.namesDirty, d.unsynced = false, 0
	t.mu.Unlock()

	err := d.do(ops)
	if err == nil && names {
		err = call(&d.syncSince, d.home.syncDir)
	}
	if err == nil {
		err = call(&d.syncSince, d.home.checkThere)
	}
	if ofDevice(err) || isFull(err) || errors.Is(err, errDeleted) {
		d.syncFailed(err)
	}
	if err == nil && t.opts.DailyWriteBudgetBytes > 0 {
		err = call(&d.syncSince, func() error { return t.saveBudget(d) })
	}
	t.counters.syncs.Add(1)
	var doomed []*slab
	t.mu.Lock()
	for _, s := range slabs {
		if s.syncs--; s.syncs == 0 && s.doomed {
			doomed = append(doomed, s)
		}
		s.dirty = s.dirty || err != nil
	}
	d.namesDirty = d.namesDirty || names && err != nil
	t.mu.Unlock()
	for _, s := range doomed {
		_ = s.file.Close() // deleted: nothing is to be kept
	}
	return err
}

// syncFailed keeps a sync from ever succeeding again: the kernel reports once what it could
// not write, and the next sync would succeed without it. The device goes offline, unless
// it is being closed.
func (d *device) syncFailed(err error) {
	t := d.tier
	t.mu.Lock()
	d.unsyncable = err
	closing := t.mu.closing
	t.mu.Unlock()
	if !closing {
		go d.fail(fmt.Sprintf("sync failed: %v", err)) // ends the calls of Sync, which may be what the caller is in
	}
}
