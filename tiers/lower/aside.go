package lower

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/state"
)

// FetchAside fetches a block of other nodes into memory without a name, because another version has the name. w has
// the key, the size and the checksum of the block. The caller carries the block on: with LandLocked and Enter, or with
// Drop.
func (ld *loads) FetchAside(ctx context.Context, w state.Wanted) (state.Fetched, error) {
	p := &promotion{e: ld.core, seq: w.Seq, tier: ld.Remote, away: make(chan struct{}), done: make(chan struct{})}
	p.Load = lane.Load{Size: w.Size, Sum: w.Sum, Copy: true, For: p}
	close(p.away)
	p.Key, _ = block.ParseKey(w.Path)
	ld.Mu.Lock()
	if ld.Mu.Closed {
		ld.Mu.Unlock()
		return nil, block.ErrClosed
	}
	dir, _, below := strings.Cut(w.Path, "/")
	if !below {
		dir = ""
	}
	p.bill = ld.Mu.Room.Group(ld.Mu.Room.Number(block.GroupID(dir))).Bill() // its owner is not known yet
	ld.orphans[p] = struct{}{}
	ld.Mu.Unlock()
	err := ld.roomForPromotion(ctx, p)
	if err == nil {
		p.blob, p.File, err = ld.space.CreateFile(ctx, nil)
	}
	if err != nil {
		ld.noRoom(p, err)
		return nil, err
	}
	done := make(chan *driver.Outcome, 1)
	var settled atomic.Bool // by the first of two: the tier, or the caller when it stops waiting
	p.aside = func(o *driver.Outcome) {
		if !settled.CompareAndSwap(false, true) {
			ld.failPromotion(p, block.ErrNotFound) // now that nothing writes to its file
			return
		}
		done <- o
	}
	ld.requestLoad(p)
	t := time.NewTimer(ld.Opts.PromoteTimeout)
	defer t.Stop()
	err = block.ErrNotFound
	select {
	case o := <-done:
		return ld.fetchedAside(p, o)
	case <-p.done: // the engine is being closed
		return nil, p.err
	case <-t.C:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if !settled.CompareAndSwap(false, true) {
		return ld.fetchedAside(p, <-done)
	}
	return nil, err
}

func (ld *loads) fetchedAside(p *promotion, o *driver.Outcome) (state.Fetched, error) {
	if o.Status == driver.Loaded {
		return &fetched{p, o}, nil
	}
	err := errors.Join(block.ErrNotFound, o.Err)
	ld.failPromotion(p, err)
	return nil, err
}

// fetched is a promotion that has loaded its block and has no entry yet.
type fetched struct {
	p *promotion
	o *driver.Outcome
}

// LandLocked implements Fetched. It makes the promotion that of the entry.
func (f *fetched) LandLocked(id index.ID) bool {
	p, e := f.p, f.p.e.loads
	en := e.Mu.Ix.At(id)
	if e.promotions[id] != nil || en.Seq != p.seq || en.Size != p.Size || !e.HollowLocked(id, en) {
		return false
	}
	delete(e.orphans, p)
	e.promotions[id] = p
	p.id, p.waiters = id, 1
	return true
}

// Enter implements Fetched.
func (f *fetched) Enter() error {
	e := f.p.e.loads
	e.learnAttrs(f.p, f.o.Attrs)
	e.finishPromotion(e.Remote, f.p, f.o)
	return f.p.err
}

// Drop implements Fetched.
func (f *fetched) Drop(err error) { f.p.e.loads.failPromotion(f.p, err) }

// PromoteTaken is promote for a block that Take copies.
func (ld *loads) PromoteTaken(ctx context.Context, id index.ID) error {
	ld.Mu.Lock()
	p, first := ld.promotionLocked(id, false)
	if p == nil {
		ld.Mu.Unlock()
		return state.ErrStale
	}
	if first { // else the tier may be loading it, and another process waits for it
		p.Copy = true
	}
	p.waiters++
	p.tier.HastenLocked(&p.Load)
	ld.Mu.Unlock()
	if first {
		ld.startPromotion(p)
	}
	return ld.awaitPromotion(ctx, p, nil, state.NoDeadline)
}
