package suite

import (
	"context"
	"errors"
	"slices"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// capacityCases check a full tier.
func capacityCases() []suiteCase {
	return []suiteCase{
		{name: "BatchOverCapacity", run: checkBatchOverCapacity, needs: needsSmall},
		{name: "BatchProtectsHeld", run: checkBatchProtectsHeld, needs: needsSmall},
		{name: "TooLarge", run: checkTooLarge, needs: needsSmall},
		{name: "Turnover", run: checkTurnover, needs: needsSmall},
		{name: "Budget", run: checkBudget, needs: needsBudget},
		{name: "LRUTouch", run: func(h *harness) { checkLRU(h, byTouch) }, needs: needsLRU},
		{name: "LRULoad", run: func(h *harness) { checkLRU(h, byLoad) }, needs: needsLRU},
	}
}

// smallPayloads returns n blocks of the size for a small tier.
func (h *harness) smallPayloads(prefix string, n int) []payload {
	return h.payloads(prefix, n, h.opts.SmallBytes)
}

// checkBatchOverCapacity: a job larger than the tier fills it with its own blocks, skips the
// others, which is no error, and evicts none of its own, on an empty tier and on a full one (A31).
func checkBatchOverCapacity(h *harness) {
	h.useSmall()
	n, allSkipped := h.opts.SmallBlocks, 0
	for _, prefix := range []string{"on-empty", "on-full"} {
		blocks := h.smallPayloads(prefix, 3*n)
		outcomes := h.store(blocks...)
		var stored []payload
		skipped := 0
		for i, o := range outcomes {
			h.wantStatus(outcomes, i, driver.Stored, driver.Skipped)
			switch o.Status {
			case driver.Stored:
				stored = append(stored, blocks[i])
			case driver.Skipped:
				skipped++
				h.wantSkipped(outcomes, i, block.ErrNoSpace)
			}
		}
		allSkipped += skipped
		if !h.opts.Faulty && (len(stored) < n || skipped == 0) {
			h.errorf("%s: %d blocks into room for %d: %d stored, %d skipped",
				prefix, 3*n, n, len(stored), skipped)
		}
		for i, o := range h.load(stored...) {
			if o.Status != driver.Loaded && !h.opts.Faulty {
				h.fatalf("%s: block %d of those stored: got %v (%v), want loaded: "+
					"it was evicted by its own batch", prefix, i, o.Status, o.Err)
			}
		}
	}
	if s, ok := ability[driver.Statser](h.tier); ok && !h.opts.Faulty && s.Stats().SkippedNoSpace != uint64(allSkipped) {
		h.errorf("Stats: %d blocks skipped for want of room, want %d", s.Stats().SkippedNoSpace, allSkipped)
	}
}

// checkBatchProtectsHeld: a block that is skipped because the tier holds it belongs to the batch as
// well: the other blocks of the batch do not evict it, though it is the oldest (A31).
func checkBatchProtectsHeld(h *harness) {
	h.useSmall()
	n := h.opts.SmallBlocks
	old := h.smallPayloads("old", n)
	for _, p := range old {
		if !h.wantAll(h.store(p), driver.Stored) {
			return
		}
	}
	held := old[0]
	batch := append(h.smallPayloads("new", 2*n), held)
	outcomes := h.store(batch...)
	h.wantHeld(outcomes, len(batch)-1)
	if loaded := h.load(held); loaded[0].Status != driver.Loaded && !h.opts.Faulty {
		h.errorf("the oldest block, stored again with %d others: got %v (%v), want loaded: "+
			"it was evicted by its own batch", 2*n, loaded[0].Status, loaded[0].Err)
	}
}

// checkTooLarge: a block that no eviction could make room for is Skipped, or fails
// with ErrTooLarge. A tier that counts blocks rather than bytes may take it.
func checkTooLarge(h *harness) {
	h.useSmall()
	size := h.opts.SmallBytes * int64(h.opts.SmallBlocks) * 2
	if size != h.size(size) {
		h.t.Skip("the tier takes no block of that size")
	}
	large := h.payload(numberedKey("large", 0), 0, size)
	o, loaded := h.store(large)[0], h.load(large)
	switch {
	case o.Status == driver.Stored:
		h.wantAll(loaded, driver.Loaded)
	case h.opts.Faulty:
	case o.Status == driver.Failed && !errors.Is(o.Err, block.ErrTooLarge):
		h.errorf("a block of %d bytes: got %v, want skipped or %v", size, o.Err, block.ErrTooLarge)
	default:
		h.never(loaded, driver.Loaded, "it was not stored")
	}
	h.wantAll(h.store(h.smallPayloads("small", 1)...), driver.Stored)
}

// checkTurnover: a full tier replaces old blocks by new ones, one after the other, and each can be
// loaded at once.
func checkTurnover(h *harness) {
	h.useSmall()
	for _, p := range h.smallPayloads("turn", 5*h.opts.SmallBlocks) {
		h.wantAll(h.store(p), driver.Stored)
		h.wantAll(h.load(p), driver.Loaded)
	}
}

// checkBudget: when the write budget is used up, a Store is Skipped with ErrBudget, except one with
// Force and blocks that the tier holds. Loads go on.
func checkBudget(h *harness) {
	h.close(context.Background())
	h.tier = h.opts.Budgeted(h.t)
	blocks := h.smallPayloads("budget", 64)
	stored := 0
	for i, p := range blocks {
		outcomes := h.store(p)
		if outcomes[0].Status == driver.Skipped {
			h.wantSkipped(outcomes, 0, block.ErrBudget)
			break
		}
		h.wantAll(outcomes, driver.Stored)
		stored = i + 1
	}
	if h.opts.Faulty {
		return
	}
	if stored == 0 || stored == len(blocks) {
		h.fatalf("stored %d of %d blocks, want some, then %v", stored, len(blocks), block.ErrBudget)
	}
	held, next := blocks[:stored], blocks[stored]
	h.wantHeld(h.store(held[0]), 0)
	h.wantPresence(driver.Miss, next.key)
	h.wantAll(h.load(held...), driver.Loaded)
	force := func(job *driver.Job) { job.Force = true }
	h.wantAll(h.settle(h.submit(jobSpec{op: storeJob, blocks: []payload{next}, job: force})), driver.Stored)
	h.wantAll(h.load(next), driver.Loaded)
	if s, ok := ability[driver.Statser](h.tier); ok && s.Stats().SkippedBudget != 1 {
		h.errorf("Stats: %d blocks skipped for the budget, want 1", s.Stats().SkippedBudget)
	}
}

func byTouch(h *harness, blocks []payload) { h.tier.Touch(keysOf(blocks)) }
func byLoad(h *harness, blocks []payload)  { h.wantAll(h.load(blocks...), driver.Loaded) }

// checkLRU: the block used last goes last (A28). It fills the tier, uses the block that would go
// first, and adds blocks one by one. Whenever some are gone, they must be a prefix of the new
// order.
func checkLRU(h *harness, use func(*harness, []payload)) {
	h.useSmall()
	n := h.opts.SmallBlocks
	blocks := h.smallPayloads("lru", n)
	for _, p := range blocks {
		h.wantAll(h.store(p), driver.Stored)
	}
	h.wantPresence(driver.Hit, keysOf(blocks)...)
	use(h, blocks[:1])
	order := append(slices.Clone(blocks[1:]), blocks[0])
	gone := 0
	for i, p := range h.smallPayloads("lru-next", 3*n) {
		h.wantAll(h.store(p), driver.Stored)
		out, _ := h.lookup(keysOf(order)...)
		gone = n - countHits(out)
		if first := slices.Index(out, driver.Hit); first >= 0 && first != gone {
			h.fatalf("after %d more blocks, by order of last use: %v: "+
				"want the least recently used to go first", i+1, out)
		}
		if gone == n {
			return
		}
	}
	h.errorf("after %d more blocks %d of %d are gone, want all", 3*n, gone, n)
}

func countHits(out []driver.Presence) int {
	count := 0
	for _, p := range out {
		if p == driver.Hit {
			count++
		}
	}
	return count
}
