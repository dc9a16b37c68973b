package disk

import (
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/disk/port"
	"github.com/kvfs/kvfs/tiers/disk/recovery"
	"github.com/kvfs/kvfs/tiers/disk/slotmap"
)

const (
	// checkpointEvery is the shortest time between two checkpoints.
	checkpointEvery = time.Minute
	// checkpointShare: a checkpoint waits until so many times its bytes were written to the device, so that the device
	// wears off by a sixteenth more at most.
	checkpointShare = 16
	// checkpointEntry is about what a block takes in the index.
	checkpointEntry = 160
	// checkpointSlots is how many slots are copied under one hold of the lock.
	checkpointSlots = 1024
)

// runCheckpoints writes the index now and then, so that a start after a crash reads only the tables of slabs that changed
// since. It ends with the tier or the device.
func (d *device) runCheckpoints() {
	tick := time.NewTicker(checkpointEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-d.tier.ctx.Done():
			return
		case <-d.port.Down:
			return
		}
		if !d.checkpointDue() {
			continue
		}
		if err := d.checkpoint(); err != nil {
			d.tier.log.Warn("index not written: the next start reads more of the SSD", zap.String("device", d.dir), zap.Error(err))
		}
	}
}

// checkpointDue reports whether enough was written since the last checkpoint.
func (d *device) checkpointDue() bool {
	d.tier.mu.Lock()
	blocks := d.mu.space.Usage().Blocks
	d.tier.mu.Unlock()
	written := d.sinceIndex.Load()
	return written > 0 && written >= checkpointShare*checkpointEntry*blocks
}

// checkpoint writes the index of the slabs that are settled.
func (d *device) checkpoint() error {
	t := d.tier
	d.sinceIndex.Store(0)
	if err := d.syncer.Flush(); err != nil {
		return err
	}
	t.mu.Lock()
	slabs := d.mu.space.ByNumber()
	t.mu.Unlock()
	return d.root.Checkpoint(func(w *recovery.IndexWriter) error {
		for _, s := range slabs {
			h, list, ok := d.settled(s)
			if !ok {
				continue
			}
			w.Slab(&h)
			for i := range list {
				w.Slot(&list[i])
			}
		}
		if d.port.IsDown() {
			return block.ErrUnavailable // blocks may have been forgotten meanwhile
		}
		return nil
	})
}

// settled returns the headers of a slab for the index. ok is false if the slab may not be described: what is durable in
// its table may differ from the slot map. From settled on, the next write to the slab marks it first.
//
// A writer counts itself in Writes, and then looks whether the slab is marked. settled takes the mark away, and then
// looks at Writes. So one of them sees the other.
func (d *device) settled(s *slotmap.Slab) (h format.SlabHeader, list []format.SlotHeader, ok bool) {
	t := d.tier
	t.mu.Lock()
	h = s.Header
	t.mu.Unlock()
	s.Changed.Store(false)
	if s.Writes.Load() != 0 || !d.syncer.Settled(&s.Sync) {
		return h, nil, false
	}
	for first := uint32(0); first < h.Slots; first += checkpointSlots {
		t.mu.Lock()
		part, ok := t.mu.slots.Settled(s, h.Epoch, first, checkpointSlots)
		t.mu.Unlock()
		if !ok {
			return h, nil, false
		}
		list = append(list, part...)
	}
	return h, list, true
}

// mark has the directory know that slabs change, before the first write to each since the index was written. It does not
// wait for a device that is down.
func (d *device) mark(slabs []*slotmap.Slab) error {
	for _, s := range slabs {
		if s.Changed.Load() {
			continue
		}
		done := make(chan error, 1)
		d.marks.Go(func() { done <- d.markSlab(s) }) // ends when the device answers
		select {
		case err := <-done:
			if err != nil {
				return err
			}
		case <-d.port.Down:
			return block.ErrUnavailable
		}
	}
	return nil
}

// markSlab marks one slab, unless another writer has.
func (d *device) markSlab(s *slotmap.Slab) error {
	d.marking.Lock()
	defer d.marking.Unlock()
	if d.port.IsDown() { // it was left behind by those who wanted the mark
		return block.ErrUnavailable
	}
	if s.Changed.Load() {
		return nil
	}
	err := d.port.Call(port.ByMarker, func() error { return d.root.Mark(s.Header.Number) })
	if err == nil {
		s.Changed.Store(true)
	}
	return err
}
