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

// hostCases check the calls of a tier to its Host.
func hostCases() []suiteCase {
	return []suiteCase{
		{name: "HostAsked", run: checkHostAsked, needs: needsTrueSmall},
		{name: "HostVeto", run: checkHostVeto, needs: needsTrueSmall},
		{name: "HostVetoAll", run: checkHostVetoAll, needs: needsTrueSmall},
		{name: "HostStore", run: checkHostStore, needs: needsTrueSmall},
		{name: "HostCalls", run: checkHostCalls, needs: needsTrueSmall},
		{name: "HostQuiet", run: checkHostQuiet, needs: needsTrue},
		{name: "HostParallel", run: checkHostParallel, needs: needsTrueSmall},
		{name: "Corrupt", run: checkCorrupt, needs: needsCorrupt},
		{name: "Offline", run: checkOffline, needs: needsOffline},
	}
}

// testHost is a Host that records its calls.
type testHost struct {
	inside func(key block.Key) // called by both methods, without a lock; may be nil
	mu     struct {
		sync.Mutex
		vetoed map[block.Key]bool // MayEvict answers false
		vetoes int                // how often
		leave  map[block.Key]int  // MayEvict answered true
		lost   map[block.Key][]error
	}
}

func newTestHost() *testHost {
	host := &testHost{}
	host.mu.vetoed = make(map[block.Key]bool)
	host.mu.leave = make(map[block.Key]int)
	host.mu.lost = make(map[block.Key][]error)
	return host
}

// MayEvict gives leave unless the key is vetoed.
func (host *testHost) MayEvict(key block.Key) bool {
	if host.inside != nil {
		host.inside(key)
	}
	host.mu.Lock()
	defer host.mu.Unlock()
	if host.mu.vetoed[key] {
		host.mu.vetoes++
		return false
	}
	host.mu.leave[key]++
	return true
}

// Lost records the error.
func (host *testHost) Lost(key block.Key, err error) {
	if host.inside != nil {
		host.inside(key)
	}
	host.mu.Lock()
	defer host.mu.Unlock()
	host.mu.lost[key] = append(host.mu.lost[key], err)
}

// veto makes MayEvict answer false for the keys, and true for all others.
func (host *testHost) veto(keys []block.Key) {
	host.mu.Lock()
	defer host.mu.Unlock()
	clear(host.mu.vetoed)
	for _, key := range keys {
		host.mu.vetoed[key] = true
	}
}

// told returns how often a key was released, and the losses reported for it.
func (host *testHost) told(key block.Key) (leave int, lost []error) {
	host.mu.Lock()
	defer host.mu.Unlock()
	return host.mu.leave[key], slices.Clone(host.mu.lost[key])
}

// useHost opens a small tier with a Host.
func (h *harness) useHost(host *testHost) {
	h.t.Helper()
	h.useSmall()
	mustHave[driver.Hosted](h).SetHost(host)
}

// fill stores the blocks one by one. They must fit.
func (h *harness) fill(blocks []payload) {
	h.t.Helper()
	for _, p := range blocks {
		h.wantAll(h.store(p), driver.Stored)
	}
}

// checkHostAsked: a block is evicted only if the Host allows it, and then it is.
func checkHostAsked(h *harness) {
	host := newTestHost()
	h.useHost(host)
	blocks := h.smallPayloads("asked", 4*h.opts.SmallBlocks)
	h.fill(blocks)
	given := 0
	for _, p := range blocks {
		leave, lost := host.told(p.key)
		if len(lost) > 0 {
			h.errorf("Lost %v: %v, want nothing lost", p.key, lost)
		}
		if leave > 1 {
			h.errorf("MayEvict %v: asked %d times, want once: it had leave", p.key, leave)
		}
		if leave == 0 {
			h.wantPresence(driver.Hit, p.key)
			h.wantAll(h.load(p), driver.Loaded)
			continue
		}
		given++
		h.eventually("eviction of a block with leave", func() bool {
			out, ok := h.lookup(p.key)
			return ok && out[0] == driver.Miss
		})
		h.never(h.load(p), driver.Loaded, "MayEvict has answered true")
	}
	if want := len(blocks) - 2*h.opts.SmallBlocks; given < want {
		h.errorf("%d blocks evicted with leave, want at least %d", given, want)
	}
	if s, ok := ability[driver.Statser](h.tier); ok && s.Stats().Evicted != uint64(given) {
		h.errorf("Stats: %d blocks evicted, want %d", s.Stats().Evicted, given)
	}
}

