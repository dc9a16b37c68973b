package lane

// seenSlots is how many blocks a seenFilter remembers: 8 MiB of hashes, a few hours
// of a busy engine.
const seenSlots = 1 << 20

// seenFilter remembers, by hash, which blocks were written of late. It forgets one
// when another falls into its slot. So a block is at worst admitted one use later,
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

// AdmitLocked reports whether a block, known by a hash, may be copied down: with Options.SecondHit not when
// it is seen for the first time, which is counted. It remembers the block.
func (l *Lane) AdmitLocked(hash uint64) bool {
	if l.seen == nil || l.seen.again(hash) {
		return true
	}
	l.stats.AdmissionRejected++
	return false
}

// AdmittedLocked reports whether AdmitLocked would say yes. It remembers and counts nothing.
func (l *Lane) AdmittedLocked(hash uint64) bool { return l.seen == nil || l.seen.has(hash) }
