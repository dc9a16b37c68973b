package disk

import (
	"time"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/disk/ledger"
)

// scrubPause is how long the scrubber rests between passes, at least.
const scrubPause = 100 * time.Millisecond

// scrub reads all blocks of a device over and over, slowly, and drops the bad ones. A bad copy is
// so found while other tiers still have a good one.
func (d *device) scrub() {
	t := d.tier
	for {
		for _, s := range d.slabList() {
			for slot := range s.hdr.Slots {
				if !d.scrubSlot(s, slot) {
					return
				}
			}
		}
		t.counters.lastScrubPass.Store(t.opts.Now().Unix())
		if !d.rest(scrubPause) {
			return
		}
	}
}

// rest waits. It returns false if the scrubber must end.
func (d *device) rest(wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-d.tier.ctx.Done():
	case <-d.port.Down:
	}
	return false
}

// slabList returns the slabs of the device, with copies of their present headers.
func (d *device) slabList() []scrubSlab {
	t := d.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []scrubSlab
	for _, s := range d.mu.space.ByNumber() {
		list = append(list, scrubSlab{s, s.Header})
	}
	return list
}

// scrubSlab is a slab with its header at the start of the pass.
type scrubSlab struct {
	slab *ledger.Slab
	hdr  format.SlabHeader
}

// scrubSlot verifies the block in a slot, if there is one, at the configured pace. It returns false
// if the scrubber must end.
func (d *device) scrubSlot(s scrubSlab, slot uint32) bool {
	t := d.tier
	t.mu.Lock()
	f, ok := t.scrubFetchLocked(s, slot)
	t.mu.Unlock()
	if !ok {
		return !d.port.IsDown() && t.ctx.Err() == nil
	}
	began := time.Now()
	err := d.scrubBlock(&f, d.do)
	if err != nil && lossOf(err) != nil {
		err = d.scrubBlock(&f, d.try) // again, as Load does
	}
	if err == nil {
		t.counters.scrubbedBlocks.Add(1)
		t.counters.scrubbedBytes.Add(uint64(f.dest.size))
	} else if kind := lossOf(err); kind != nil {
		t.counters.scrubbedBad.Add(1)
		t.lose(f.id, f.at, kind, err)
	}
	t.mu.Lock()
	t.mu.ledger.Unpin(f.id)
	t.mu.Unlock()
	pace := time.Duration(float64(f.bytes()) / float64(t.opts.ScrubBytesPerSecond) * float64(time.Second))
	return d.rest(max(pace-time.Since(began), 0))
}

// scrubFetchLocked pins the block in a slot. It needs t.mu.
func (t *Tier) scrubFetchLocked(s scrubSlab, slot uint32) (f fetch, ok bool) {
	id, ok := t.mu.ledger.PinAt(s.slab, s.hdr.Epoch, slot)
	if !ok {
		return f, false
	}
	size, sum := t.mu.ledger.Content(id)
	return fetch{id: id, dest: transfer{size: size, sum: sum}, at: t.mu.ledger.Place(id)}, true
}

// scrubBlock reads a block in pieces and compares its checksum.
func (d *device) scrubBlock(f *fetch, do func([]directio.Op, ...*ledger.Slab) error) error {
	size := f.dest.size
	n := d.staging.Piece(size, 0)
	buf, err := d.staging.Acquire(d.port.Ctx, n)
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
