package disk

import (
	"time"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/disk/port"
	"github.com/kvfs/kvfs/tiers/disk/slotmap"
)

// scrubPause is how long the scrubber rests between passes, at least.
const scrubPause = 100 * time.Millisecond

// scrubber reads all blocks of a device over and over, slowly, and drops the bad ones. A bad copy is
// so found while other tiers still have a good one.
type scrubber struct {
	tier    *Tier
	space   *slotmap.Space // guarded by Tier.mu
	port    *port.Port
	staging *port.Staging
	do, try func(ops []directio.Op, slabs ...*slotmap.Slab) error // those of the device
}

// run scrubs until the tier or the device ends.
func (c *scrubber) run() {
	t := c.tier
	for {
		for _, s := range c.slabList() {
			for slot := range s.hdr.Slots {
				if !c.scrubSlot(s, slot) {
					return
				}
			}
		}
		t.counters.lastScrubPass.Store(t.opts.Now().Unix())
		if !c.rest(scrubPause) {
			return
		}
	}
}

// rest waits. It returns false if the scrubber must end.
func (c *scrubber) rest(wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.tier.ctx.Done():
	case <-c.port.Down:
	}
	return false
}

// slabList returns the slabs of the device, with copies of their present headers.
func (c *scrubber) slabList() []scrubSlab {
	t := c.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []scrubSlab
	for _, s := range c.space.ByNumber() {
		list = append(list, scrubSlab{s, s.Header})
	}
	return list
}

// scrubSlab is a slab with its header at the start of the pass.
type scrubSlab struct {
	slab *slotmap.Slab
	hdr  format.SlabHeader
}

// scrubSlot verifies the block in a slot, if there is one, at the configured pace. It returns false
// if the scrubber must end.
func (c *scrubber) scrubSlot(s scrubSlab, slot uint32) bool {
	t := c.tier
	t.mu.Lock()
	f, ok := t.scrubFetchLocked(s, slot)
	t.mu.Unlock()
	if !ok {
		return !c.port.IsDown() && t.ctx.Err() == nil
	}
	began := time.Now()
	err := c.scrubBlock(&f, c.do)
	if err != nil && lossOf(err) != nil {
		err = c.scrubBlock(&f, c.try) // again, as Load does
	}
	if err == nil {
		t.counters.scrubbedBlocks.Add(1)
		t.counters.scrubbedBytes.Add(uint64(f.dest.size))
	} else if kind := lossOf(err); kind != nil {
		t.counters.scrubbedBad.Add(1)
		t.lose(f.id, f.at, kind, err)
	}
	t.mu.Lock()
	t.mu.slots.Unpin(f.id)
	t.mu.Unlock()
	pace := time.Duration(float64(f.bytes()) / float64(t.opts.ScrubBytesPerSecond) * float64(time.Second))
	return c.rest(max(pace-time.Since(began), 0))
}

// scrubFetchLocked pins the block in a slot. It needs t.mu.
func (t *Tier) scrubFetchLocked(s scrubSlab, slot uint32) (f fetch, ok bool) {
	id, ok := t.mu.slots.PinAt(s.slab, s.hdr.Epoch, slot)
	if !ok {
		return f, false
	}
	size, sum := t.mu.slots.Content(id)
	return fetch{id: id, dest: transfer{size: size, sum: sum}, at: t.mu.slots.Place(id)}, true
}

// scrubBlock reads a block in pieces and compares its checksum.
func (c *scrubber) scrubBlock(f *fetch, do func([]directio.Op, ...*slotmap.Slab) error) error {
	size := f.dest.size
	n, _ := c.staging.Pieces(size, 0, 1)
	buf, err := c.staging.Acquire(c.port.Ctx, n)
	if err != nil {
		return err
	}
	defer buf.Release()
	crc := block.NewChecksum()
	for off := int64(0); off < size; off += n {
		piece := buf.Bytes()[:min(n, format.AlignUp(size-off))]
		err := do([]directio.Op{{Kind: directio.Read, File: f.at.File, Mem: piece, Off: f.at.Data + off}})
		if err != nil {
			return err
		}
		crc.Write(piece[:min(n, size-off)])
	}
	if crc.Sum64() != f.dest.sum.Sum {
		return errMismatch
	}
	return nil
}
