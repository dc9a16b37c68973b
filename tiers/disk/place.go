package disk

import (
	"math"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/disk/slotmap"
)

// chooseDevice returns the device for a block: of the online devices that could hold the block, the
// one with the highest score. It uses rendezvous hashing weighted by capacity. If a device fails,
// blocks on other devices keep their places. It fails with ErrUnavailable or ErrTooLarge.
func (t *Tier) chooseDevice(key block.Key, size int64) (*device, error) {
	var best *device
	bestScore := math.Inf(-1)
	err := block.ErrUnavailable
	for _, d := range t.devices {
		if d.port.IsDown() {
			continue
		}
		if d.largest() < size {
			err = block.ErrTooLarge
			continue
		}
		if s := d.score(key); s > bestScore {
			best, bestScore = d, s
		}
	}
	if best == nil {
		return nil, err
	}
	return best, nil
}

// deviceOf returns the device that a slab is on.
func (t *Tier) deviceOf(s *slotmap.Slab) *device { return t.devices[s.Space.Device] }

// largest is the size in bytes of the largest block that the device could hold.
func (d *device) largest() int64 { return d.capacity&^(format.PageBytes-1) - 2*format.PageBytes }

// score is -capacity/ln(u). The key and the device give u in (0, 1). Every process computes the
// same score, so a block and its replacement are on the same device.
func (d *device) score(key block.Key) float64 {
	if len(d.tier.devices) == 1 {
		return 0
	}
	var buf [256]byte
	h := block.Sum(format.AppendPath(append(buf[:0], d.uuid[:]...), key)).Sum
	// The checksum is linear. Make every bit depend on all others.
	h = (h ^ h>>32) * 0xd6e8feb86659fd93
	h = (h ^ h>>32) * 0xd6e8feb86659fd93
	u := (float64(h>>11) + 0.5) / (1 << 53)
	return -float64(d.capacity) / math.Log(u)
}

// placeOf returns where the slot of id lies. The place is constant while the slot is in use.
func (t *Tier) placeOf(id slotmap.SlotID) slotmap.Place {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.slots.Place(id)
}
