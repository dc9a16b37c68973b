package disk

import (
	"fmt"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/disk/port"
)

// tierOf is devices that can be chosen, and nothing else.
func tierOf(capacities ...int64) *Tier {
	tier := &Tier{}
	for i, capacity := range capacities {
		d := &device{tier: tier, uuid: format.UUID{byte(i)}, capacity: capacity, port: &port.Port{Down: make(chan struct{})}}
		tier.devices = append(tier.devices, d)
	}
	return tier
}

// TestNoConvoy shows that ranks which load their parts of the same blocks in the same order do not queue up at one
// device after the other: at each step their parts are on most of them (C19).
func TestNoConvoy(t *testing.T) {
	tier := tierOf(1<<30, 1<<30, 1<<30, 1<<30)
	const steps, ranks = 500, 8
	sum := 0
	for step := range steps {
		asked := map[*device]bool{}
		for rank := range ranks {
			d, err := tier.chooseDevice(block.Key{Group: "g", Hash: block.Hash(fmt.Sprintf("m_r%d/%x", rank, step))}, 4096)
			must(t, err)
			asked[d] = true
		}
		sum += len(asked)
	}
	if mean := float64(sum) / steps; mean < 3.3 { // 3.6 for places that are as good as chance
		t.Errorf("8 ranks ask %.2f of 4 devices at a step", mean)
	}
}

// TestChooseDevice shows that blocks spread by capacity, and that the failing of a
// device moves none but its own.
func TestChooseDevice(t *testing.T) {
	tier := tierOf(1<<30, 3<<30)
	const keys = 4000
	place := map[block.Key]*device{}
	count := map[*device]int{}
	for i := range keys {
		key := block.Key{Group: "g", Hash: block.Hash(fmt.Sprint(i))}
		d, err := tier.chooseDevice(key, 4096)
		must(t, err)
		place[key] = d
		count[d]++
	}
	if share := float64(count[tier.devices[1]]) / keys; share < 0.70 || share > 0.80 {
		t.Errorf("the device with 3/4 of the capacity got %.2f of the blocks", share)
	}
	close(tier.devices[0].port.Down)
	for key, was := range place {
		if d, err := tier.chooseDevice(key, 4096); err != nil || was == tier.devices[1] && d != was {
			t.Fatalf("%v moved (%v)", key, err)
		}
	}
	if _, err := tier.chooseDevice(block.Key{Hash: "x"}, 4<<30); err == nil {
		t.Error("a block larger than any device was accepted")
	}
}
