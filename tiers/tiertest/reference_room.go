package tiertest

import (
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
	victim, ok := r.mu.victim(h, func(v *heldBlock) bool { return batch[v.key] || kept[v] })
	switch {
	case !ok:
		return nil, block.ErrNoSpace
	case victim != nil:
		victim.leaving = true
		return victim, nil
	}
	if old := r.mu.held[h.key]; old != nil {
		r.mu.drop(old)
	}
	r.mu.enter(h)
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
	if r.mu.dropCopy(h) {
		r.mu.stats.Evicted++
	}
}

// dropOther drops another version of a block whose store has failed with err.
func (r *Reference) dropOther(key block.Key, c *claim, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c == nil || c.removed || errors.Is(err, block.ErrClosed) {
		return
	}
	if e := r.mu.held[key]; e != nil {
		r.mu.drop(e)
	}
}

// lose drops this copy and reports why to the Host.
func (r *Reference) lose(h *heldBlock, err error) bool {
	r.mu.Lock()
	dropped, host := r.mu.dropCopy(h), r.mu.host
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
