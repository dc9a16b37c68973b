package fs

import (
	"fmt"
	"testing"

	"github.com/kvfs/kvfs/tiers/index"
)

// TestRefs shows that no more is given back than there was.
func TestRefs(t *testing.T) {
	r := newRefs()
	const id = index.ID(5)
	r.looked(id)
	r.looked(id)
	r.opened(id, 9)
	if got := r.forgot(id, 1); got != 1 || !r.knows(id) {
		t.Errorf("1 of 2: %d", got)
	}
	if got := r.forgot(id, 3); got != 1 || r.knows(id) {
		t.Errorf("3 of 1: %d", got)
	}
	if r.closed(id, 8) || !r.closed(id, 9) || r.closed(id, 9) {
		t.Error("a handle is closed as often as it was opened")
	}
	r.looked(id)
	r.opened(id, 9)
	r.opened(id, 9)
	names, reads := r.takeAll()
	if fmt.Sprint(names, reads) != "map[5:1] map[{5 9}:2]" {
		t.Errorf("left over: %v %v", names, reads)
	}
	if r.knows(id) || !r.knows(index.Root) {
		t.Error("after all was taken")
	}
}
