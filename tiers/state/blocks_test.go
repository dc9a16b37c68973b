package state

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/invariant"
)

// TestRecount: files come, go, and change between memory and lower tiers at random. The counters that RecountLocked keeps
// say what a count of the entries says. In a build with invariants CheckCountsLocked finds a counter that is off by one.
func TestRecount(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	st := New(Options{Now: time.Now})
	dir := st.Mu.Ix.Alloc()
	st.Mu.Ix.At(dir).Mode = ModeDir | 0o755
	st.Mu.Ix.Link(dir, index.Root, "g")
	var ids []index.ID
	for i := range 2000 {
		if len(ids) == 0 || rng.IntN(3) == 0 {
			id := st.Mu.Ix.Alloc()
			en := st.Mu.Ix.At(id)
			en.Mode, en.Flags = ModeRegular|0o644, index.FlagUncommitted
			st.Mu.Ix.Link(id, dir, strconv.Itoa(i))
			ids = append(ids, id)
			continue
		}
		k := rng.IntN(len(ids))
		id := ids[k]
		en := st.Mu.Ix.At(id)
		was := st.StandingLocked(id, en)
		switch rng.IntN(4) {
		case 0:
			st.RecountLocked(was, Uncounted)
			st.Mu.Ix.Unlink(id)
			ids[k] = ids[len(ids)-1]
			ids = ids[:len(ids)-1]
			continue
		case 1:
			en.Flags ^= index.FlagUncommitted
		case 2:
			en.Blob = uint64(id)
		case 3:
			en.Blob, en.Tiers = 0, 1
		}
		st.RecountLocked(was, st.StandingLocked(id, en))
	}
	resident, hollow := st.censusLocked()
	if resident != st.Mu.blocks || hollow != st.Mu.hollow || resident == 0 || hollow == 0 {
		t.Errorf("counters say %d and %d, entries say %d and %d", st.Mu.blocks, st.Mu.hollow, resident, hollow)
	}
	st.CheckCountsLocked()
	st.RecountLocked(Resident, Hollow)
	defer func() {
		if r := recover(); (r != nil) != invariant.Enabled {
			t.Errorf("a wrong counter: got %v, invariants %t", r, invariant.Enabled)
		}
	}()
	st.CheckCountsLocked()
}
