package tiertest

import (
	"container/list"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/invariant"
)

// copies has what a Reference holds, and which store may enter which key. Reference.mu guards it.
type copies struct {
	maxBytes int64

	// INVARIANT: held and order have the same blocks.
	held  map[block.Key]*list.Element // of *heldBlock
	order *list.List                  // front: most recently used
	// INVARIANT: used is the sum of the sizes held, at most maxBytes.
	used int64

	storing map[block.Key]*claim // the running store of each key
	durable []*heldBlock         // blocks made durable by the last Sync or Close, oldest first
}

// heldBlock is one copy. It is constant once in the tables, except leaving.
type heldBlock struct {
	key   block.Key
	data  []byte
	size  int64 // of the block; data differs if it was damaged
	sum   block.Checksum
	attrs driver.Attrs

	// leaving: the Host is being asked about its eviction, so a Store may not rely on the copy any
	// more. Guarded by Reference.mu.
	leaving bool
}

// claim is the right of one store job to enter one key.
type claim struct {
	key     block.Key
	seq     uint64
	removed bool // Remove, Update or a later Store has cancelled it; guarded by Reference.mu
}

func newCopies(maxBytes int64) copies {
	return copies{
		maxBytes: maxBytes,
		held:     make(map[block.Key]*list.Element), order: list.New(), storing: make(map[block.Key]*claim),
	}
}

// check panics if an invariant is broken. Beyond 256 blocks it does not check the sum, which would
// make each call linear.
func (x *copies) check() {
	invariant.Check(len(x.held) == x.order.Len(), "held %d, order %d", len(x.held), x.order.Len())
	invariant.Check(x.used >= 0 && x.used <= x.maxBytes, "used %d", x.used)
	if len(x.held) > 256 {
		return
	}
	var sum int64
	for e := x.order.Front(); e != nil; e = e.Next() {
		sum += e.Value.(*heldBlock).size
	}
	invariant.Check(sum == x.used, "used %d, sum of sizes %d", x.used, sum)
}

// claimAll claims the keys of a store, except keys whose same version another job is storing.
func (x *copies) claimAll(j *refJob) {
	j.claims = make([]*claim, len(j.Blocks))
	for i := range j.Blocks {
		key, seq := j.Blocks[i].Key, j.Blocks[i].Attrs.Seq
		if c := x.storing[key]; c != nil && c.seq == seq {
			continue
		}
		x.cancel(key)
		j.claims[i] = &claim{key: key, seq: seq}
		x.storing[key] = j.claims[i]
	}
}

// cancel cancels the claim of the running store of key.
func (x *copies) cancel(key block.Key) {
	if c := x.storing[key]; c != nil {
		c.removed = true
		delete(x.storing, key)
	}
}

// victim returns the block to evict first for h, which may replace the copy of its key: nil if h
// has room. It passes over pinned and leaving blocks, and those for which stays returns true. ok is
// false if evictions cannot make enough room.
func (x *copies) victim(h *heldBlock, stays func(v *heldBlock) bool) (victim *heldBlock, ok bool) {
	used := x.used + h.size
	if old := x.held[h.key]; old != nil {
		used -= old.Value.(*heldBlock).size
	}
	for e := x.order.Back(); e != nil && used > x.maxBytes; e = e.Prev() {
		v := e.Value.(*heldBlock)
		if v.leaving || v.attrs.Pinned || stays(v) {
			continue
		}
		if victim == nil {
			victim = v
		}
		used -= v.size
	}
	return victim, used <= x.maxBytes
}

// enter puts h into the tables, as the most recently used.
func (x *copies) enter(h *heldBlock) {
	x.held[h.key] = x.order.PushFront(h)
	x.used += h.size
}

// drop takes one block out of the tables.
func (x *copies) drop(e *list.Element) {
	h := x.order.Remove(e).(*heldBlock)
	delete(x.held, h.key)
	x.used -= h.size
}

// dropCopy drops this copy, or returns false if it is gone already, maybe replaced by a later one.
func (x *copies) dropCopy(h *heldBlock) bool {
	e := x.held[h.key]
	if e == nil || e.Value != h {
		return false
	}
	x.drop(e)
	return true
}

// clear drops all blocks.
func (x *copies) clear() {
	clear(x.held)
	x.order.Init()
	x.used = 0
}

// oldestFirst returns the blocks held, the least recently used first.
func (x *copies) oldestFirst() []*heldBlock {
	all := make([]*heldBlock, 0, len(x.held))
	for e := x.order.Back(); e != nil; e = e.Prev() {
		all = append(all, e.Value.(*heldBlock))
	}
	return all
}
