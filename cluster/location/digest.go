package location

import "math/bits"

// Digest returns a number that two entries have in common only if they are equal. The chance of a
// mistake is 1 in 2^64. It is the same on every node and in every version.
func (e *Entry) Digest() uint64 {
	size := uint64(e.Size) << 1
	if e.Memory {
		size |= 1
	}
	d := uint64(0)
	for _, word := range [...]uint64{e.Hash, e.Seq, size, uint64(e.Mode)<<32 | uint64(e.UID), uint64(e.GID)} {
		d = (d ^ word) * digestFactor
		d ^= d >> 32
	}
	return d * digestFactor
}

// digestFactor is odd and has its bits spread evenly: that of splitmix64.
const digestFactor = 0xbf58476d1ce4e5b9

// Digests adds the Digest of each entry of slot to the sum of its part: sums has a power of two of
// parts, and the top bits of Entry.Hash are the number of the part. Changes made meanwhile may be
// missing. Look-ups do not wait for it. Other changes wait for a 256th of it.
func (x *Index) Digests(slot Slot, sums []uint64) {
	shift := 64 - bits.TrailingZeros(uint(len(sums)))
	x.each(slot, func(s *shard, e *packed) {
		h := x.holder(s, e, x.unmix(e.hash))
		sums[h.Hash>>shift] += h.Digest()
	})
}

// Retain deletes the entries of slot for which keep returns false. keep must not use the index.
func (x *Index) Retain(slot Slot, keep func(hash uint64) bool) {
	var gone []uint64
	x.each(slot, func(_ *shard, e *packed) {
		if hash := x.unmix(e.hash); !keep(hash) {
			gone = append(gone, hash)
		}
	})
	for _, hash := range gone {
		x.Delete(slot, hash)
	}
}

// Keep deletes the entries of all slots for which keep returns false. keep must not use the index. It takes about 20 ns an
// entry; look-ups go on meanwhile.
func (x *Index) Keep(keep func(hash uint64) bool) {
	gone := func(e *packed) bool { return !e.empty() && !keep(x.unmix(e.hash)) }
	for i := range x.shards {
		s := &x.shards[i]
		s.write.Lock()
		x.clearLocked(s, gone)
		lost := x.allLostLocked(s)
		s.write.Unlock()
		x.lose(lost...)
	}
}

// each calls fn for the entries of slot, with write of their shard held.
func (x *Index) each(slot Slot, fn func(s *shard, e *packed)) {
	if x.Count(slot) == 0 {
		return
	}
	for i := range x.shards {
		s := &x.shards[i]
		s.write.Lock()
		for _, b := range s.table.blocks {
			for j := range b {
				if e := &b[j]; e.slot() == slot && !e.empty() {
					fn(s, e)
				}
			}
		}
		s.write.Unlock()
	}
}
