package transfer

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
)

// FetchAside fetches a block of other nodes into memory without a name, which another version may have meanwhile. w has
// the key, the size and the checksum of the block. The caller carries the block on: with LandLocked and Enter, or with
// Drop.
func (tr *Transfer) FetchAside(ctx context.Context, w Wanted) (*Fetched, error) {
	p := &promotion{e: tr, seq: w.Seq, tier: tr.Remote, away: make(chan struct{}), done: make(chan struct{})}
	p.Load = lane.Load{Size: w.Size, Sum: w.Sum, Copy: true, For: p}
	close(p.away)
	p.Key, _ = block.ParseKey(w.Path)
	tr.Mu.Lock()
	if tr.Mu.Closed {
		tr.Mu.Unlock()
		return nil, block.ErrClosed
	}
	dir, _, below := strings.Cut(w.Path, "/")
	if !below {
		dir = ""
	}
	p.bill = tr.Mu.Room.Group(tr.Mu.Room.Number(block.GroupID(dir))).Bill() // its owner is not known yet
	tr.orphans[p] = struct{}{}
	tr.Mu.Unlock()
	err := tr.roomForPromotion(ctx, p)
	if err == nil {
		p.blob, p.File, err = tr.memory.CreateFile(ctx, nil)
	}
	if err != nil {
		tr.noRoom(p, err)
		return nil, err
	}
	done := make(chan *driver.Outcome, 1)
	var settled atomic.Bool // by the first of two: the tier, or the caller when it stops waiting
	p.aside = func(o *driver.Outcome) {
		if !settled.CompareAndSwap(false, true) {
			tr.failPromotion(p, block.ErrNotFound) // now that nothing writes to its file
			return
		}
		done <- o
	}
	tr.requestLoad(p)
	t := time.NewTimer(tr.Opts.PromoteTimeout)
	defer t.Stop()
	err = block.ErrNotFound
	select {
	case o := <-done:
		return tr.fetchedAside(p, o)
	case <-p.done: // the engine is being closed
		return nil, p.err
	case <-t.C:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if !settled.CompareAndSwap(false, true) {
		return tr.fetchedAside(p, <-done)
	}
	return nil, err
}

func (tr *Transfer) fetchedAside(p *promotion, o *driver.Outcome) (*Fetched, error) {
	if o.Status == driver.Loaded {
		return &Fetched{p, o}, nil
	}
	err := errors.Join(block.ErrNotFound, o.Err)
	tr.failPromotion(p, err)
	return nil, err
}

// Wanted is a block that is to be fetched from other nodes.
type Wanted struct {
	Path string
	Seq  uint64
	Size int64 // bytes
	Sum  block.Checksum
}

// Fetched is a block in memory that has no entry yet. It ends with Enter or with Drop.
type Fetched struct {
	p *promotion
	o *driver.Outcome
}

// LandLocked makes the block that of an entry. It returns false if the entry has a load of its own, or is not for this
// block.
func (f *Fetched) LandLocked(id index.ID) bool {
	p, e := f.p, f.p.e
	en := e.Mu.Ix.At(id)
	if e.promotions[id] != nil || en.Seq() != p.seq || en.Size() != p.Size || !e.NonresidentLocked(id, en) {
		return false
	}
	delete(e.orphans, p)
	e.promotions[id] = p
	p.id, p.waiters = id, 1
	return true
}

// Enter enters the block in memory, once it has landed. The caller then has one of the entry's Opens. It fails as a
// promotion does.
func (f *Fetched) Enter() error {
	e := f.p.e
	e.learnAttrs(f.p, f.o.Attrs)
	e.finishPromotion(e.Remote, f.p, f.o)
	return f.p.err
}

// Drop gives the block up.
func (f *Fetched) Drop(err error) { f.p.e.failPromotion(f.p, err) }
