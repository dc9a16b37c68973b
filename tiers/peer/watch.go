package peer

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

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

// runNotifier reports losses to the Host, until t.ctx ends. It is a goroutine of its own because
// the index reports them during calls of the engine.
//
// A key with a hint is not lost: the index will have its holder soon. The index is asked again when
// the hint has lapsed.
func (t *Tier) runNotifier() {
	var held map[uint64]struct{} // with hints
	var lapse <-chan time.Time
	stop := func() {}
	defer func() { stop() }()
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-t.watches.wake:
			for _, hash := range t.watches.take() {
				if t.settleLost(hash) {
					continue
				}
				if held == nil {
					held = make(map[uint64]struct{})
					lapse, stop = t.after(hintTimer, hintTime)
				}
				held[hash] = struct{}{}
			}
		case <-lapse:
			for hash := range held {
				t.watchAgain(hash)
			}
			held, lapse = nil, nil
		}
	}
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

// settleLost reports the keys of a hash to the Host. False: hints delay some.
func (t *Tier) settleLost(hash uint64) bool {
	w := &t.watches
	var gone []block.Key
	w.mu.Lock()
	kept := slices.DeleteFunc(w.mu.keys[hash], func(key block.Key) bool {
		if t.hints.any() && len(t.hints.get(key.Path(), t.now(), nil)) > 0 {
			return false
		}
		gone = append(gone, key)
		return true
	})
	if len(kept) == 0 {
		delete(w.mu.keys, hash)
	} else {
		w.mu.keys[hash] = kept
	}
	w.mu.Unlock()
	for _, key := range gone {
		t.lost(key, block.ErrUnavailable)
	}
	return len(kept) == 0
}

// watchAgain asks the index once more.
func (t *Tier) watchAgain(hash uint64) {
	t.watches.mu.Lock()
	defer t.watches.mu.Unlock()
	if len(t.watches.mu.keys[hash]) > 0 {
		t.node.watch(hash)
	}
}
