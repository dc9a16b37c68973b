package peer

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// hintTime is how long a peer that has taken a copy counts as a holder without an announcement.
	hintTime = 10 * time.Second
	// answerTime is how long the answer of another node counts, about a name that this node does not know.
	answerTime = hintTime

	// maxCopies and maxAnswers bound the hints; beyond them the oldest go. An answer takes some 250 bytes with its path
	// (BenchmarkHints), all of them 16 MiB.
	maxCopies  = 8192
	maxAnswers = 65536
	// maxAnswersOf bounds the answers about one path: as many as a store may want copies.
	maxAnswersOf = maxReplicas
)

// hintKind says where a hint comes from.
type hintKind uint8

const (
	offered  hintKind = iota // the peer offers its own: stays until it is dropped
	copied                   // the peer has just taken a copy
	answered                 // another node answered that the peer has it, best first
	listed                   // the peer, of this zone, told the name in a listing
	farther                  // likewise, of another zone
)

// hint is a holder that the index does not have: yet, or because this node does not know the name.
type hint struct {
	holder
	kind  hintKind
	until time.Time // end of hints that are not offers
}

// hintTable has the hints by path. Its lock is a leaf, and is held only for as long as the hints of one path need,
// however many others there are.
type hintTable struct {
	count atomic.Int64
	mu    struct {
		sync.Mutex
		offers          map[string][]hint // bounded by maxTakes
		copies, answers generations
		offerCount      int
	}
}

func newHintTable() *hintTable {
	x := &hintTable{}
	x.mu.offers = make(map[string][]hint)
	x.mu.copies.limit, x.mu.answers.limit = maxCopies/2, maxAnswers/2
	return x
}

func (x *hintTable) any() bool { return x.count.Load() > 0 }

// lock locks the table at a time. unlock follows.
func (x *hintTable) lock(now time.Time) {
	x.mu.Lock()
	x.mu.copies.turn(now)
	x.mu.answers.turn(now)
}

func (x *hintTable) unlock() {
	x.count.Store(int64(x.mu.offerCount + x.mu.copies.count() + x.mu.answers.count()))
	x.mu.Unlock()
}

// add enters an offer or a copy, and replaces an older one of that peer.
func (x *hintTable) add(path string, h hint, now time.Time) {
	x.lock(now)
	defer x.unlock()
	if h.kind != offered {
		x.mu.copies.set(path, entered(x.mu.copies.get(path), h, now))
		return
	}
	list := entered(x.mu.offers[path], h, now)
	x.mu.offerCount += len(list) - len(x.mu.offers[path])
	x.mu.offers[path] = list
}

// answer replaces the answers about a path by those of an owner: holders, best first.
func (x *hintTable) answer(path string, holders []holder, now time.Time) {
	list := make([]hint, 0, min(len(holders), maxAnswersOf))
	for i := range holders[:cap(list)] {
		list = append(list, hint{holders[i], answered, now.Add(answerTime)})
	}
	x.lock(now)
	defer x.unlock()
	x.mu.answers.set(path, list)
}

// list enters what a peer told in a listing after better answers. It does nothing if there are maxAnswersOf others.
func (x *hintTable) list(path string, h hint, now time.Time) {
	x.lock(now)
	defer x.unlock()
	if list := entered(x.mu.answers.get(path), h, now); len(list) <= maxAnswersOf {
		x.mu.answers.set(path, list)
	}
}

// entered returns a copy of list without what has lapsed, with h after the hints of its kind and of those before it.
// What that peer told before goes, unless its version is later, or is the same and of a kind that says more.
func entered(list []hint, h hint, now time.Time) []hint {
	kept := make([]hint, 0, len(list)+1)
	for _, k := range list {
		switch {
		case k.lapsed(now):
			continue
		case k.peer.Name() != h.peer.Name():
			kept = append(kept, k)
			continue
		case k.Seq > h.Seq:
			h = k
		case k.Seq == h.Seq && k.kind < h.kind:
			k.until = later(k.until, h.until)
			h = k
		}
	}
	at := slices.IndexFunc(kept, func(k hint) bool { return k.kind > h.kind })
	if at < 0 {
		at = len(kept)
	}
	return slices.Insert(kept, at, h)
}

func (h *hint) lapsed(now time.Time) bool { return h.kind != offered && !h.until.After(now) }

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// get appends the hints of a path to buf: offers, then copies, then answers, the best first.
func (x *hintTable) get(path string, now time.Time, buf []hint) []hint {
	x.lock(now)
	defer x.unlock()
	for _, list := range [...][]hint{x.mu.offers[path], x.mu.copies.get(path), x.mu.answers.get(path)} {
		for i := range list {
			if !list[i].lapsed(now) {
				buf = append(buf, list[i])
			}
		}
	}
	return buf
}

// drop removes the hint, but not an offer, that a peer has that version.
func (x *hintTable) drop(path, peer string, seq uint64, now time.Time) {
	x.remove(path, now, func(h *hint) bool { return h.kind != offered && h.Seq == seq && h.peer.Name() == peer })
}

// endOffer removes an offer.
func (x *hintTable) endOffer(path, peer string, seq uint64, now time.Time) {
	x.remove(path, now, func(h *hint) bool { return h.kind == offered && h.Seq == seq && h.peer.Name() == peer })
}

// endAnswer removes the answer that a peer has that version.
func (x *hintTable) endAnswer(path, peer string, seq uint64, now time.Time) {
	x.remove(path, now, func(h *hint) bool { return h.kind >= answered && h.Seq == seq && h.peer.Name() == peer })
}

// bury removes hints that a grave makes void.
func (x *hintTable) bury(path string, seq uint64, now time.Time) {
	x.remove(path, now, func(h *hint) bool { return h.Seq < seq })
}

func (x *hintTable) remove(path string, now time.Time, gone func(h *hint) bool) {
	if !x.any() {
		return
	}
	x.lock(now)
	defer x.unlock()
	x.mu.copies.remove(path, gone)
	x.mu.answers.remove(path, gone)
	old := x.mu.offers[path]
	list := slices.DeleteFunc(old, func(h hint) bool { return gone(&h) })
	x.mu.offerCount += len(list) - len(old)
	if len(list) == 0 {
		delete(x.mu.offers, path)
	} else {
		x.mu.offers[path] = list
	}
}

// copied returns the paths that have copies.
func (x *hintTable) copied(now time.Time) []string {
	x.lock(now)
	defer x.unlock()
	g := &x.mu.copies
	paths := make([]string, 0, len(g.young.byPath)+len(g.old.byPath))
	paths = slices.AppendSeq(paths, maps.Keys(g.young.byPath))
	return slices.AppendSeq(paths, maps.Keys(g.old.byPath))
}

const (
	// badTime is how long a peer that sent bad bytes of a version is not asked for it.
	badTime = time.Minute
	// goneTime is how long a holder that said it no longer has a version does not count as a
	// holder, though the index has it. Usually its feed has announced it by then.
	goneTime = 10 * time.Second
	// declinedTime is how long a peer that takes no copies is not offered any.
	declinedTime = time.Minute
)

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
