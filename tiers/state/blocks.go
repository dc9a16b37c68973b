package state

import (
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/invariant"
)

// Standing is how a file counts in Mu.Blocks and Mu.Hollow.
type Standing uint8

// The standings of a file.
const (
	Uncounted Standing = iota // it is not committed, or has no name
	Resident                  // it counts in Mu.Blocks: in memory
	Hollow                    // it counts in Mu.Hollow: in secondary tiers only
)

// StandingLocked returns how a file that has a name counts.
func (st *State) StandingLocked(id index.ID, en *index.Entry) Standing {
	switch {
	case en.IsDir() || !en.Committed():
		return Uncounted
	case st.ResidentLocked(id, en):
		return Resident
	}
	return Hollow
}

// RecountLocked notes that a file counted as was and counts as is from now on. Nothing else changes the two counters.
func (st *State) RecountLocked(was, is Standing) {
	st.countLocked(was, -1)
	st.countLocked(is, 1)
}

func (st *State) countLocked(s Standing, n int64) {
	switch s {
	case Resident:
		st.Mu.Blocks += n
	case Hollow:
		st.Mu.Hollow += n
	}
}

// CheckCountsLocked compares the counters with the entries, in builds with invariants. It is too slow for each Lock.
func (st *State) CheckCountsLocked() {
	if invariant.Enabled {
		resident, hollow := st.censusLocked()
		invariant.Check(st.Mu.Blocks == resident && st.Mu.Hollow == hollow,
			"blocks %d and hollow %d, entries say %d and %d", st.Mu.Blocks, st.Mu.Hollow, resident, hollow)
	}
}

// censusLocked counts the entries by their standing.
func (st *State) censusLocked() (resident, hollow int64) {
	var n [Hollow + 1]int64
	st.Mu.Ix.Descend(index.Root, func(id index.ID, en *index.Entry) bool {
		n[st.StandingLocked(id, en)]++
		return true
	})
	return n[Resident], n[Hollow]
}
