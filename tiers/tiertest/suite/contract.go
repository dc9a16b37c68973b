package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// contractCases check the contract of each method, one job at a time.
func contractCases() []suiteCase {
	return []suiteCase{
		{name: "Empty", run: checkEmpty},
		{name: "LookupLength", run: checkLookupLength},
		{name: "PendingWhileStoring", run: checkPendingWhileStoring},
		{name: "CallsFromDone", run: checkCallsFromDone},
		{name: "Enumerate", run: checkEnumerate},
		{name: "Stats", run: checkStats},
	}
}

// checkEmpty: empty inputs are successful no-ops everywhere, and an empty job has
// its Result like any other (C18, A32).
func checkEmpty(h *harness) {
	for _, keys := range [][]block.Key{nil, {}} {
		if err := h.tier.Lookup(context.Background(), keys, nil); err != nil && !h.opts.Faulty {
			h.errorf("Lookup of no keys: got %v, want success", err)
		}
		if n := h.tier.Remove(keys); n != 0 {
			h.errorf("Remove of no keys: got %d, want 0", n)
		}
		h.tier.Touch(keys)
	}
	h.store()
	h.load()
}

// checkLookupLength: keys and answers of different lengths are refused with ErrInvalid, and all
// answers are Miss (A5).
func checkLookupLength(h *harness) {
	blocks := h.payloads("length", 3, 100)
	h.wantAll(h.store(blocks...), driver.Stored)
	keys := keysOf(blocks)
	for _, row := range []struct{ keys, out int }{{3, 2}, {2, 3}, {0, 1}, {1, 0}, {3, 0}} {
		out := slices.Repeat([]driver.Presence{driver.Hit}, row.out)
		err := h.tier.Lookup(context.Background(), keys[:row.keys], out)
		if !errors.Is(err, block.ErrInvalid) {
			h.errorf("Lookup of %d keys into %d answers: got %v, want %v",
				row.keys, row.out, err, block.ErrInvalid)
		}
		h.checkAllMiss(out)
	}
}

// checkPendingWhileStoring: from the return of Store until Done, a block that will be stored is
// Pending or a Hit, never a Miss (A15). It tries several times, because a look-up in between is a
// matter of chance.
func checkPendingWhileStoring(h *harness) {
	for round := range 20 {
		blocks := h.payloads(fmt.Sprintf("pending-%d", round), 8, 64<<10)
		f := h.submit(jobSpec{op: storeJob, blocks: blocks})
		out, ok := h.lookup(keysOf(blocks)...)
		outcomes := h.settle(f)
		for i, o := range outcomes {
			if ok && o.Status == driver.Stored && out[i] == driver.Miss && !h.opts.Faulty {
				h.fatalf("round %d, block %d: Lookup between Store and Done: got miss, want pending or hit",
					round, i)
			}
		}
		h.tier.Remove(keysOf(blocks))
	}
}

// checkCallsFromDone: Done may call the tier, so the tier holds no lock meanwhile. Jobs submitted
// there are completed.
func checkCallsFromDone(h *harness) {
	blocks := h.payloads("from-done", 6, 700)
	h.wantAll(h.store(blocks[:3]...), driver.Stored)
	var store, load *flight
	f := h.submit(jobSpec{op: storeJob, blocks: blocks[3:5], then: func() {
		out := make([]driver.Presence, 3)
		err := h.tier.Lookup(context.Background(), keysOf(blocks[:3]), out)
		if err != nil && !h.opts.Faulty {
			h.errorf("Lookup from Done: got %v, want success", err)
		}
		h.tier.Touch(keysOf(blocks[:3]))
		h.tier.Remove(keysOf(blocks[2:3]))
		store = h.submit(jobSpec{op: storeJob, blocks: blocks[5:]})
		load = h.submit(jobSpec{op: loadJob, blocks: blocks[:2]})
	}})
	h.wantAll(h.settle(f), driver.Stored)
	h.wantAll(h.settle(store), driver.Stored)
	h.wantAll(h.settle(load), driver.Loaded)
	h.wantPresence(driver.Miss, blocks[2].key)
	h.wantAll(h.load(blocks[3:]...), driver.Loaded)
}

