package suite

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// syncCases check driver.Syncer, and the blocks that outlive the process.
func syncCases() []suiteCase {
	return []suiteCase{
		{name: "Sync", run: checkSync},
		{name: "SyncParallel", run: checkSyncParallel},
		{name: "SyncCalls", run: checkSyncCalls},
		{name: "SyncClose", run: checkSyncClose},
		{name: "Reopen", run: checkReopen, needs: needsReopen},
		{name: "ReopenUpdated", run: checkReopenUpdated, needs: needsReopen},
		{name: "Crash", run: checkCrash, needs: needsCrash},
	}
}

// syncFlight is a call of Sync.
type syncFlight struct {
	returned chan struct{} // closed when Sync has returned
	done     chan struct{} // closed by the first call of done
	calls    atomic.Int32
	within   atomic.Bool // done was called before Sync returned, and waited for
	err      error
}

// submitSync calls Sync and returns without waiting for it. then runs inside done;
// it may be nil.
func (h *harness) submitSync(s driver.Syncer, then func()) *syncFlight {
	f := &syncFlight{returned: make(chan struct{}), done: make(chan struct{})}
	h.jobs.mu.Lock()
	h.jobs.mu.syncs = append(h.jobs.mu.syncs, f)
	h.jobs.mu.Unlock()
	s.Sync(func(err error) {
		if !h.await(f.returned) {
			f.within.Store(true)
		}
		if f.calls.Add(1) > 1 {
			return // checkCalls reports it
		}
		f.err = err
		if then != nil {
			then()
		}
		close(f.done)
	})
	close(f.returned)
	return f
}

// settleSync waits for a Sync and returns its error, checked.
func (h *harness) settleSync(f *syncFlight) error {
	h.t.Helper()
	if !h.await(f.done) {
		h.fatalf("Sync: not done within %v", h.opts.Timeout)
	}
	if f.within.Load() {
		h.fatalf("Sync: done was called from within Sync")
	}
	if f.err != nil && !errors.Is(f.err, block.ErrUnavailable) && !errors.Is(f.err, block.ErrClosed) {
		h.errorf("Sync: got %v, want success, %v or %v", f.err, block.ErrUnavailable, block.ErrClosed)
	}
	return f.err
}

// sync waits for a Sync, which must succeed. A tier that is no Syncer needs none.
func (h *harness) sync() {
	h.t.Helper()
	s, ok := ability[driver.Syncer](h.tier)
	if !ok {
		return
	}
	if err := h.settleSync(h.submitSync(s, nil)); err != nil && !h.opts.Faulty {
		h.errorf("Sync: got %v, want success", err)
	}
}

// checkSync: done is called once, not from within Sync, with or without something to make durable.
func checkSync(h *harness) {
	mustHave[driver.Syncer](h)
	h.sync()
	blocks := h.payloads("sync", 5, 5000)
	for _, p := range blocks {
		h.wantAll(h.store(p), driver.Stored)
		h.sync()
		h.sync()
	}
	h.tier.Remove(keysOf(blocks[:2]))
	h.sync()
	h.wantAll(h.load(blocks[2:]...), driver.Loaded)
}

// checkSyncParallel: each of many concurrent syncs is done once, also while blocks are
// stored and removed.
func checkSyncParallel(h *harness) {
	s := mustHave[driver.Syncer](h)
	const workers, rounds = 4, 10
	var wg sync.WaitGroup
	for n := range workers {
		w := h.worker(n)
		wg.Go(func() {
			for i := range rounds {
				p := w.payloads("sync", workers*rounds, 9000)[n*rounds+i]
				store := w.submit(jobSpec{op: storeJob, blocks: []payload{p}})
				early := w.submitSync(s, nil)
				w.wantAll(w.settle(store), driver.Stored)
				late := w.submitSync(s, nil)
				for _, f := range []*syncFlight{late, early} {
					if err := w.settleSync(f); err != nil && !w.opts.Faulty {
						w.errorf("Sync: got %v, want success", err)
					}
				}
				if i%2 == 0 {
					w.tier.Remove([]block.Key{p.key})
				}
			}
		})
	}
	wg.Wait()
}

// checkSyncCalls: done may call the tier, so the tier holds no lock meanwhile.
func checkSyncCalls(h *harness) {
	s := mustHave[driver.Syncer](h)
	blocks := h.payloads("sync-calls", 3, 3000)
	h.wantAll(h.store(blocks[:1]...), driver.Stored)
	var store *flight
	var again *syncFlight
	f := h.submitSync(s, func() {
		out := make([]driver.Presence, 1)
		if err := h.tier.Lookup(context.Background(), keysOf(blocks[:1]), out); err != nil && !h.opts.Faulty {
			h.errorf("Lookup from done: got %v, want success", err)
		}
		h.tier.Touch(keysOf(blocks))
		store = h.submit(jobSpec{op: storeJob, blocks: blocks[1:]})
		again = h.submitSync(s, nil)
	})
	_ = h.settleSync(f) // checked; a fault may fail it
	h.wantAll(h.settle(store), driver.Stored)
	_ = h.settleSync(again)
}

