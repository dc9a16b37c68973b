package tiers

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/memory"
	"github.com/kvfs/kvfs/tiers/names"
	"github.com/kvfs/kvfs/tiers/openfile"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/transfer"
)

// Engine is the store: names, blocks, and the tiers of each block. It decides what may be evicted. All methods may be
// called in parallel. What one package of the engine does alone are its methods; those of Engine itself need several. See
// doc.go for the lock order and for a load and a store step by step.
type Engine struct {
	*names.Names
	*memory.Memory
	*transfer.Transfer
	*openfile.Files

	st      *state.State
	streams state.Allowance // bytes lent from files of lendStream
}

// Open makes an engine over opts.Primary and adopts the files that an earlier process left there. It fails with all
// violations of opts at once, or with the error of a tier.
func Open(ctx context.Context, opts state.Options) (*Engine, error) {
	if err := opts.Fill(); err != nil {
		return nil, err
	}
	e := newEngine(opts)
	if err := e.Memory.OpenRoom(); err != nil {
		return nil, err
	}
	e.Transfer.AddSecondaries()
	e.st.MeterReuse()
	a := &adoption{e}
	if err := a.adopt(); err != nil {
		return nil, err
	}
	if err := a.enumerate(); err != nil {
		return nil, err
	}
	a.shrinkAdopted()
	if _, err := e.Memory.Look(); err != nil {
		return nil, err
	}
	e.st.CheckCountsLocked()
	e.st.Mu.SetCheck(e.st.CheckLocked)
	ctx, e.st.Cancel = context.WithCancel(context.WithoutCancel(ctx))
	e.st.Ctx = ctx
	for _, s := range e.st.Tiers {
		e.st.Work.Go(func() { s.Run(ctx) }) // ends when Close cancels ctx
	}
	e.st.Work.Go(func() { e.Memory.RunEvictor(ctx) }) // likewise
	e.st.Work.Go(func() { e.runExpiry(ctx) })         // likewise
	return e, nil
}

// newEngine makes an engine that has no secondary tier and no names yet.
func newEngine(opts state.Options) *Engine {
	st := state.New(opts)
	nm := names.New(st)
	mem := memory.New(st, nm)
	tr := transfer.New(st, nm, mem)
	files := openfile.New(st, nm, mem, tr)
	nm.Copies, mem.Clean, st.Recorder = tr, tr.CleanLocked, files
	return &Engine{Names: nm, Memory: mem, Transfer: tr, Files: files, st: st}
}

// Close stops the background work and closes the tiers. If keep is set, the primary tier keeps the committed blocks
// for a later process. The caller closes all files first, and calls Drain if blocks that are not copied down yet
// matter. ctx bounds the wait for secondary tiers.
func (e *Engine) Close(ctx context.Context, keep bool) error {
	e.st.Mu.Lock()
	if e.st.Mu.Closed {
		e.st.Mu.Unlock()
		return nil
	}
	e.st.Mu.Closed = true
	e.st.CheckCountsLocked()
	for _, s := range e.st.Tiers {
		s.StopLocked()
	}
	files := slices.Collect(maps.Values(e.st.Mu.Files))
	e.st.Mu.Unlock()
	e.st.Cancel()
	e.st.Work.Wait()
	err := e.Transfer.CloseTiers(ctx)
	e.st.Finish(&state.Gone{Files: files})
	e.st.EventLog.Close()
	return errors.Join(err, e.st.Primary.Close(keep))
}

// Lookup returns the entry called name in the directory parent, as the caller's process sees it.
func (e *Engine) Lookup(parent index.ID, name string, by state.Caller) (state.Attr, error) {
	a, nonresident, err := e.Names.Lookup(parent, name, by)
	if nonresident && e.st.Opts.PromoteOnLookup {
		e.Promote(e.st.Ctx, a.ID, transfer.Want{Hint: true})
	}
	return a, err
}

// Events returns the log of events about blocks.
func (e *Engine) Events() *event.Log { return e.st.EventLog }

// Writing reports whether any file is being written.
func (e *Engine) Writing() bool { return e.st.Writers.Load() > 0 }

// runExpiry removes files past their time to live, temporary files that were not open for
// TempExpiry, private files that no process opens any more, and groups without files.
func (e *Engine) runExpiry(ctx context.Context) {
	t := time.NewTicker(expiryTick)
	defer t.Stop()
	var strays []index.ID
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		var g state.Gone
		e.st.Mu.Lock()
		e.Memory.ExpireLocked(&g)
		e.st.Mu.Room.Forget()
		line := e.st.SummarizeLocked(&lane.Batch{})
		e.st.Mu.Unlock()
		e.st.Finish(&g)
		e.Files.ExpireFiles()
		strays = e.Names.SettleStrays(strays)
		e.st.LogSummary(line)
		e.Files.TellTouched()
		e.Transfer.ExpirePromotions()
	}
}

// expiryTick is the time between two rounds of runExpiry. Look-ups and opens check by
// themselves, so it only bounds how long expired bytes stay in memory.
const expiryTick = time.Second
