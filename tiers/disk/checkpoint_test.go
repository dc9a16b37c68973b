package disk

import (
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// TestCheckpoint shows that a start after a kill takes from the index what has not changed since, whether a clean stop or a
// checkpoint has written it, and reads the tables of the other slabs: what was stored or removed since the index was written is as
// it was left.
func TestCheckpoint(t *testing.T) {
	for _, how := range []string{"clean stop", "checkpoint"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t, 1, 16<<20, func(o *Options) { o.SlabBytes = 1 << 20 })
			blocks := r.fill(t, 400, 20_000)
			must(t, r.sync(t))
			if how == "checkpoint" {
				must(t, r.checkpoint())
			} else {
				r.reopen(t)
			}
			all := r.indexed()
			if all < 8 {
				t.Fatalf("%d slabs in the index", all)
			}
			r.Remove([]block.Key{blocks[0].key})
			must(t, r.sync(t)) // its slot is free
			newer := stored{keyOf("newer"), 1000, bytesOf(1000, 20_000)}
			r.mustStore(t, newer)
			must(t, r.sync(t))
			next := r.crash(t)
			if n := next.indexed(); n >= all || n < all-3 {
				t.Errorf("%d slabs are taken from the index, it has %d, of which one or two have changed", n, all)
			}
			if p := next.presence(t, blocks[0].key); p != driver.Miss {
				t.Errorf("a removed block came back: %v", p)
			}
			next.mustLoad(t, newer)
			for _, b := range blocks[1:] {
				next.mustLoad(t, b)
			}
		})
	}
}