// checkSyncClose: a Sync during Close is done when Close returns. A later one fails with ErrClosed.
func checkSyncClose(h *harness) {
	s := mustHave[driver.Syncer](h)
	h.wantAll(h.store(h.payloads("sync-close", 4, 9000)...), driver.Stored)
	var flights []*syncFlight
	for range 8 {
		flights = append(flights, h.submitSync(s, nil))
	}
	h.close(context.Background())
	for _, f := range flights {
		if f.calls.Load() == 0 {
			h.errorf("Sync: not done when Close returned")
		}
		_ = h.settleSync(f) // success or ErrClosed
	}
	if err := h.settleSync(h.submitSync(s, nil)); !errors.Is(err, block.ErrClosed) && !h.opts.Faulty {
		h.errorf("Sync after Close: got %v, want %v", err, block.ErrClosed)
	}
}

// checkReopen: when a tier on durable storage is opened again, it holds what it held when it was
// closed, byte for byte and with attributes. Removed and replaced blocks stay away (A11).
func checkReopen(h *harness) {
	blocks := slices.Concat(h.payloads("reopen", 20, 10000), h.attrPayloads("reopen-attrs"))
	h.wantAll(h.store(blocks...), driver.Stored)
	h.sync()
	gone, kept := blocks[:5], blocks[5:]
	h.tier.Remove(keysOf(gone))
	old := kept[0]
	kept[0] = h.payload(old.key, 1, 2000)
	h.wantAll(h.store(kept[0]), driver.Stored) // not synced: Close syncs
	for range 2 {
		h.tier = h.opts.Reopen(h.t, h.tier)
		h.wantPresence(driver.Miss, keysOf(gone)...)
		h.never(h.load(gone...), driver.Loaded, "it was removed before")
		h.never(h.load(old), driver.Loaded, "it was replaced before")
		h.wantThere(kept...)
		outcomes := h.store(kept...)
		for i := range outcomes {
			h.wantHeld(outcomes, i)
		}
	}
}

// checkReopenUpdated: changed names and attributes are still there after Reopen.
func checkReopenUpdated(h *harness) {
	mustHave[driver.Recorder](h)
	blocks := h.payloads("updated", 6, 10000)
	h.wantAll(h.store(blocks...), driver.Stored)
	h.sync()
	attrs := func(i int) driver.Attrs { return h.payload(blocks[i].key, 20+i, 1).attrs }
	renamed := h.update(blocks[0], block.Key{Group: "updated", Hash: "new/name"}, attrs(0))
	changed := h.update(blocks[1], blocks[1].key, attrs(1))
	over := h.update(blocks[2], blocks[3].key, attrs(2))
	back := h.update(h.update(blocks[4], numberedKey("updated", 99), attrs(4)), blocks[4].key, attrs(5))
	for range 2 {
		h.tier = h.opts.Reopen(h.t, h.tier)
		h.wantPresence(driver.Miss, blocks[0].key, blocks[2].key, numberedKey("updated", 99))
		h.wantThere(renamed, changed, over, back, blocks[5])
	}
}

// checkCrash: blocks Stored, Removed or Updated before a successful Sync survive a power cut. Later
// changes are there as a whole or not at all.
func checkCrash(h *harness) {
	blocks := h.payloads("crash", 12, 10000)
	h.wantAll(h.store(blocks[:6]...), driver.Stored)
	h.tier.Remove(keysOf(blocks[:1]))
	kept := slices.Clone(blocks[1:6])
	if _, ok := ability[driver.Recorder](h.tier); ok {
		kept[0] = h.update(kept[0], block.Key{Hash: "crash-renamed"}, h.payload(kept[0].key, 7, 1).attrs)
	}
	kept[1] = h.payload(kept[1].key, 3, 5000)
	h.wantAll(h.store(kept[1]), driver.Stored)
	h.sync()
	late := blocks[6:]
	h.wantAll(h.store(late...), driver.Stored)
	h.tier = h.opts.Crash(h.t, h.tier)
	h.wantPresence(driver.Hit, keysOf(kept)...)
	h.wantAll(h.load(kept...), driver.Loaded)
	h.wantPresence(driver.Miss, blocks[0].key, blocks[1].key)
	h.never(h.load(blocks[:3]...), driver.Loaded, "it was removed, renamed or replaced before the Sync")
	there := slices.Clone(kept)
	for i, o := range h.load(late...) {
		if o.Status == driver.Loaded {
			there = append(there, late[i])
		}
	}
	h.wantThere(there...)
}
