package tiers

import (
	"context"
	"errors"
	"time"

	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/state"
)

// Engine is the store: names, blocks, and the tiers of each block. It decides what may be evicted. All methods may be
// called in parallel. See doc.go for the lock order and for a load and a store step by step.
//
// Each part of it is a room: a type with the methods of one subject. The rooms share core, and call each other by its
// fields (e.drafts.commit). The exported methods of the rooms are the methods of Engine.
type Engine struct {
	*core
	*names
	*lookups
	*verdicts
	*report
	*attrs
	*opens
	*drafts
	*renames
	*loads
	*copies
	*space
	*elsewhere
	*lending
}

// Open makes an engine over opts.Primary and adopts the files that an earlier process left there. It fails with all
// violations of opts at once, or with the error of a tier.
func Open(ctx context.Context, opts state.Options) (*Engine, error) {
	if err := opts.Fill(); err != nil {
		return nil, err
	}
	e := newEngine(opts)
	if err := e.space.openRoom(); err != nil {
		return nil, err
	}
	e.copies.addSecondaries()
	a := &adoption{e.core}
	if err := a.adopt(); err != nil {
		return nil, err
	}
	if err := a.enumerate(); err != nil {
		return nil, err
	}
	a.shrinkAdopted()
	if _, err := e.space.look(); err != nil {
		return nil, err
	}
	e.Mu.SetCheck(e.CheckLocked)
	ctx, e.Cancel = context.WithCancel(context.WithoutCancel(ctx))
	e.Ctx = ctx
	for _, s := range e.Tiers {
		e.Work.Go(func() { s.Run(ctx) }) // likewise
	}
	e.Work.Go(func() { e.space.runEvictor(ctx) }) // ends when Close cancels ctx
	e.Work.Go(func() { e.runExpiry(ctx) })        // likewise
	return e, nil
}

// newEngine makes an engine with all its rooms. It has no secondary tier and no names yet.
func newEngine(opts state.Options) *Engine {
	c := &core{State: state.New(opts)}
	c.names, c.lookups, c.report, c.attrs = &names{core: c}, &lookups{core: c}, &report{c}, &attrs{core: c}
	c.verdicts = &verdicts{c}
	c.opens, c.drafts, c.renames = &opens{core: c}, &drafts{core: c}, &renames{c}
	c.Recorder = c.drafts
	c.loads = &loads{core: c, promotions: map[index.ID]*promotion{}, orphans: map[*promotion]struct{}{}}
	c.copies, c.space = &copies{c}, &space{core: c, wake: make(chan struct{}, 1)}
	c.elsewhere, c.lending = &elsewhere{core: c}, &lending{core: c}
	return &Engine{
		core: c, names: c.names, lookups: c.lookups, verdicts: c.verdicts, report: c.report, attrs: c.attrs,
		opens: c.opens, drafts: c.drafts, renames: c.renames, loads: c.loads, copies: c.copies, space: c.space,
		elsewhere: c.elsewhere, lending: c.lending,
	}
}

// Close stops the background work and closes the tiers. If keep is set, the primary tier keeps the committed blocks
// for a later process. The caller closes all files first, and calls Drain if blocks that are not copied down yet
// matter. ctx bounds the wait for secondary tiers.
func (e *Engine) Close(ctx context.Context, keep bool) error {
	e.Mu.Lock()
	if e.Mu.Closed {
		e.Mu.Unlock()
		return nil
	}
	e.Mu.Closed = true
	for _, s := range e.Tiers {
		s.StopLocked()
	}
	files := make([]state.WriteSide, 0, len(e.Mu.Files))
	for _, f := range e.Mu.Files {
		files = append(files, f)
	}
	e.Mu.Unlock()
	e.Cancel()
	e.Work.Wait()
	err := e.closeTiers(ctx)
	for _, f := range files {
		f.CloseFile()
	}
	e.EventLog.Close()
	return errors.Join(err, e.Primary.Close(keep))
}

// runExpiry removes files past their time to live, temporary files that were not open for
// TempExpiry, versions that no process can name any more, and groups without files.
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
		e.Mu.Lock()
		e.space.expireLocked(&g)
		e.Mu.Room.Forget()
		line := e.SummarizeLocked(&lane.Batch{})
		e.Mu.Unlock()
		e.Finish(&g)
		e.drafts.expireVersions()
		strays = e.elsewhere.settleStrays(strays)
		e.LogSummary(line)
		e.opens.tellTouched()
		e.loads.expirePromotions()
	}
}

// expiryTick is the time between two rounds of runExpiry. Look-ups and opens check by
// themselves, so it only bounds how long expired bytes stay in memory.
const expiryTick = time.Second
