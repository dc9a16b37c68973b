package catalog

import (
	"sync"
	"sync/atomic"
)

// tomb says that versions up to seq are removed from older packs.
type tomb struct {
	seq   uint64
	at    int64 // in packs of this time and before
	until int64
}

// waiting is a tomb in the queue.
type waiting struct {
	hash  uint64
	until int64 // the tomb may have a later one
}

// tombSweep is how many tombs one add looks at to find those that are over: more than it makes.
const tombSweep = 8

// tombs remembers removals. When there are too many, the one entered first is forgotten. One that is
// over takes memory until those entered before it are over too.
type tombs struct {
	most  int          // constant
	count atomic.Int64 // lets Put skip the lock if there are none

	mu struct {
		sync.RWMutex
		byHash  map[uint64]tomb
		queue   []waiting // one for each of byHash, from head on, in order of entry
		head    int
		dropped uint64
	}
}

// add enters a removal.
func (t *tombs) add(hash, seq uint64, at, until, now int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweepLocked(now, tombSweep)
	old, is := t.mu.byHash[hash]
	if !is && until <= now {
		return
	}
	if !is {
		if len(t.mu.byHash) >= t.most {
			t.popLocked()
			t.mu.dropped++
		}
		t.mu.queue = append(t.mu.queue, waiting{hash, until})
	}
	if is && old.until <= now {
		old = tomb{until: old.until} // it is over
	}
	t.mu.byHash[hash] = tomb{max(seq, old.seq), max(at, old.at), max(until, old.until)}
	t.count.Store(int64(len(t.mu.byHash)))
}

// popLocked forgets the first of the queue.
func (t *tombs) popLocked() {
	delete(t.mu.byHash, t.mu.queue[t.mu.head].hash)
	t.nextLocked()
	t.count.Store(int64(len(t.mu.byHash)))
}

// nextLocked takes the first from the queue.
func (t *tombs) nextLocked() {
	if t.mu.head++; t.mu.head > len(t.mu.queue)/2 {
		t.mu.queue = append(t.mu.queue[:0:0], t.mu.queue[t.mu.head:]...)
		t.mu.head = 0
	}
}

// sweepLocked looks at the first of the queue, at most at most of them, and forgets those that are
// over.
func (t *tombs) sweepLocked(now int64, most int) {
	for range most {
		if t.mu.head == len(t.mu.queue) || t.mu.queue[t.mu.head].until > now {
			return
		}
		first := t.mu.queue[t.mu.head]
		if until := t.mu.byHash[first.hash].until; until > now {
			t.nextLocked()
			t.mu.queue = append(t.mu.queue, waiting{first.hash, until})
			continue
		}
		t.popLocked()
	}
}

// removed reports whether this version is removed from a pack of that time.
func (t *tombs) removed(hash, seq uint64, at, now int64) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	g, is := t.mu.byHash[hash]
	return is && seq <= g.seq && at <= g.at && now < g.until
}

// stats adds to st, and forgets the tombs that are over.
func (t *tombs) stats(st *Stats, now int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweepLocked(now, len(t.mu.byHash))
	st.Tombs, st.TombsDropped = int64(len(t.mu.byHash)), t.mu.dropped
	st.TombBytes = 2*st.Tombs*(8+24+1) + 16*int64(cap(t.mu.queue))
}
