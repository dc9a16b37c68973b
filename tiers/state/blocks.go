package state

import (
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/invariant"
)

// ApplyLocked makes a change of an entry, and everything in the catalog that follows from it.
func (st *State) ApplyLocked(e catalog.Edit) catalog.Change { return st.Mu.Apply(e) }

// CheckCountsLocked compares the counters with the entries, in builds with invariants. It is too slow for each Lock.
func (st *State) CheckCountsLocked() {
	if invariant.Enabled {
		resident, hollow := st.Mu.Census()
		b, h := st.Mu.Blocks()
		invariant.Check(b == resident && h == hollow, "blocks %d and hollow %d, entries say %d and %d", b, h, resident, hollow)
	}
}
