package tiers

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
)

// Take copies a block that the Remote tier has to this node, as the holder of the block asks, and has it copied to
// the tiers below that are not Remote. It blocks until the block is in memory. It makes room as any promotion does:
// blocks that are leased or have no other copy stay. An older version that this node has stays until the new one is
// here.
//
// It fails with ErrExist if this node has this version or a later one, or if another file has the name; with
// ErrNoSpace; with ErrNotFound if the Remote tier cannot give the block; with ErrInvalid if h is no file; or with
// ctx's error.
func (e *lending) Take(ctx context.Context, h *Holding) error {
	if err := block.CheckPath(h.Path); err != nil {
		return err
	}
	if e.remote == nil || h.Mode&modeType != modeRegular || h.Size < 0 || !e.elsewhere.plausible(h.Seq) {
		return &block.Error{Op: "take", Err: block.ErrInvalid}
	}
	var p *promotion
	var o *driver.Outcome
	if e.hasOlder(h) {
		var err error
		if p, o, err = e.fetchAside(ctx, h); err != nil {
			return bringError("take", err)
		}
	}
	id, landed, err := e.enterTaken(h, p)
	if err != nil {
		return err
	}
	defer e.names.Forget(id, 1)
	if landed {
		e.elsewhere.learnAttrs(p, o.Attrs)
		e.loads.finishPromotion(e.remote, p, o)
		err = p.err
	} else {
		err = e.promoteTaken(ctx, id)
	}
	if err != nil {
		return bringError("take", err)
	}
	e.cascadeTaken(id, h.Seq)
	e.opens.CloseRead(id) // gives back the pin of the promotion
	return nil
}

// enterTaken enters the block h, and counts a reference to the entry so that it stays. p is the promotion that fetched
// the block already, nil if none did. It becomes that of the entry, which landed reports; otherwise it fails.
func (e *lending) enterTaken(h *Holding, p *promotion) (id index.ID, landed bool, err error) {
	var g gone
	e.mu.Lock()
	e.elsewhere.observeLocked(h.Seq)
	if id, err = e.takeLocked(h, p != nil, &g); err == nil {
		e.mu.ix.At(id).Lookups++
		landed = p != nil && e.landLocked(p, id)
	}
	e.mu.Unlock()
	e.finish(&g)
	if p != nil && !landed {
		e.loads.failPromotion(p, ErrStale)
	}
	return id, landed, err
}

// cascadeTaken copies a block to the tiers of this node, if the entry still has the version seq.
func (e *lending) cascadeTaken(id index.ID, seq uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	en := e.mu.ix.At(id)
	if !e.mu.ix.Linked(id) || en.Seq != seq {
		return
	}
	for _, s := range e.tiers {
		if s != e.remote {
			e.copies.cascadeToLocked(s, id, en)
		}
	}
}

// promoteTaken is promote for a block that Take copies.
func (e *lending) promoteTaken(ctx context.Context, id index.ID) error {
	e.mu.Lock()
	p, first := e.loads.promotionLocked(id, false)
	if p == nil {
		e.mu.Unlock()
		return ErrStale
	}
	p.Copy = p.Copy || first
	p.waiters++
	p.tier.HastenLocked(&p.Load)
	e.mu.Unlock()
	if first {
		e.loads.startPromotion(p)
	}
	return e.loads.awaitPromotion(ctx, p, nil, noDeadline)
}

// hasOlder reports whether this node itself has a version that is to give way to the block h.
func (e *lending) hasOlder(h *Holding) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	id := e.mu.ix.Walk(h.Path)
	return id != 0 && e.outdoneLocked(e.mu.ix.At(id), h)
}

// outdoneLocked reports whether an entry gives way to the block h.
func (e *lending) outdoneLocked(en *index.Entry, h *Holding) bool {
	return en.Mode&modeType == modeRegular && en.Seq < h.Seq && en.Flags&flagUncommitted == 0 &&
		!e.mu.room.Group(en.Group).Pinned() && (en.Blob != 0 || e.ownTiers(en) != 0)
}

