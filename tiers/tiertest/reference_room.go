package tiertest

import (
	"container/list"
	"errors"

	"github.com/kvfs/kvfs/tiers/block"
)

// insert enters h, evicting blocks outside batch as needed, with the leave of the
// Host. It fails with ErrNotFound if the claim was taken away, ErrBudget if too
// much was written, ErrUnavailable if the tier is offline, and ErrNoSpace if there
// is no room without evicting a block of batch (A31) or one that the Host
// keeps.
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

// tryInsert enters h if there is room, or returns which block to evict first.
// Nothing is evicted unless there would be room after all of it.
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

// evict drops a block that is leaving, or notes in kept that the Host does not let
// it go.
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

// dropCopyLocked drops this copy, or returns false if it is gone already, perhaps
// for a later one. It needs r.mu.
func (r *Reference) dropCopyLocked(h *heldBlock) bool {
	e := r.mu.held[h.key]
	if e == nil || e.Value != h {
		return false
	}
	r.dropLocked(e)
	return true
}

// dropOther drops what is held of a block whose store has failed with err: it is
// another version.
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

// lose drops this copy and tells the Host why.
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

// holds reports whether that version of a block is held and stays, and marks it as
// used.
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
