package peer

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// hintTime is how long a peer that has taken a copy counts as a holder without an announcement.
	hintTime = 10 * time.Second
	// maxHints bounds the hints; beyond it an arbitrary one goes.
	maxHints = 8192
)

// hint is a holder that the index does not have yet: a peer that has just taken a copy, or one that
// offers its own.
type hint struct {
	holder
	offer bool      // stays until it is dropped
	until time.Time // end of other hints
}

// hintTable has the hints by path. Its lock is a leaf.
type hintTable struct {
	count atomic.Int64
	mu    struct {
		sync.Mutex
		byPath map[string][]hint
		swept  time.Time // when lapsed hints were last removed
	}
}

func newHintTable() *hintTable {
	x := &hintTable{}
	x.mu.byPath = make(map[string][]hint)
	return x
}

func (x *hintTable) any() bool { return x.count.Load() > 0 }

// add enters a hint and replaces an older one of that peer.
func (x *hintTable) add(path string, h hint, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sweepLocked(now)
	list := x.mu.byPath[path]
	at := slices.IndexFunc(list, func(k hint) bool { return k.peer.Name() == h.peer.Name() && k.offer == h.offer })
	if at < 0 {
		x.mu.byPath[path] = append(list, h)
		x.count.Add(1)
	} else if list[at].Seq <= h.Seq {
		list[at] = h
	}
}

// sweepLocked removes lapsed hints now and then, and makes room for one more.
func (x *hintTable) sweepLocked(now time.Time) {
	if now.Sub(x.mu.swept) > hintTime {
		x.mu.swept = now
		for path := range x.mu.byPath {
			x.keepLocked(path, func(h *hint) bool { return h.offer || h.until.After(now) })
		}
	}
	for path := range x.mu.byPath {
		if x.count.Load() < maxHints {
			return
		}
		x.keepLocked(path, func(h *hint) bool { return h.offer })
	}
}

// keepLocked drops the hints of a path for which keep is false.
func (x *hintTable) keepLocked(path string, keep func(h *hint) bool) {
	list := x.mu.byPath[path]
	kept := slices.DeleteFunc(list, func(h hint) bool { return !keep(&h) })
	x.count.Add(int64(len(kept) - len(list)))
	if len(kept) == 0 {
		delete(x.mu.byPath, path)
	} else {
		x.mu.byPath[path] = kept
	}
}

// get returns a copy of the hints of a path.
func (x *hintTable) get(path string, now time.Time) []hint {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.mu.byPath[path]) == 0 {
		return nil
	}
	x.keepLocked(path, func(h *hint) bool { return h.offer || h.until.After(now) })
	return slices.Clone(x.mu.byPath[path])
}

// drop removes the hint, but not an offer, that a peer has that version.
func (x *hintTable) drop(path, peer string, seq uint64) {
	x.remove(path, func(h *hint) bool { return !h.offer && h.Seq == seq && h.peer.Name() == peer })
}

// endOffer removes an offer.
func (x *hintTable) endOffer(path, peer string, seq uint64) {
	x.remove(path, func(h *hint) bool { return h.offer && h.Seq == seq && h.peer.Name() == peer })
}

// bury removes hints that a grave makes void.
func (x *hintTable) bury(path string, seq uint64) {
	x.remove(path, func(h *hint) bool { return h.Seq < seq })
}

func (x *hintTable) remove(path string, gone func(h *hint) bool) {
	if !x.any() {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.keepLocked(path, func(h *hint) bool { return !gone(h) })
}

// all returns a copy of all hints.
func (x *hintTable) all(now time.Time) map[string][]hint {
	x.mu.Lock()
	defer x.mu.Unlock()
	list := make(map[string][]hint, len(x.mu.byPath))
	for path := range x.mu.byPath {
		x.keepLocked(path, func(h *hint) bool { return h.offer || h.until.After(now) })
		if hints := x.mu.byPath[path]; len(hints) > 0 {
			list[path] = slices.Clone(hints)
		}
	}
	return list
}

const (
	// badTime is how long a peer that sent bad bytes of a version is not asked for it.
	badTime = time.Minute
	// goneTime is how long a holder that said it no longer has a version does not count as a
	// holder, though the index has it. Usually its feed has announced it by then.
	goneTime = 10 * time.Second
	// declinedTime is how long a peer that takes no copies is not offered any.
	declinedTime = time.Minute
	maxBad       = 4096
)

// badKey is a version at a peer, or the peer.
type badKey struct {
	hash, seq uint64
	peer      string
}

// badTable has copies, or peers, that are bad for a while. Its lock is a leaf.
type badTable struct {
	count atomic.Int64
	mu    struct {
		sync.Mutex
		until map[badKey]time.Time
	}
}

func newBadTable() *badTable {
	x := &badTable{}
	x.mu.until = make(map[badKey]time.Time)
	return x
}

func (x *badTable) any() bool { return x.count.Load() > 0 }

func (x *badTable) add(k badKey, until time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for old := range x.mu.until {
		if len(x.mu.until) < maxBad {
			break
		}
		delete(x.mu.until, old)
	}
	x.mu.until[k] = until
	x.count.Store(int64(len(x.mu.until)))
}

func (x *badTable) drop(k badKey) {
	if !x.any() {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.mu.until, k)
	x.count.Store(int64(len(x.mu.until)))
}

func (x *badTable) has(k badKey, now time.Time) bool {
	if !x.any() {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	until, ok := x.mu.until[k]
	if ok && !until.After(now) {
		delete(x.mu.until, k)
		x.count.Store(int64(len(x.mu.until)))
		return false
	}
	return ok
}

// storingTable has the versions that are being stored, by path. Its lock is a leaf.
type storingTable struct {
	mu struct {
		sync.Mutex
		byPath map[string][]*storingBlock
	}
}

// storingBlock is a version that is being stored.
type storingBlock struct {
	seq  uint64
	void bool // a grave has come
}

// begin enters a version. It returns nil if the version is being stored already.
func (x *storingTable) begin(path string, seq uint64) *storingBlock {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.byPath == nil {
		x.mu.byPath = make(map[string][]*storingBlock)
	}
	for _, b := range x.mu.byPath[path] {
		if b.seq == seq && !b.void {
			return nil
		}
	}
	b := &storingBlock{seq: seq}
	x.mu.byPath[path] = append(x.mu.byPath[path], b)
	return b
}

// end removes it, and reports whether a grave has come meanwhile.
func (x *storingTable) end(path string, b *storingBlock) (void bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	list := slices.DeleteFunc(x.mu.byPath[path], func(k *storingBlock) bool { return k == b })
	if len(list) == 0 {
		delete(x.mu.byPath, path)
	} else {
		x.mu.byPath[path] = list
	}
	return b.void
}

// has reports whether a version of a path that is not void is being stored.
func (x *storingTable) has(path string) bool { return x.latest(path) > 0 }

// latest returns the highest such version, or 0.
func (x *storingTable) latest(path string) (seq uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, b := range x.mu.byPath[path] {
		if !b.void {
			seq = max(seq, b.seq)
		}
	}
	return seq
}

func (x *storingTable) bury(path string, seq uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, b := range x.mu.byPath[path] {
		b.void = b.void || b.seq < seq
	}
}