// checkHostVeto: blocks that the Host keeps stay in any case; others go instead (A22).
func checkHostVeto(h *harness) {
	host := newTestHost()
	h.useHost(host)
	blocks := h.smallPayloads("kept", h.opts.SmallBlocks)
	h.fill(blocks)
	kept := blocks[:h.opts.SmallBlocks/2] // the ones that would go first
	host.veto(keysOf(kept))
	for _, p := range h.smallPayloads("veto-next", 3*h.opts.SmallBlocks) {
		h.wantAll(h.store(p), driver.Stored)
		h.wantAll(h.load(p), driver.Loaded)
		h.wantPresence(driver.Hit, keysOf(kept)...)
	}
	h.wantAll(h.load(kept...), driver.Loaded)
	host.veto(nil)
	for _, p := range h.smallPayloads("veto-after", 3*h.opts.SmallBlocks) {
		h.wantAll(h.store(p), driver.Stored)
	}
	h.eventually("eviction of blocks no longer kept", func() bool {
		out, _ := h.lookup(keysOf(kept)...)
		return countHits(out) == 0
	})
}

// checkHostVetoAll: when the Host keeps everything there is no room, and the tier does not ask for
// ever. When the Host keeps nothing more there is room.
func checkHostVetoAll(h *harness) {
	host := newTestHost()
	h.useHost(host)
	blocks := h.smallPayloads("all", 2*h.opts.SmallBlocks)
	host.veto(keysOf(blocks))
	var held []payload
	for _, p := range blocks {
		outcomes := h.store(p)
		h.wantStatus(outcomes, 0, driver.Stored, driver.Skipped)
		if outcomes[0].Status == driver.Stored {
			held = append(held, p)
			continue
		}
		h.wantSkipped(outcomes, 0, block.ErrNoSpace)
	}
	if len(held) == len(blocks) {
		h.errorf("%d blocks stored without leave to evict", len(held))
	}
	h.wantThere(held...)
	host.veto(nil)
	h.fill(h.smallPayloads("all-after", 2))
}

// checkHostStore: a Store of a block that the Host is being asked about does not rely on the
// leaving copy: if the tier says that it holds the block, the block is there.
func checkHostStore(h *harness) {
	host := newTestHost()
	blocks := h.smallPayloads("leaving", 3*h.opts.SmallBlocks)
	var w *harness
	var again atomic.Pointer[flight]
	var once sync.Once
	host.inside = func(key block.Key) {
		once.Do(func() {
			at := slices.IndexFunc(blocks, func(p payload) bool { return p.key == key })
			again.Store(w.submit(jobSpec{op: storeJob, blocks: blocks[at : at+1]}))
		})
	}
	h.useHost(host)
	w = h.worker(0)
	for _, p := range blocks {
		if h.wantAll(h.store(p), driver.Stored); again.Load() != nil {
			break
		}
	}
	f := again.Load()
	if f == nil {
		h.fatalf("the Host was not asked for %d blocks into room for %d", len(blocks), h.opts.SmallBlocks)
	}
	outcomes := h.settle(f)
	h.wantStatus(outcomes, 0, driver.Stored, driver.Skipped)
	if o := outcomes[0]; o.Status == driver.Skipped && o.Err != nil {
		return
	}
	if leave, _ := host.told(f.spec.blocks[0].key); leave <= 1 {
		h.wantPresence(driver.Hit, f.spec.blocks[0].key)
		h.wantAll(h.load(f.spec.blocks[0]), driver.Loaded)
	}
}

