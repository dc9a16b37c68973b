package transfer

import (
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

var _ driver.Sweeper = (*host)(nil)

// Sweep implements driver.Sweeper. One sweep runs at a time. A call during a sweep makes it begin again.
func (h *host) Sweep() {
	h.e.Mu.Lock()
	defer h.e.Mu.Unlock()
	if h.again = true; h.sweeping || h.e.Mu.Closed {
		return
	}
	h.sweeping = true
	h.e.Work.Go(h.sweep) // ends when no call has come meanwhile, or with the engine
}

func (h *host) sweep() {
	e := h.e
	for {
		var ids []index.ID
		e.Mu.Lock()
		if h.sweeping = h.again && !e.Mu.Closed; !h.sweeping {
			e.Mu.Unlock()
			return
		}
		h.again = false
		e.Mu.Ix.Descend(index.Root, func(id index.ID, en *index.Entry) bool {
			if en.Tiers()&h.s.Bit != 0 && !en.IsDir() {
				ids = append(ids, id)
			}
			return true
		})
		e.Mu.Unlock()
		for len(ids) > 0 && h.sweepSome(ids[:min(len(ids), state.RecordBatch)]) {
			ids = ids[min(len(ids), state.RecordBatch):]
		}
	}
}

// sweepSome asks the tier for some of its entries again. It returns false if the tier does not answer.
func (h *host) sweepSome(ids []index.ID) bool {
	e := h.e
	var keys []block.Key
	e.Mu.Lock()
	for _, id := range ids {
		if e.Mu.Ix.Valid(id) && e.Mu.Ix.Linked(id) && e.Mu.Ix.At(id).Tiers()&h.s.Bit != 0 {
			keys = append(keys, e.KeyLocked(id))
		}
	}
	e.Mu.Unlock()
	has := make([]driver.Presence, len(keys))
	if h.s.Tier.Lookup(e.Ctx, keys, has) != nil {
		return false
	}
	for i, key := range keys {
		if has[i] == driver.Miss {
			h.Lost(key, &block.Error{Op: "lookup", Tier: h.s.Opts.Name, Key: key, Err: block.ErrNotFound})
		}
	}
	return true
}
