package index_test

import (
	"testing"

	"github.com/kvfs/kvfs/tiers/index"
)

// TestExpiries shows that files come out in the order of their times, none before it is due, and none whose time was
// changed or that was freed.
func TestExpiries(t *testing.T) {
	x := index.New()
	ids := map[index.ID]int64{}
	for _, at := range []int64{30, 10, 20, 11, 5, 6} {
		id := x.Alloc()
		x.SetExpires(id, at)
		ids[id] = at
	}
	for id, at := range ids {
		switch at {
		case 5:
			x.SetExpires(id, 40)
			ids[id] = 40
		case 6:
			x.Free(id)
		}
	}
	for _, want := range []struct{ now, at int64 }{{9, 0}, {20, 10}, {20, 11}, {20, 20}, {20, 0}, {30, 30}, {39, 0}, {40, 40}, {99, 0}} {
		if id := x.Due(want.now); ids[id] != want.at || x.Expires(id) != want.at {
			t.Fatalf("due at %d: entry %d of %d, %d; want %d", want.now, id, ids[id], x.Expires(id), want.at)
		}
	}
}
