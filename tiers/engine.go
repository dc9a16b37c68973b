package tiers

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/kvfs/kvfs/tiers/elsewhere"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/lower"
	"github.com/kvfs/kvfs/tiers/names"
	"github.com/kvfs/kvfs/tiers/space"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/writing"
)

// Engine is the store: names, blocks, and the tiers of each block. It decides what may be evicted. All methods may be
// called in parallel. See doc.go for the lock order and for a load and a store step by step.
//
// Its methods are those of its rooms, which are packages below this one, and say there in full what they do. The rooms
// share a state.State.
type Engine struct{ core *core }

// core is the rooms and what they share.
type core struct {
	*state.State

	names     *names.Room
	writing   *writing.Room
	space     *space.Room
	lower     *lower.Room
	elsewhere *elsewhere.Room
	verdicts  *verdicts
	report    *report
}

// Open makes an engine over opts.Primary and adopts the files that an earlier process left there. It fails with all
// violations of opts at once, or with the error of a tier.
func Open(ctx context.Context, opts state.Options) (*Engine, error) {
	if err := opts.Fill(); err != nil {
		return nil, err
	}
	e := newEngine(opts)
	if err := e.core.space.OpenRoom(); err != nil {
		return nil, err
	}
	e.core.lower.AddSecondaries()
	e.core.MeterReuse()
	a := &adoption{e.core}
	if err := a.adopt(); err != nil {
		return nil, err
	}
	if err := a.enumerate(); err != nil {
		return nil, err
	}
	a.shrinkAdopted()
	if _, err := e.core.space.Look(); err != nil {
		return nil, err
	}
	e.core.CheckCountsLocked()
	e.core.Mu.SetCheck(e.core.CheckLocked)
	ctx, e.core.Cancel = context.WithCancel(context.WithoutCancel(ctx))
	e.core.Ctx = ctx
	for _, s := range e.core.Tiers {
		e.core.Work.Go(func() { s.Run(ctx) }) // ends when Close cancels ctx
	}
	e.core.Work.Go(func() { e.core.space.RunEvictor(ctx) }) // likewise
	e.core.Work.Go(func() { e.runExpiry(ctx) })             // likewise
	return e, nil
}

// newEngine makes an engine with all its rooms, each of which sees the others by the interfaces that it declares. The
// engine has no secondary tier and no names yet.
func newEngine(opts state.Options) *Engine {
	c := &core{State: state.New(opts)}
	c.names, c.writing, c.space = names.New(c.State), writing.New(c.State), space.New(c.State)
	c.lower, c.elsewhere = lower.New(c.State), elsewhere.New(c.State)
	c.verdicts, c.report = &verdicts{c}, &report{c}
	c.names.Connect(c.elsewhere, c.lower, c.writing)
	c.writing.Connect(c.elsewhere, c.lower, c.names, c.space)
	c.space.Connect(c.elsewhere, c.lower, c.names, c.writing)
	c.lower.Connect(c.elsewhere, c.names, c.space, c.verdicts, c.writing)
	c.elsewhere.Connect(c.lower, c.names, c.writing)
	c.Recorder = c.writing
	return &Engine{c}
}

// Close stops the background work and closes the tiers. If keep is set, the primary tier keeps the committed blocks
// for a later process. The caller closes all files first, and calls Drain if blocks that are not copied down yet
// matter. ctx bounds the wait for secondary tiers.
func (e *Engine) Close(ctx context.Context, keep bool) error {
	e.core.Mu.Lock()
	if e.core.Mu.Closed {
		e.core.Mu.Unlock()
		return nil
	}
	e.core.Mu.Closed = true
	e.core.CheckCountsLocked()
	for _, s := range e.core.Tiers {
		s.StopLocked()
	}
	files := slices.Collect(maps.Values(e.core.Mu.Files))
	e.core.Mu.Unlock()
	e.core.Cancel()
	e.core.Work.Wait()
	err := e.core.lower.CloseTiers(ctx)
	for _, f := range files {
		f.CloseFile()
	}
	e.core.EventLog.Close()
	return errors.Join(err, e.core.Primary.Close(keep))
}

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
		e.core.Mu.Lock()
		e.core.space.ExpireLocked(&g)
		e.core.Mu.Room.Forget()
		line := e.core.SummarizeLocked(&lane.Batch{})
		e.core.Mu.Unlock()
		e.core.Finish(&g)
		e.core.writing.ExpireFiles()
		strays = e.core.elsewhere.SettleStrays(strays)
		e.core.LogSummary(line)
		e.core.writing.TellTouched()
		e.core.lower.ExpirePromotions()
	}
}

// expiryTick is the time between two rounds of runExpiry. Look-ups and opens check by
// themselves, so it only bounds how long expired bytes stay in memory.
const expiryTick = time.Second