// wantListed checks that the tier lists the blocks, with their sizes and checksums, and nothing
// else. A faulty tier may have lost some, and may keep some whose Store failed.
func (h *harness) wantListed(e driver.Enumerator, blocks []payload) {
	h.t.Helper()
	want := make(map[block.Key]payload)
	for _, p := range blocks {
		want[p.key] = p
	}
	h.within("Blocks", func() {
		err := e.Blocks(func(held *driver.Held) bool {
			p, ok := want[held.Key]
			delete(want, held.Key)
			out := make([]driver.Presence, 1) // fn may call the tier
			_ = h.tier.Lookup(context.Background(), []block.Key{held.Key}, out)
			if !ok {
				h.errorf("Blocks: listed %.80q, which is not there or was listed before", held.Key.Path())
				return true
			}
			h.checkHeld(held, p)
			return true
		})
		if err != nil && !h.opts.Faulty {
			h.errorf("Blocks: got %v, want success", err)
		}
	})
	for key := range want {
		if !h.opts.Faulty {
			h.errorf("Blocks: did not list %.80q", key.Path())
		}
	}
}

// checkEnumerate: an Enumerator lists exactly the blocks that were stored and not removed, and
// stops when told.
func checkEnumerate(h *harness) {
	e := mustHave[driver.Enumerator](h)
	h.wantListed(e, nil)
	blocks := h.payloads("list", 20, 3000)
	h.wantAll(h.store(blocks...), driver.Stored)
	h.wantListed(e, blocks)
	h.tier.Remove(keysOf(blocks[:5]))
	h.wantListed(e, blocks[5:])
	calls := 0
	err := e.Blocks(func(*driver.Held) bool {
		calls++
		return calls < 3
	})
	if !h.opts.Faulty && (calls != 3 || err != nil) {
		h.errorf("Blocks stopped at the third: got %d calls and %v, want 3 and success", calls, err)
	}
}

// checkStats: the state is one of the three, not more is used than there is, and the counters are
// right.
func checkStats(h *harness) {
	s := mustHave[driver.Statser](h)
	blocks := h.payloads("stats", 4, 5000)
	bytes := uint64(4 * h.size(5000))
	h.wantAll(h.store(blocks...), driver.Stored)
	h.store(blocks[0]) // skipped, but not for lack of room
	h.wantAll(h.load(blocks[:2]...), driver.Loaded)
	stats := s.Stats()
	if !slices.Contains([]string{"online", "degraded", "offline"}, stats.State) {
		h.errorf("Stats: got state %q, want online, degraded or offline", stats.State)
	}
	if stats.UsedBytes < 0 || stats.CapacityBytes > 0 && stats.UsedBytes > stats.CapacityBytes {
		h.errorf("Stats: %d bytes used of %d", stats.UsedBytes, stats.CapacityBytes)
	}
	if h.opts.Faulty {
		return
	}
	if stats.State != "online" {
		h.errorf("Stats: got state %q (%s), want online", stats.State, stats.Reason)
	}
	if stats.Stored != 4 || stats.Loaded != 2 || stats.Blocks != 4 {
		h.errorf("Stats: %d stored, %d loaded, %d blocks; want 4, 2, 4",
			stats.Stored, stats.Loaded, stats.Blocks)
	}
	// A tier may count whole pages.
	if stats.StoredBytes < bytes || stats.LoadedBytes < bytes/2 {
		h.errorf("Stats: %d bytes stored, %d loaded; want at least %d and %d",
			stats.StoredBytes, stats.LoadedBytes, bytes, bytes/2)
	}
	if stats.SkippedNoSpace+stats.SkippedBudget+stats.Corrupt+stats.IOErrors+stats.Evicted != 0 {
		h.errorf("Stats: got %+v, want no block skipped, corrupt, failed or evicted", stats)
	}
}
