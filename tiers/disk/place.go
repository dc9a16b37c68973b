package disk

import (
	"math"

	"github.com/kvfs/kvfs/tiers/block"
)

// chooseDevice returns the device for a block: of those that are online and could
// ever hold it, the one with the highest score, by rendezvous hashing weighted by
// capacity. So a device that fails leaves the places of the blocks on others as they
// are. It fails with ErrUnavailable, or with ErrTooLarge.
func (t *Tier) chooseDevice(key block.Key, size int64) (*device, error) {
	var best *device
	bestScore := math.Inf(-1)
	err := block.ErrUnavailable
	for _, d := range t.devices {
		if d.isDown() {
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

// largest is the size of the largest block that the device could hold.
func (d *device) largest() int64 { return d.capacity&^(pageBytes-1) - 2*pageBytes }

// score is -capacity/ln(u), u in (0, 1) by the key and the device. It is the same in
// every process: what replaces a block is on the same device.
func (d *device) score(key block.Key) float64 {
	if len(d.tier.devices) == 1 {
		return 0
	}
	var buf [256]byte
	h := block.Sum(appendPath(append(buf[:0], d.uuid[:]...), key)).Sum
	// The checksum is linear; make all bits depend on all.
	h = (h ^ h>>32) * 0xd6e8feb86659fd93
	h = (h ^ h>>32) * 0xd6e8feb86659fd93
	u := (float64(h>>11) + 0.5) / (1 << 53)
	return -float64(d.capacity) / math.Log(u)
}
