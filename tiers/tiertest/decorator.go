package tiertest

import (
	"context"
	"sync"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// Faulty is a tier around another tier. It fails as a Plan says: it delays completions, turns
// outcomes into failures, and hides blocks from look-ups. Without faults it changes nothing. With
// faults a caller gets errors, and misses of blocks that are there, but never wrong bytes.
//
// A block whose Store the plan failed may still be in the tier, as after a lost acknowledgement.
type Faulty struct {
	tier    driver.Tier
	plan    *Plan
	aborted chan struct{} // closed when the context of Close is done
	abort   func()        // closes aborted; may be called again

	stalled sync.WaitGroup
	mu      struct {
		sync.Mutex
		closed bool // no more completions are delayed
		host   driver.Host
	}
}

var (
	_ driver.Tier       = (*Faulty)(nil)
	_ driver.Statser    = (*Faulty)(nil)
	_ driver.Enumerator = (*Faulty)(nil)
	_ driver.Hosted     = (*Faulty)(nil)
	_ driver.Recorder   = (*Faulty)(nil)
	_ driver.Syncer     = (*Faulty)(nil)
)

// NewFaulty returns t with the faults of plan; a nil plan injects none. Closing it
// closes t.
func NewFaulty(t driver.Tier, plan *Plan) *Faulty {
	f := &Faulty{tier: t, plan: plan, aborted: make(chan struct{})}
	f.abort = sync.OnceFunc(func() { close(f.aborted) })
	return f
}

// Unwrap returns the tier below.
func (f *Faulty) Unwrap() driver.Tier { return f.tier }

// Lookup asks the tier below, then hides blocks or fails as the plan says.
func (f *Faulty) Lookup(ctx context.Context, keys []block.Key, out []driver.Presence) error {
	if err := f.tier.Lookup(ctx, keys, out); err != nil {
		return err
	}
	if err := f.plan.lookup(keys, out); err != nil {
		return &block.Error{Op: OpLookup.String(), Tier: "faulty", Err: err}
	}
	return nil
}

// Store passes job to the tier below and faults its outcomes.
func (f *Faulty) Store(job *driver.Job) { f.tier.Store(f.wrap(OpStore, job)) }

// Load passes job to the tier below and faults its outcomes.
func (f *Faulty) Load(job *driver.Job) { f.tier.Load(f.wrap(OpLoad, job)) }

// wrap returns job itself if it meets no fault, else a job whose Done applies the
// faults. They are drawn now, so that the n-th operation is the n-th submitted.
func (f *Faulty) wrap(op Op, job *driver.Job) *driver.Job {
	faults := f.plan.nextAll(op, job.Blocks)
	if faults == nil {
		return job
	}
	inner := *job
	inner.Done = func(res *driver.Result) {
		f.deliver(faults, func() { job.Done(f.apply(op, job, faults, res)) })
	}
	return &inner
}

// deliver calls done. If a fault stalls the job, it does so on a separate goroutine, because the
// tier below must not be blocked.
func (f *Faulty) deliver(faults []Fault, done func()) {
	stalls := false
	for _, fault := range faults {
		stalls = stalls || fault.Stall != nil
	}
	if !stalls || !f.hold(faults, done) {
		done()
	}
}

// hold calls done once the stalls have ended, or returns false if the tier is
// being closed.
func (f *Faulty) hold(faults []Fault, done func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.closed {
		return false
	}
	// Ends when the stalls are released or Close gives up. Close waits for it.
	f.stalled.Go(func() {
		for _, fault := range faults {
			if fault.Stall == nil {
				continue
			}
			select {
			case <-fault.Stall:
			case <-f.aborted:
			}
		}
		done()
	})
	return true
}

// apply returns a copy of res with the faults in it. If it makes a copy corrupt, it removes the
// copy from the tier below and damages the loaded file.
func (f *Faulty) apply(op Op, job *driver.Job, faults []Fault, res *driver.Result) *driver.Result {
	out := &driver.Result{Job: res.Job, Outcomes: append([]driver.Outcome(nil), res.Outcomes...)}
	for i := range out.Outcomes {
		o, fault := &out.Outcomes[i], faults[i]
		err := fault.Err
		if err == nil && (fault.Corrupt || fault.Short) && o.Bytes > 0 {
			err = block.ErrCorrupt
			f.tier.Remove([]block.Key{o.Key})
			if o.Status == driver.Loaded {
				f.lost(o.Key)
			}
		}
		if err == nil {
			continue
		}
		if tr := &job.Blocks[i]; o.Status == driver.Loaded && tr.Size > 0 {
			// If this fails the file has the right bytes: undefined content includes those.
			_, _ = tr.File.WriteAt([]byte("fault")[:min(tr.Size, 5)], 0)
		}
		*o = driver.Outcome{
			Key:    o.Key,
			Status: driver.Failed,
			Err:    &block.Error{Op: op.String(), Tier: "faulty", Key: o.Key, Err: err},
		}
	}
	return out
}

// Remove passes through.
func (f *Faulty) Remove(keys []block.Key) int { return f.tier.Remove(keys) }

// Touch passes through.
func (f *Faulty) Touch(keys []block.Key) { f.tier.Touch(keys) }

// Close closes the tier below and waits for the delayed completions. When ctx is done it releases
// them.
func (f *Faulty) Close(ctx context.Context) error {
	f.mu.Lock()
	f.mu.closed = true
	f.mu.Unlock()
	stop := context.AfterFunc(ctx, f.abort)
	defer stop()
	err := f.tier.Close(ctx)
	f.stalled.Wait()
	return err
}

// Stats passes through. A tier without stats is online with zeros.
func (f *Faulty) Stats() driver.Stats {
	if s, ok := f.tier.(driver.Statser); ok {
		return s.Stats()
	}
	return driver.Stats{State: "online"}
}

// Blocks passes through; a tier that cannot list its blocks lists none.
func (f *Faulty) Blocks(fn func(h *driver.Held) bool) error {
	if e, ok := f.tier.(driver.Enumerator); ok {
		return e.Blocks(fn)
	}
	return nil
}

// SetHost passes through. A tier that drops no block by itself needs no Host.
func (f *Faulty) SetHost(host driver.Host) {
	f.mu.Lock()
	f.mu.host = host
	f.mu.Unlock()
	if h, ok := f.tier.(driver.Hosted); ok {
		h.SetHost(host)
	}
}

// lost reports a copy that the plan has made corrupt to the Host.
func (f *Faulty) lost(key block.Key) {
	f.mu.Lock()
	host := f.mu.host
	f.mu.Unlock()
	if host != nil {
		host.Lost(key, block.ErrCorrupt)
	}
}

// KeepsUser implements driver.UserKeeper: all tiers that are tested with faults are one.
func (f *Faulty) KeepsUser() {}

// Update passes through. If the tier cannot rename, Update drops both blocks, so that none stays
// under a wrong name or with old attributes, and returns false.
func (f *Faulty) Update(from, to block.Key, a *driver.Attrs) bool {
	if r, ok := f.tier.(driver.Recorder); ok {
		return r.Update(from, to, a)
	}
	f.tier.Remove([]block.Key{from, to})
	return false
}

// Sync passes through, then stalls or fails as the plan says. If the tier makes nothing durable,
// Sync fails with ErrUnavailable.
func (f *Faulty) Sync(done func(error)) {
	fault, _ := f.plan.next(OpSync, block.Key{})
	faulted := func(err error) {
		if err == nil && fault.Err != nil {
			err = &block.Error{Op: OpSync.String(), Tier: "faulty", Err: fault.Err}
		}
		f.deliver([]Fault{fault}, func() { done(err) })
	}
	if s, ok := f.tier.(driver.Syncer); ok {
		s.Sync(faulted)
		return
	}
	// Ends with done, which waits only for an injected stall.
	go faulted(&block.Error{Op: OpSync.String(), Tier: "faulty", Err: block.ErrUnavailable})
}