// checkHostCalls: the tier holds no lock of its own when it calls the Host, because the Host may
// call it back.
func checkHostCalls(h *harness) {
	host := newTestHost()
	var called atomic.Bool
	host.inside = func(key block.Key) {
		called.Store(true)
		h.callBack(key)
	}
	h.useHost(host)
	h.fill(h.smallPayloads("calls", 3*h.opts.SmallBlocks))
	if !called.Load() {
		h.errorf("the Host was not called for %d blocks into room for %d",
			3*h.opts.SmallBlocks, h.opts.SmallBlocks)
	}
}

// callBack calls the tier from its Host. It fails or hangs if the tier holds a lock.
func (h *harness) callBack(key block.Key) {
	h.t.Helper()
	err := h.tier.Lookup(context.Background(), []block.Key{key}, make([]driver.Presence, 1))
	if err != nil && !h.opts.Faulty && !errors.Is(err, block.ErrUnavailable) {
		h.errorf("Lookup from the Host: got %v, want success", err)
	}
	h.tier.Touch([]block.Key{key})
	h.tier.Remove([]block.Key{numberedKey("nobody", 0)})
	if s, ok := ability[driver.Statser](h.tier); ok {
		s.Stats()
	}
}

// checkHostQuiet: the tier does not report what the engine does itself: replaced and removed blocks
// are neither asked for nor lost.
func checkHostQuiet(h *harness) {
	host := newTestHost()
	mustHave[driver.Hosted](h).SetHost(host)
	blocks := h.payloads("quiet", 4, 3000)
	h.wantAll(h.store(blocks...), driver.Stored)
	h.wantAll(h.store(h.payload(blocks[0].key, 1, 2000)), driver.Stored)
	h.wantAll(h.load(blocks...)[:1], driver.Absent)
	h.tier.Remove(keysOf(blocks[1:2]))
	if r, ok := ability[driver.Recorder](h.tier); ok {
		r.Update(blocks[2].key, blocks[3].key, &driver.Attrs{Seq: 3})
	}
	h.close(context.Background())
	for _, p := range blocks {
		if leave, lost := host.told(p.key); leave != 0 || len(lost) != 0 {
			h.errorf("%v: asked %d times for leave, lost %v; want neither", p.key, leave, lost)
		}
	}
}

// checkHostParallel: with stores, loads and removals all at once, a stored block that is gone was
// released or removed.
func checkHostParallel(h *harness) {
	const workers = 4
	host := newTestHost()
	h.useHost(host)
	n := 6 * h.opts.SmallBlocks
	host.veto(keysOf(h.smallPayloads("parallel", n))[:h.opts.SmallBlocks/2])
	stored := make([][]payload, workers)
	var wg sync.WaitGroup
	for at := range workers {
		w := h.worker(at)
		wg.Go(func() {
			for i, p := range w.smallPayloads("parallel", n) {
				if i%workers != at {
					continue
				}
				outcomes := w.store(p)
				if w.wantStatus(outcomes, 0, driver.Stored, driver.Skipped) && outcomes[0].Status == driver.Stored {
					stored[at] = append(stored[at], p)
				}
				w.wantStatus(w.load(p), 0, driver.Loaded, driver.Absent)
			}
		})
	}
	wg.Wait()
	for _, p := range slices.Concat(stored...) {
		leave, _ := host.told(p.key)
		out, ok := h.lookup(p.key)
		if ok && leave == 0 && out[0] != driver.Hit {
			h.errorf("%v: stored and now a %v, though the Host gave no leave", p.key, out[0])
		}
	}
}

