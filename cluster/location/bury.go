package location

// Bury makes a grave, or raises the one that is there, and drops the entries that it voids: those
// of all slots with a Seq below seq. at is when the grave was made, by this node's clock. Bury
// reports whether the grave was new; otherwise it did nothing. A grave is not new if there is one
// as high, if it is past the horizon, if it is older than all of a full graveyard, if seq is 0, or
// if path is longer than MaxPath.
func (x *Index) Bury(hash uint64, seq uint64, dir bool, path string, at int64) bool {
	g := Grave{Hash: hash, Seq: seq, Dir: dir, Path: path, At: at}
	if !x.graves.add(g, x.clock().UnixNano()) {
		return false
	}
	x.buried()
	mixed := x.mix(hash)
	s := x.shard(mixed)
	s.write.Lock()
	n := 0
	s.table.run(mixed, func(e *packed) {
		if e.seq < seq {
			n++
		}
	})
	if n > 0 {
		x.voidLocked(s, n, mixed, seq)
	}
	lost := n > 0 && x.lostLocked(s, hash, mixed)
	s.write.Unlock()
	if lost {
		x.lose(hash)
	}
	return true
}

// fewVoid is the largest number of entries that are removed one by one.
const fewVoid = 16

// voidLocked removes the n entries of a hash below seq. s.write is held.
func (x *Index) voidLocked(s *shard, n int, mixed, seq uint64) {
	if n > fewVoid {
		x.removeLocked(s, n, func(e *packed) bool { return e.hash == mixed && e.seq < seq })
		return
	}
	s.mu.Lock()
	place, _ := s.table.find(mixed, 0)
	for n > 0 {
		e := s.table.at(place)
		if e.seq >= seq {
			place = s.table.wrap(place + 1)
			continue
		}
		x.forgetLocked(s, e)
		s.table.remove(place) // place has the next entry now
		n--
	}
	s.mu.Unlock()
	for s.table.loose() {
		x.rebuildLocked(s, s.table.smaller())
	}
}

// Buried returns the Seq below which versions of hash are void; 0 if none.
func (x *Index) Buried(hash uint64) uint64 {
	if x.graves.count.Load() == 0 {
		return 0
	}
	return x.graves.seq(hash, x.clock().UnixNano())
}

// Graves calls fn for each grave learned at or after since, in the order of learning, until fn
// returns false. No lock is held meanwhile. Graves learned meanwhile are left out.
func (x *Index) Graves(since int64, fn func(g Grave) bool) {
	x.graves.each(since, x.clock().UnixNano(), fn)
}
