package suite

import (
	"context"
	"errors"
	"sync"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// closeCases check the end of a tier, and what outlives it.
func closeCases() []suiteCase {
	return []suiteCase{
		{name: "CloseCompletes", run: checkCloseCompletes},
		{name: "CloseCancelled", run: checkCloseCancelled},
		{name: "CloseTwice", run: checkCloseTwice},
		{name: "AfterClose", run: checkAfterClose},
		{name: "CloseRace", run: checkCloseRace},
	}
}

// backlog submits more jobs than a tier serves at once.
func (h *harness) backlog(present []payload) []*flight {
	h.t.Helper()
	var flights []*flight
	for i := range 8 {
		blocks := h.payloads("backlog", 32, 8<<10)[4*i : 4*i+4]
		flights = append(flights,
			h.submit(jobSpec{op: storeJob, blocks: blocks}),
			h.submit(jobSpec{op: loadJob, blocks: present}))
	}
	return flights
}

// checkCloseCompletes: when Close returns every job has had its Result. With enough time each was
// finished rather than failed.
func checkCloseCompletes(h *harness) {
	present := h.payloads("present", 4, 8<<10)
	h.wantAll(h.store(present...), driver.Stored)
	flights := h.backlog(present)
	h.close(context.Background())
	for _, f := range flights {
		if f.calls.Load() == 0 {
			h.errorf("%v: no Result when Close returned", f)
		}
		outcomes := h.settle(f)
		if f.spec.op == storeJob {
			h.wantAll(outcomes, driver.Stored)
		} else {
			h.wantAll(outcomes, driver.Loaded)
		}
	}
}

// checkCloseCancelled: once the context is done, Close still completes every job;
// those not finished fail with ErrClosed.
func checkCloseCancelled(h *harness) {
	present := h.payloads("present", 4, 8<<10)
	h.wantAll(h.store(present...), driver.Stored)
	flights := h.backlog(present)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	tier := h.tier
	h.tier = nil
	h.within("Close", func() { _ = tier.Close(ctx) }) // may report the context
	for _, f := range flights {
		if f.calls.Load() == 0 {
			h.errorf("%v: no Result when Close returned", f)
		}
		h.wantFinishedOrClosed(f)
	}
}

// wantFinishedOrClosed checks that the blocks of a job during Close were moved or failed with
// ErrClosed.
func (h *harness) wantFinishedOrClosed(f *flight) {
	h.t.Helper()
	for i, o := range h.settle(f) {
		if o.Status == driver.Failed && !h.opts.Faulty && !errors.Is(o.Err, block.ErrClosed) {
			h.errorf("%v: outcome %d: got %v, want success or %v", f, i, o.Err, block.ErrClosed)
		}
	}
}

// checkCloseTwice: a second Close does nothing, also in parallel.
func checkCloseTwice(h *harness) {
	h.wantAll(h.store(h.payloads("twice", 2, 100)...), driver.Stored)
	tier := h.tier
	h.tier = nil
	h.within("Close, three times", func() {
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { h.checkClose(tier) })
		}
		wg.Wait()
		h.checkClose(tier)
	})
}

func (h *harness) checkClose(tier driver.Tier) {
	if err := tier.Close(context.Background()); err != nil && !h.opts.Faulty {
		h.errorf("Close: got %v, want success", err)
	}
}

// checkAfterClose: late calls fail. A look-up fails with ErrClosed. A job has its one Result, with
// each block failed by ErrClosed (A32).
func checkAfterClose(h *harness) {
	blocks := h.payloads("after", 3, 1000)
	h.wantAll(h.store(blocks...), driver.Stored)
	tier := h.tier
	h.close(context.Background())
	h.tier = tier
	defer func() { h.tier = nil }()

	out := []driver.Presence{driver.Hit, driver.Pending, driver.Hit}
	err := tier.Lookup(context.Background(), keysOf(blocks), out)
	if !errors.Is(err, block.ErrClosed) {
		h.errorf("Lookup after Close: got %v, want %v", err, block.ErrClosed)
	}
	h.checkAllMiss(out)
	for _, op := range []jobKind{storeJob, loadJob} {
		for _, batch := range [][]payload{blocks, h.payloads("new", 2, 100), nil} {
			outcomes := h.settle(h.submit(jobSpec{op: op, blocks: batch}))
			for i, o := range outcomes {
				if !h.opts.Faulty && !errors.Is(o.Err, block.ErrClosed) {
					h.errorf("%v after Close, block %d: got %v (%v), want %v",
						op, i, o.Status, o.Err, block.ErrClosed)
				}
			}
		}
	}
	if n := tier.Remove(keysOf(blocks)); n != 0 {
		h.errorf("Remove after Close: got %d, want 0", n)
	}
	tier.Touch(keysOf(blocks))
	r, ok := ability[driver.Recorder](tier)
	if ok && r.Update(blocks[0].key, blocks[1].key, &driver.Attrs{Seq: 9}) {
		h.errorf("Update after Close: got true, want false")
	}
}

// checkCloseRace: jobs submitted while the tier closes have one Result each.
func checkCloseRace(h *harness) {
	const workers, rounds = 4, 12
	present := h.payloads("present", 2, 4096)
	h.wantAll(h.store(present...), driver.Stored)
	flights := make([][]*flight, workers)
	started := make(chan struct{}, workers)
	var wg sync.WaitGroup
	for n := range workers {
		w := h.worker(n)
		wg.Go(func() {
			for i := range rounds {
				blocks := w.payloads("race", workers*rounds, 4096)[n*rounds+i:][:1]
				flights[n] = append(flights[n],
					w.submit(jobSpec{op: storeJob, blocks: blocks}),
					w.submit(jobSpec{op: loadJob, blocks: present}))
				if i == rounds/3 {
					started <- struct{}{}
				}
			}
		})
	}
	for range workers {
		<-started
	}
	h.close(context.Background())
	wg.Wait()
	for _, list := range flights {
		for _, f := range list {
			h.wantFinishedOrClosed(f)
		}
	}
}