// checkCorrupt: a bad copy is never loaded. It is dropped before the Load fails with ErrCorrupt,
// the Host hears of it, and the block can be stored again (B36).
func checkCorrupt(h *harness) {
	host := newTestHost()
	host.inside = h.callBack
	hosted, ok := ability[driver.Hosted](h.tier)
	if ok {
		hosted.SetHost(host)
	}
	blocks := h.payloads("rot", 5, 5000)
	h.wantAll(h.store(blocks...), driver.Stored)
	bad, good := blocks[1], append(slices.Clone(blocks[:1]), blocks[2:]...)
	h.opts.Corrupt(h.t, h.tier, bad.key)
	outcomes := h.load(blocks...)
	h.never(outcomes[1:2], driver.Loaded, "its copy is corrupt")
	// The tier may have found it by itself before.
	h.wantStatus(outcomes, 1, driver.Failed, driver.Absent)
	if o := outcomes[1]; o.Status == driver.Failed && !errors.Is(o.Err, block.ErrCorrupt) && !h.opts.Faulty {
		h.errorf("Load of a corrupt copy: got %v, want %v", o.Err, block.ErrCorrupt)
	}
	h.wantPresence(driver.Miss, bad.key)
	h.wantAll(h.load(bad), driver.Absent)
	if s, able := ability[driver.Statser](h.tier); able && s.Stats().Corrupt != 1 && !h.opts.Faulty {
		h.errorf("Stats: %d corrupt, want 1", s.Stats().Corrupt)
	}
	if ok && !h.opts.Faulty {
		h.eventually("Lost for a corrupt copy", func() bool {
			_, lost := host.told(bad.key)
			return len(lost) == 1 && errors.Is(lost[0], block.ErrCorrupt)
		})
	}
	h.wantAll(h.store(bad), driver.Stored)
	h.wantAll(h.load(append(good, bad)...), driver.Loaded)
}

// checkOffline: a tier without its device says so: look-ups and jobs fail with ErrUnavailable, and
// the Host hears of each block.
func checkOffline(h *harness) {
	host := newTestHost()
	host.inside = h.callBack
	hosted, ok := ability[driver.Hosted](h.tier)
	if ok {
		hosted.SetHost(host)
	}
	blocks := h.payloads("offline", 5, 5000)
	h.wantAll(h.store(blocks...), driver.Stored)
	h.opts.Offline(h.t, h.tier)
	for _, op := range []jobKind{loadJob, storeJob} { // the Load lets the tier detect it
		for i, o := range h.settle(h.submit(jobSpec{op: op, blocks: blocks})) {
			if o.Status != driver.Failed || !errors.Is(o.Err, block.ErrUnavailable) {
				h.errorf("%v while offline, block %d: got %v (%v), want %v",
					op, i, o.Status, o.Err, block.ErrUnavailable)
			}
		}
	}
	h.checkCallsOffline(blocks)
	for _, p := range blocks {
		h.eventually("Lost for an offline tier", func() bool {
			_, lost := host.told(p.key)
			return !ok || len(lost) == 1 && errors.Is(lost[0], block.ErrUnavailable)
		})
	}
}

// checkCallsOffline checks what an offline tier answers about these blocks other than by jobs.
func (h *harness) checkCallsOffline(blocks []payload) {
	h.t.Helper()
	out := []driver.Presence{driver.Hit, driver.Pending, driver.Hit, driver.Hit, driver.Hit}
	if err := h.tier.Lookup(context.Background(), keysOf(blocks), out); !errors.Is(err, block.ErrUnavailable) {
		h.errorf("Lookup while offline: got %v, want %v", err, block.ErrUnavailable)
	}
	h.checkAllMiss(out)
	if s, ok := ability[driver.Syncer](h.tier); ok {
		if err := h.settleSync(h.submitSync(s, nil)); !errors.Is(err, block.ErrUnavailable) {
			h.errorf("Sync while offline: got %v, want %v", err, block.ErrUnavailable)
		}
	}
	if r, ok := ability[driver.Recorder](h.tier); ok && r.Update(blocks[0].key, blocks[1].key, &blocks[0].attrs) {
		h.errorf("Update while offline: got true, want false")
	}
	if s, ok := ability[driver.Statser](h.tier); ok && s.Stats().State != "offline" {
		h.errorf("Stats: got state %q, want offline", s.Stats().State)
	}
}
