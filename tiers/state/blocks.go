package state

import (
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/invariant"
)

// Standing is how a file counts: see BlocksLocked.
type Standing uint8

// The standings of a file.
const (
	Uncounted Standing = iota // it is not committed, or has no name
	Resident                  // in memory
	Hollow                    // in secondary tiers only
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

// BlocksLocked returns how many committed files are in memory, and how many are in secondary tiers only.
func (st *State) BlocksLocked() (resident, hollow int64) { return st.Mu.blocks, st.Mu.hollow }

// RecountLocked notes that a file counted as was and counts as is from now on. Nothing else changes the two counters.
func (st *State) RecountLocked(was, is Standing) {
	st.countLocked(was, -1)
	st.countLocked(is, 1)
}

func (st *State) countLocked(s Standing, n int64) {
	switch s {
	case Resident:
		st.Mu.blocks += n
	case Hollow:
		st.Mu.hollow += n
	}
}

// CheckCountsLocked compares the counters with the entries, in builds with invariants. It is too slow for each Lock.
func (st *State) CheckCountsLocked() {
	if invariant.Enabled {
		resident, hollow := st.censusLocked()
		invariant.Check(st.Mu.blocks == resident && st.Mu.hollow == hollow,
			"blocks %d and hollow %d, entries say %d and %d", st.Mu.blocks, st.Mu.hollow, resident, hollow)
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
