package peer

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/tiers/block"
)

// Lost brings reports from the location index of a node to the Tier that is opened over that node
// later: Tell goes into the options of the index, the Lost into those of the Tier.
type Lost struct {
	tier atomic.Pointer[Tier]
}

// NewLost returns a Lost without a tier.
func NewLost() *Lost { return &Lost{} }

// Tell reports that a watched hash has no live holder. It does not block, and it calls no other
// function.
func (l *Lost) Tell(hash uint64) {
	if t := l.tier.Load(); t != nil {
		t.watches.tell(hash)
	}
}

// watchTable has the keys that the engine watches, by the hash of their path.
//
// Its lock is held across calls of the index, so that the two stay consistent. The index calls only
// Lost.Tell, which takes the lock of told, a leaf.
type watchTable struct {
	mu struct {
		sync.Mutex
		keys map[uint64][]block.Key
	}
	wake chan struct{} // capacity 1: told has elements
	told struct {
		sync.Mutex
		hashes map[uint64]struct{} // watched ones: no more than keys has
	}
}

func (w *watchTable) init() {
	w.mu.keys = make(map[uint64][]block.Key)
	w.told.hashes = make(map[uint64]struct{})
	w.wake = make(chan struct{}, 1)
}

func (w *watchTable) tell(hash uint64) {
	w.told.Lock()
	w.told.hashes[hash] = struct{}{}
	w.told.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Watch implements driver.Remote.
func (t *Tier) Watch(key block.Key) {
	w, hash := &t.watches, location.HashPath(key.Path())
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.mu.keys[hash]
	if slices.Contains(list, key) {
		return
	}
	w.mu.keys[hash] = append(list, key)
	t.node.watch(hash)
}

// Unwatch implements driver.Remote.
func (t *Tier) Unwatch(key block.Key) {
	w, hash := &t.watches, location.HashPath(key.Path())
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.mu.keys[hash]
	at := slices.Index(list, key)
	if at < 0 {
		return
	}
	if len(list) > 1 {
		w.mu.keys[hash] = slices.Delete(list, at, at+1)
		return
	}
	delete(w.mu.keys, hash)
	t.node.unwatch(hash)
	w.told.Lock()
	delete(w.told.hashes, hash)
	w.told.Unlock()
}

// take returns the hashes reported since the last call.
func (w *watchTable) take() []uint64 {
	w.told.Lock()
	defer w.told.Unlock()
	hashes := make([]uint64, 0, len(w.told.hashes))
	for hash := range w.told.hashes {
		hashes = append(hashes, hash)
	}
	clear(w.told.hashes)
	return hashes
}

// paths returns the paths of the keys of some hashes that are still watched.
func (w *watchTable) paths(hashes []uint64) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	paths := make([]string, 0, len(hashes))
	for _, hash := range hashes {
		for _, key := range w.mu.keys[hash] {
			paths = append(paths, key.Path())
		}
	}
	return paths
}