// fetchAside fetches a block into memory without a name, because another version has the name. The caller carries
// the promotion on, with landLocked and finishPromotion, or with failPromotion.
func (e *lending) fetchAside(ctx context.Context, h *Holding) (*promotion, *driver.Outcome, error) {
	p := &promotion{e: e.core, seq: h.Seq, tier: e.remote, away: make(chan struct{}), done: make(chan struct{})}
	p.Load = lane.Load{Size: h.Size, Sum: h.Sum, Copy: true, For: p}
	close(p.away)
	p.Key, _ = block.ParseKey(h.Path)
	e.mu.Lock()
	if e.mu.closed {
		e.mu.Unlock()
		return nil, nil, block.ErrClosed
	}
	dir, _, below := strings.Cut(h.Path, "/")
	if !below {
		dir = ""
	}
	p.group = e.mu.room.Group(e.mu.room.Number(block.GroupID(dir)))
	e.mu.orphans[p] = struct{}{}
	e.mu.Unlock()
	err := e.loads.roomForPromotion(ctx, p)
	if err == nil {
		p.blob, p.File, err = e.space.createFile(ctx, nil)
	}
	if err != nil {
		e.loads.noRoom(p, err)
		return nil, nil, err
	}
	done := make(chan *driver.Outcome, 1)
	var settled atomic.Bool // by the first of two: the tier, or the caller when it stops waiting
	p.aside = func(o *driver.Outcome) {
		if !settled.CompareAndSwap(false, true) {
			e.loads.failPromotion(p, block.ErrNotFound) // now that nothing writes to its file
			return
		}
		done <- o
	}
	e.loads.requestLoad(p)
	t := time.NewTimer(e.opts.PromoteTimeout)
	defer t.Stop()
	err = block.ErrNotFound
	select {
	case o := <-done:
		return e.fetchedAside(p, o)
	case <-p.done: // the engine is being closed
		return nil, nil, p.err
	case <-t.C:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if !settled.CompareAndSwap(false, true) {
		return e.fetchedAside(p, <-done)
	}
	return nil, nil, err
}

func (e *lending) fetchedAside(p *promotion, o *driver.Outcome) (*promotion, *driver.Outcome, error) {
	if o.Status == driver.Loaded {
		return p, o, nil
	}
	err := errors.Join(block.ErrNotFound, o.Err)
	e.loads.failPromotion(p, err)
	return nil, nil, err
}

// landLocked makes p, which has fetched a block, the promotion of the entry that was made for the block. It returns
// false if the entry has a promotion already or is not for that block any more.
func (e *lending) landLocked(p *promotion, id index.ID) bool {
	en := e.mu.ix.At(id)
	if e.mu.promotions[id] != nil || en.Seq != p.seq || en.Size != p.Size || !e.hollowLocked(id, en) {
		return false
	}
	delete(e.mu.orphans, p)
	e.mu.promotions[id] = p
	p.id, p.waiters = id, 1
	return true
}

// takeLocked enters the block h and the directories above it. over says that it may replace an older version of this
// node's own. It looks for a grave, because one may have come since the offer: a grave is told of only once, and
// Supersede found nothing to drop then.
func (e *lending) takeLocked(h *Holding, over bool, g *gone) (index.ID, error) {
	if e.far.Buried(h.Path) > h.Seq {
		return 0, &block.Error{Op: "take", Err: block.ErrExist}
	}
	parent, rest := index.Root, h.Path
	for depth := 0; ; depth++ {
		name, tail, more := strings.Cut(rest, "/")
		id := e.mu.ix.Lookup(parent, name)
		if !more {
			return e.takeFileLocked(parent, name, id, h, over, g)
		}
		if id == 0 {
			l := driver.Located{Seq: h.Seq, Mode: modeDir | 0o755, Mtime: h.Mtime}
			if depth < len(h.Dirs) {
				l.Mode, l.UID, l.GID = modeDir|h.Dirs[depth].Mode&0o7777, h.Dirs[depth].UID, h.Dirs[depth].GID
			}
			id = e.elsewhere.enterLocked(parent, name, &l)
		}
		if en := e.mu.ix.At(id); en.Mode&modeType != modeDir || en.Flags&flagTemp != 0 {
			return 0, &block.Error{Op: "take", Err: block.ErrExist}
		}
		parent, rest = id, tail
	}
}

func (e *lending) takeFileLocked(parent index.ID, name string, id index.ID, h *Holding, over bool, g *gone) (index.ID, error) {
	if len(e.mu.waiting[nameKey{parent, name}]) > 0 || e.nameFlagsLocked(parent, name) != 0 {
		return 0, &block.Error{Op: "take", Err: block.ErrExist}
	}
	if id != 0 {
		en := e.mu.ix.At(id)
		switch {
		case e.farLocked(id, en) && en.Seq == h.Seq:
			return id, nil
		case over && e.outdoneLocked(en, h), e.farLocked(id, en) && en.Seq < h.Seq:
			e.mu.counters.Superseded++
			e.names.dropNameLocked(id, en, event.Removed, fate.Cause{Reason: fate.ReasonReplaced}, g)
		default:
			return 0, &block.Error{Op: "take", Err: block.ErrExist}
		}
	}
	return e.elsewhere.enterLocked(parent, name, &driver.Located{
		Seq: h.Seq, Size: h.Size, Mode: h.Mode, UID: h.UID, GID: h.GID, Mtime: h.Mtime,
	}), nil
}

// Supersede drops this node's file or directory of a path if its version is below seq: another node has removed or
// replaced it. Open handles keep their bytes. If a known version replaced the file, a process that has just looked
// it up may still open it. A directory goes only if it is empty; else it is announced anew. A directory whose grave
// arrives before the graves of its files therefore stays, empty. The makers of graves see to the order. Where an
// exchange after a partition loses the order, an empty directory is the only harm.
func (e *lending) Supersede(path string, dir bool, seq uint64) {
	var g gone
	e.mu.Lock()
	if id := e.mu.ix.Walk(path); e.elsewhere.observeLocked(seq) && id != 0 && id != index.Root {
		e.supersedeLocked(id, dir, seq, &g)
	}
	e.mu.Unlock()
	e.finish(&g)
}

func (e *lending) supersedeLocked(id index.ID, dir bool, seq uint64, g *gone) {
	en := e.mu.ix.At(id)
	isDir := en.Mode&modeType == modeDir
	switch {
	case isDir != dir, en.Seq >= seq, en.Flags&flagUncommitted != 0, !isDir && e.mu.room.Group(en.Group).Pinned():
	case !isDir:
		e.mu.counters.Superseded++
		parent, reason := e.mu.ix.Parent(id), fate.ReasonSuperseded
		if e.remote != nil {
			if l, ok := e.elsewhere.locate(e.mu.ix.Path(id)); ok && l.Seq > en.Seq {
				reason = fate.ReasonReplaced
			}
		}
		e.names.dropNameLocked(id, en, event.Removed, fate.Cause{Reason: reason}, g)
		e.elsewhere.settleParentLocked(parent, g)
	case e.mu.ix.Children(id) == 0 && !e.drafts.waitsBelowLocked(id):
		if en.Lookups > 0 {
			g.names = append(g.names, goneName{parent: e.mu.ix.Parent(id), id: id, name: e.mu.ix.Name(id)})
		}
		e.names.dropDirLocked(id, en, g)
	case e.remote == nil || en.Tiers&e.remote.bit == 0:
		en.Seq = e.nextSeqLocked()
		e.elsewhere.dirEventLocked(event.DirCreated, id)
	}
}

// Observe raises the number that the next version gets above seq, unless seq is too far in the future.
func (e *lending) Observe(seq uint64) {
	e.mu.Lock()
	e.elsewhere.observeLocked(seq)
	e.mu.Unlock()
}
