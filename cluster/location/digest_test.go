package location

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestEntryDigest shows that entries that differ in one field have different digests.
func TestEntryDigest(t *testing.T) {
	base := Entry{Hash: 1, Seq: 2, Size: 3, Mode: 0o100644, UID: 5, GID: 6}
	seen := map[uint64]int{base.Digest(): 0}
	for i, change := range []func(e *Entry){
		func(e *Entry) { e.Hash++ }, func(e *Entry) { e.Seq++ }, func(e *Entry) { e.Size++ }, func(e *Entry) { e.Mode++ },
		func(e *Entry) { e.UID++ }, func(e *Entry) { e.GID++ }, func(e *Entry) { e.Memory = true },
		func(e *Entry) { e.Hash, e.Seq = e.Seq, e.Hash }, func(e *Entry) { *e = Entry{} },
	} {
		e := base
		change(&e)
		if before, ok := seen[e.Digest()]; ok {
			t.Errorf("changes %d and %d have one digest", before, i+1)
		}
		seen[e.Digest()] = i + 1
	}
}

// TestDigests compares the sums of two slots with those of a map, before and after Retain and Keep.
func TestDigests(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	var lost []uint64
	x := New(Options{Lost: func(hash uint64) { lost = append(lost, hash) }})
	held := [2]map[uint64]Entry{{}, {}}
	for slot := range Slot(2) {
		x.SetLive(slot, true)
		for range 5000 {
			e := Entry{Hash: rnd.Uint64(), Seq: rnd.Uint64(), Size: rnd.Int64N(MaxSize), Mode: rnd.Uint32(), Memory: rnd.IntN(2) == 0}
			if rnd.IntN(2) == 0 { // more attributes than classes have numbers
				e.Mode = 0o100644
			}
			x.Put(slot, e)
			held[slot][e.Hash] = e
		}
	}
	check := func() {
		t.Helper()
		for slot, entries := range held {
			for _, bits := range []int{0, 8, 13} {
				want, got := make([]uint64, 1<<bits), make([]uint64, 1<<bits)
				for _, e := range entries {
					want[e.Hash>>(64-bits)] += e.Digest()
				}
				if x.Digests(Slot(slot), got); !slices.Equal(got, want) {
					t.Errorf("slot %d, %d bits: other sums", slot, bits)
				}
			}
		}
	}
	check()
	keep := func(hash uint64) bool { return hash%3 != 0 }
	for hash := range held[1] {
		if !keep(hash) {
			x.Watch(hash)
			delete(held[1], hash)
		}
	}
	watched := x.Stats().Watched
	x.Retain(1, keep)
	check()
	if int64(len(lost)) != watched || watched == 0 {
		t.Errorf("%d of %d watches told", len(lost), watched)
	}
	lost = nil
	keep = func(hash uint64) bool { return hash%5 != 0 }
	for slot := range held {
		for hash := range held[slot] {
			x.Watch(hash)
			if !keep(hash) {
				delete(held[slot], hash)
			}
		}
	}
	left := x.Stats().Watched - int64(len(held[0])+len(held[1]))
	x.Keep(keep)
	check()
	if int64(len(lost)) != left || left == 0 || x.Stats().Entries != int64(len(held[0])+len(held[1])) {
		t.Errorf("%d of %d watches told, %d entries", len(lost), left, x.Stats().Entries)
	}
}
