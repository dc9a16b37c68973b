package disk

import (
	"fmt"
	"testing"
)

// TestOpenProgress shows that Open tells how much of a device it has read, from its index and, after a crash, from its
// tables: ever more, up to all.
func TestOpenProgress(t *testing.T) {
	type step struct{ done, total int64 }
	var steps []step
	r := newRig(t, 1, 64<<20, func(o *Options) {
		o.Progress = func(_ string, done, total int64) { steps = append(steps, step{done, total}) }
	})
	for i := range 3 * progressSlots / 100 {
		var some []stored
		for j := range 100 {
			some = append(some, stored{keyOf(fmt.Sprint(i, " ", j)), 1, bytesOf(1, 100)})
		}
		r.mustStore(t, some...)
	}
	check := func(how string) {
		t.Helper()
		if len(steps) < 3 {
			t.Fatalf("%s: %v", how, steps)
		}
		for i, s := range steps {
			if last := i == len(steps)-1; s.done <= 0 || (s.done == s.total) != last || i > 0 && (s.done <= steps[i-1].done || s.total != steps[0].total) {
				t.Errorf("%s: step %d of %v", how, i, steps)
			}
		}
	}
	steps = nil
	r.reopen(t)
	check("by the index")
	steps = nil
	r.crash(t)
	check("by the tables")
}
