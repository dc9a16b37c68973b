package location

import (
	"container/heap"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// MaxPath is the length in bytes of the longest path that a grave can have.
const MaxPath = 4096

// Grave is one grave, for replication.
type Grave struct {
	Hash, Seq uint64
	Dir       bool
	Path      string
	At        int64 // when it was made: nanoseconds since the epoch, by our clock
	Learned   int64 // the same: when we learned it
}

// grave is a stored grave.
type grave struct {
	Grave
	since  int64  // start of its age; see age
	number uint64 // its number in the log; 0 when it is gone
	index  int    // in byAge
}

// graves is the graveyard. The age of a grave counts from when it was made, not from when it was
// learned: otherwise nodes that exchange graves would keep them for ever.
type graves struct {
	horizon  time.Duration
	max      int
	maxBytes int64 // of all paths

	count atomic.Int64 // lets Put skip the clock if there are none

	mu struct {
		sync.RWMutex
		byHash  sparse[uint64, *grave]
		byAge   ageHeap  // the same graves, the oldest at the top
		log     []logged // in order of number and of learned; may have graves that are gone
		number  uint64   // the last number
		learned int64    // of the last: never goes back, even if the clock does
		paths   int64    // bytes of all paths
	}
}

// logged is the log entry of a grave.
type logged struct {
	number  uint64
	learned int64
	g       *grave
}

const (
	// sweepStep is how many expired graves one Bury removes: more than it makes.
	sweepStep = 8
	// graveChunk is how many graves are handled without a break in the lock.
	graveChunk = 1024
)

// age returns the start of the age of g: when g was made, but no later than when it was learned. A time of 0 or below
// counts as unknown. Seq is a time by which a maker whose clock is behind is corrected, unless versions are ahead of the
// clock: then it would make the grave young again at each node that learns it.
func age(g *Grave) int64 {
	if g.At <= 0 {
		return g.Learned
	}
	made := g.At
	if g.Seq <= uint64(g.Learned) {
		made = max(made, int64(g.Seq))
	}
	return min(made, g.Learned)
}

func (y *graves) expired(g *grave, now int64) bool {
	return now-g.since >= int64(y.horizon)
}

// seq returns the version below which versions of hash are void; 0 if none are.
func (y *graves) seq(hash uint64, now int64) uint64 {
	y.mu.RLock()
	defer y.mu.RUnlock()
	g, ok := y.mu.byHash.get(hash)
	if !ok || y.expired(g, now) {
		return 0
	}
	return g.Seq
}

// add enters a grave that is learned now, and reports whether it is new. It is not new if it is
// past the horizon, or older than all of a full graveyard.
func (y *graves) add(told Grave, now int64) bool {
	if told.Seq == 0 || len(told.Path) > MaxPath {
		return false
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	y.sweepLocked(now, sweepStep)
	told.Learned = max(now, y.mu.learned)
	told.At = age(&told)
	g := &grave{Grave: told, since: told.At}
	if y.expired(g, now) {
		return false
	}
	if old, ok := y.mu.byHash.get(told.Hash); ok {
		if !y.expired(old, now) {
			if told.Seq <= old.Seq {
				return false
			}
			g.since = max(g.since, old.since)
		}
		y.removeLocked(old)
	}
	for len(y.mu.byAge) > 0 && (len(y.mu.byAge) >= y.max || y.mu.paths+int64(len(told.Path)) > y.maxBytes) {
		if oldest := y.mu.byAge[0]; oldest.since > g.since {
			return false
		}
		y.removeLocked(y.mu.byAge[0])
	}
	// The path may be part of a message, which must not stay in memory with it.
	g.Path = strings.Clone(told.Path)
	y.enterLocked(g)
	return true
}

func (y *graves) enterLocked(g *grave) {
	y.mu.learned = g.Learned
	y.mu.number++
	g.number = y.mu.number
	y.mu.byHash.set(g.Hash, g)
	heap.Push(&y.mu.byAge, g)
	y.mu.paths += int64(len(g.Path))
	if len(y.mu.log) > 2*len(y.mu.byAge)+sparseMin {
		y.compactLocked()
	}
	y.mu.log = append(y.mu.log, logged{g.number, g.Learned, g})
	y.count.Store(int64(len(y.mu.byAge)))
}

func (y *graves) removeLocked(g *grave) {
	y.mu.byHash.remove(g.Hash)
	heap.Remove(&y.mu.byAge, g.index)
	y.mu.paths -= int64(len(g.Path))
	// The log may refer to it for a while: that must not keep the path.
	g.number, g.Path = 0, ""
	y.count.Store(int64(len(y.mu.byAge)))
}

// compactLocked removes log entries of graves that are gone, and frees their memory.
func (y *graves) compactLocked() {
	live := make([]logged, 0, len(y.mu.byAge)+sparseMin)
	for _, l := range y.mu.log {
		if l.number == l.g.number {
			live = append(live, l)
		}
	}
	y.mu.log = live
	y.mu.byAge = slices.Clone(y.mu.byAge)
}

// sweepLocked removes at most most expired graves. It reports whether there may be more.
func (y *graves) sweepLocked(now int64, most int) bool {
	for range most {
		if len(y.mu.byAge) == 0 || !y.expired(y.mu.byAge[0], now) {
			return false
		}
		y.removeLocked(y.mu.byAge[0])
	}
	return true
}

// sweep removes all expired graves.
func (y *graves) sweep(now int64) {
	for more := true; more; {
		y.mu.Lock()
		more = y.sweepLocked(now, graveChunk)
		if !more && len(y.mu.log) > 2*len(y.mu.byAge)+sparseMin {
			y.compactLocked()
		}
		y.mu.Unlock()
	}
}

// each calls fn, with no lock held, for each grave learned at or after since.
func (y *graves) each(since, now int64, fn func(g Grave) bool) {
	y.mu.RLock()
	last := y.mu.number
	y.mu.RUnlock()
	done := uint64(0)
	chunk := make([]Grave, 0, graveChunk)
	for done < last {
		chunk = chunk[:0]
		y.mu.RLock()
		log := y.mu.log
		start, _ := slices.BinarySearchFunc(log, struct{}{}, func(l logged, _ struct{}) int {
			if l.number <= done || l.learned < since {
				return -1
			}
			return 1
		})
		log = log[start:min(len(log), start+graveChunk)]
		if len(log) == 0 {
			y.mu.RUnlock()
			return
		}
		for _, l := range log {
			if l.number == l.g.number && l.number <= last && !y.expired(l.g, now) {
				chunk = append(chunk, l.g.Grave)
			}
		}
		done = log[len(log)-1].number
		y.mu.RUnlock()
		for _, g := range chunk {
			if !fn(g) {
				return
			}
		}
	}
}

// bytes returns the memory of all graves.
func (y *graves) bytes() int64 {
	y.mu.RLock()
	defer y.mu.RUnlock()
	return int64(len(y.mu.byAge))*int64(unsafe.Sizeof(grave{})) + y.mu.paths + y.mu.byHash.bytes() +
		int64(cap(y.mu.byAge))*8 + int64(cap(y.mu.log))*int64(unsafe.Sizeof(logged{}))
}

// ageHeap has the oldest grave at its top; see container/heap.
type ageHeap []*grave

func (h ageHeap) Len() int { return len(h) }

func (h ageHeap) Less(i, j int) bool {
	if h[i].since != h[j].since {
		return h[i].since < h[j].since
	}
	return h[i].number < h[j].number
}

func (h ageHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push appends g, which is a *grave.
func (h *ageHeap) Push(g any) {
	entry := g.(*grave)
	entry.index = len(*h)
	*h = append(*h, entry)
}

// Pop removes the last one.
func (h *ageHeap) Pop() any {
	last := len(*h) - 1
	g := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return g
}
