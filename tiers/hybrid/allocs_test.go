package hybrid

import (
	"testing"
)

// large returns a Coordinator for four groups, and a presence of 4,000 blocks of each. The
// prompt is hashed in blocks of 16 tokens.
func large(t testing.TB, kinds ...Kind) (*Coordinator, int, Exists) {
	const units = 4000
	spec := Spec{HashBlockSize: 16}
	for i, kind := range kinds {
		spec.Groups = append(spec.Groups, Group{Kind: kind, BlockSize: 16, Window: 1024, Variant: i, Eagle: i == 1})
	}
	c, err := New(spec)
	must(t, err)
	have := make([][units]bool, len(kinds))
	for g := range have {
		for u := range units {
			have[g][u] = u < 3990 || g == 0
		}
	}
	return c, units, func(g, u int) bool { return have[g][u] }
}

// TestAllocations shows that a search allocates its answer and nothing for each block.
func TestAllocations(t *testing.T) {
	c, units, exists := large(t, Full, SlidingWindow, WindowMLA, Mamba)
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
