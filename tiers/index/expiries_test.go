package index_test

import (
	"testing"

	"github.com/kvfs/kvfs/tiers/index"
)

// TestExpiries shows that times come out in order, and none before it is due.
func TestExpiries(t *testing.T) {
	var x index.Expiries
	for _, at := range []int64{30, 10, 20, 10} {
		x.Add(at, index.ID(at+1))
	}
	for _, want := range []struct {
		now, at int64
		ok      bool
	}{{9, 0, false}, {20, 10, true}, {20, 10, true}, {20, 20, true}, {20, 0, false}, {30, 30, true}, {99, 0, false}} {
		at, id, ok := x.Due(want.now)
		if at != want.at || ok != want.ok || ok && id != index.ID(at+1) {
			t.Fatalf("due at %d: %d of entry %d, %v; want %d, %v", want.now, at, id, ok, want.at, want.ok)
		}
	}
}
