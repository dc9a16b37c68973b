package tiertest

import (
	"container/list"
	"errors"

	"github.com/kvfs/kvfs/tiers/block"
)

// insert enters h and evicts blocks outside batch as needed, if the Host allows it. It fails with
// ErrNotFound if the claim was cancelled, ErrBudget if too much was written, and ErrUnavailable if
// the tier is offline. It fails with ErrNoSpace if it would have to evict a block of batch (A31) or
// one that the Host keeps.
func (r *Reference) insert(h *heldBlock, c *claim, batch map[block.Key]bool, force bool) error {
	kept := make(map[*heldBlock]bool)
	for {
		victim, err := r.tryInsert(h, c, batch, kept, force)
		if victim == nil {
			return err
		}
		r.evict(victim, kept)
	}
}

// tryInsert enters h if there is room, or returns the block to evict first. Nothing is evicted
// unless evictions would make enough room.
func (r *Reference) tryInsert(
	h *heldBlock, c *claim, batch map[block.Key]bool, kept map[*heldBlock]bool, force bool,
) (victim *heldBlock, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.mu.offline != nil:
		return nil, block.ErrUnavailable
	case c.removed:
		return nil, block.ErrNotFound
	case !force && r.opts.BudgetBytes > 0 && r.mu.written+h.size > r.opts.BudgetBytes:
		return nil, block.ErrBudget
	}
	used, count := r.mu.used+h.size, len(r.mu.held)+1
	old := r.mu.held[h.key]
	if old != nil {
		used -= old.Value.(*heldBlock).size
		count--
	}
	fits := func() bool {
		return used <= r.opts.CapacityBytes && (r.opts.MaxBlocks == 0 || count <= r.opts.MaxBlocks)
	}
	for e := r.mu.order.Back(); e != nil && !fits(); e = e.Prev() {
		v := e.Value.(*heldBlock)
		if batch[v.key] || kept[v] || v.leaving || v.attrs.Pinned {
			continue
		}
		if victim == nil {
			victim = v
		}
		used -= v.size
		count--
	}
	if !fits() {
		return nil, block.ErrNoSpace
	}
	if victim != nil {
		victim.leaving = true
		return victim, nil
	}
	if old != nil {
		r.dropLocked(old)
	}
	r.enterLocked(h)
	if !force {
		r.mu.written += h.size
	}
	r.mu.stats.Stored++
	r.mu.stats.StoredBytes += uint64(h.size)
	return nil, nil
}

// evict drops a block that is leaving, or records in kept that the Host keeps it.
func (r *Reference) evict(h *heldBlock, kept map[*heldBlock]bool) {
	r.mu.Lock()
	host := r.mu.host
	r.mu.Unlock()
	leave := host == nil || host.MayEvict(h.key)

	r.mu.Lock()
	defer r.mu.Unlock()
	h.leaving = false
	if !leave {
		kept[h] = true
		return
	}
	if r.dropCopyLocked(h) {
		r.mu.stats.Evicted++
	}
}

// enterLocked puts h into the tables, as the most recently used. It needs r.mu.
func (r *Reference) enterLocked(h *heldBlock) {
	r.mu.held[h.key] = r.mu.order.PushFront(h)
	r.mu.used += h.size
}

// dropLocked takes one block out of the tables. It needs r.mu.
func (r *Reference) dropLocked(e *list.Element) {
	h := r.mu.order.Remove(e).(*heldBlock)
	delete(r.mu.held, h.key)
	r.mu.used -= h.size
}

// dropCopyLocked drops this copy, or returns false if it is gone already, maybe replaced by a later
// one. It needs r.mu.
func (r *Reference) dropCopyLocked(h *heldBlock) bool {
	e := r.mu.held[h.key]
	if e == nil || e.Value != h {
		return false
	}
	r.dropLocked(e)
	return true
}

// dropOther drops another version of a block whose store has failed with err.
func (r *Reference) dropOther(key block.Key, c *claim, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c == nil || c.removed || errors.Is(err, block.ErrClosed) {
		return
	}
	if e := r.mu.held[key]; e != nil {
		r.dropLocked(e)
	}
}

// lose drops this copy and reports why to the Host.
func (r *Reference) lose(h *heldBlock, err error) bool {
	r.mu.Lock()
	dropped, host := r.dropCopyLocked(h), r.mu.host
	if dropped && errors.Is(err, block.ErrCorrupt) {
		r.mu.stats.Corrupt++
	}
	r.mu.Unlock()
	if dropped {
		r.tell(host, h.key, err)
	}
	return dropped
}

// holds reports whether this version of a block is held and stays, and marks it as used.
func (r *Reference) holds(key block.Key, seq uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.mu.held[key]
	if e == nil {
		return false
	}
	h := e.Value.(*heldBlock)
	if h.attrs.Seq != seq || h.leaving {
		return false
	}
	r.mu.order.MoveToFront(e)
	return true
}
