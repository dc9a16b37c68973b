package tiers

import (
	"hash/maphash"

	"github.com/kvfs/kvfs/tiers/index"
)

// seenSlots is how many blocks a seenFilter remembers: 8 MiB of hashes, a few hours
// of a busy engine.
const seenSlots = 1 << 20

// seenFilter remembers, by hash, which blocks were written of late. It forgets one
// when another falls into its slot, so a block is at worst admitted one use later,
// and with a chance of 2^-44 one use too early.
type seenFilter struct{ slots []uint64 }

func newSeenFilter() *seenFilter { return &seenFilter{slots: make([]uint64, seenSlots)} }

// again reports whether the block was seen before, and remembers it.
func (s *seenFilter) again(hash uint64) bool {
	slot := &s.slots[hash%seenSlots]
	if *slot == hash {
		return true
	}
	*slot = hash
	return false
}

// has reports whether the block was seen before.
func (s *seenFilter) has(hash uint64) bool { return s.slots[hash%seenSlots] == hash }

// pathHashLocked is the hash by which policies and filters know a name again.
func (e *Engine) pathHashLocked(id index.ID) uint64 {
	e.mu.scratch = e.mu.ix.AppendPath(e.mu.scratch[:0], id)
	return maphash.Bytes(e.seed, e.mu.scratch)
}
