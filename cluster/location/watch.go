package location

import "sync"

// watchState is the state of a watch.
type watchState uint8

const (
	watchOn  watchState = iota // there was a live holder at the last check
	watchDue                   // there was none when the watch was made: queued for the teller
)

// teller calls Options.Lost for watches that found no live holder when they were made. One
// goroutine at a time does that, and ends when none is left.
type teller struct {
	mu    sync.Mutex
	due   []uint64 // bounded by the watches for which Lost was not called yet
	works bool
}

// Watch makes Options.Lost be called once when hash has no live holder. That may be so already;
// then another goroutine calls it. Unwatch ends the watch. A second Watch changes nothing. After
// Lost, a hash may be watched again.
//
// Lost means that there was a moment without a live holder after the call of Watch: when Lost runs
// there may be one again.
func (x *Index) Watch(hash uint64) {
	mixed := x.mix(hash)
	s := x.shard(mixed)
	s.write.Lock()
	_, is := s.watched.get(hash)
	due := !is && !x.anyLive(s, mixed)
	if due {
		s.watched.set(hash, watchDue)
	} else if !is {
		s.watched.set(hash, watchOn)
	}
	s.write.Unlock()
	if !due {
		return
	}
	t := &x.teller
	t.mu.Lock()
	defer t.mu.Unlock()
	t.due = append(t.due, hash)
	if !t.works {
		t.works = true
		go x.tell() // ends when t.due is empty
	}
}

// Unwatch ends a watch. A call of Lost may be under way already.
func (x *Index) Unwatch(hash uint64) {
	s := x.shard(x.mix(hash))
	s.write.Lock()
	s.watched.remove(hash)
	s.write.Unlock()
}

// tell calls Lost for the watches that are due.
func (x *Index) tell() {
	t := &x.teller
	for {
		t.mu.Lock()
		due := t.due
		t.due = nil
		t.works = len(due) > 0
		t.mu.Unlock()
		if len(due) == 0 {
			return
		}
		for _, hash := range due {
			s := x.shard(x.mix(hash))
			s.write.Lock()
			state, is := s.watched.get(hash)
			is = is && state == watchDue // else Unwatch came first
			if is {
				s.watched.remove(hash)
			}
			s.write.Unlock()
			if is {
				x.lose(hash)
			}
		}
	}
}

// lose calls Lost. No lock may be held.
func (x *Index) lose(hashes ...uint64) {
	if x.lost == nil {
		return
	}
	for _, hash := range hashes {
		x.lost(hash)
	}
}

// lostLocked ends the watch of hash, if there is one without a live holder, and reports whether it
// did: then the caller calls lose. s.write is held.
func (x *Index) lostLocked(s *shard, hash, mixed uint64) bool {
	if state, is := s.watched.get(hash); !is || state != watchOn || x.anyLive(s, mixed) {
		return false
	}
	s.watched.remove(hash)
	return true
}

// allLostLocked does the same for all watches of s. s.write is held.
func (x *Index) allLostLocked(s *shard) []uint64 {
	var lost []uint64
	for hash, state := range s.watched.m {
		if state == watchOn && !x.anyLive(s, x.mix(hash)) {
			lost = append(lost, hash)
		}
	}
	for _, hash := range lost {
		s.watched.remove(hash)
	}
	return lost
}

// anyLive reports whether a live slot holds the hash. s.write is held.
func (x *Index) anyLive(s *shard, mixed uint64) bool {
	t := &s.table
	place, _ := t.find(mixed, 0)
	for range t.used {
		e := t.at(place)
		if e.hash != mixed || e.empty() {
			return false
		}
		if x.isLive(e.slot()) {
			return true
		}
		place = t.wrap(place + 1)
	}
	return false
}
