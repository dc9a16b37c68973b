package hybrid

import (
	"testing"
)

// TestAllocations shows that a search in four groups allocates its answer and nothing for each block.
func TestAllocations(t *testing.T) {
	const units = 4000 // of 16 tokens
	spec := Spec{HashBlockSize: 16}
	for i, kind := range []Kind{Full, SlidingWindow, WindowMLA, Mamba} {
		spec.Groups = append(spec.Groups, Group{Kind: kind, BlockSize: 16, Window: 1024, Variant: i, Eagle: i == 1})
	}
	c, err := New(spec)
	must(t, err)
	exists := func(g, u int) bool { return u < 3990 || g == 0 }
	c.Lookup(units*16, units, exists) // fills the pool
	hit := c.Lookup(units*16, units, exists)
	for _, n := range []int{100, units} {
		// Under the race detector the pool forgets at random.
		if got := testing.AllocsPerRun(50, func() { c.Lookup(n*16, n, exists) }); got > 8 {
			t.Errorf("Lookup of %d blocks: %v allocations", n, got)
		}
	}
	if got := testing.AllocsPerRun(50, func() { c.Fetch(hit.Tokens, 0, units, hit.Load, exists) }); got > 2 {
		t.Errorf("Fetch: %v allocations", got)
	}
}
