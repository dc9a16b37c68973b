package transfer

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/state"
)

// CascadeLocked queues a copy of a block to every tier that lacks it. It is called when
// a block is committed and no process has it open for writing.
func (tr *Transfer) CascadeLocked(id index.ID, en *index.Entry) {
	for _, s := range tr.Tiers {
		tr.CascadeToLocked(s, id, en)
	}
}

// cascadableLocked reports whether a block may go to secondary tiers. A file under a temporary name may not. The raw
// files of pinned groups and plain names may not either, because they change at any time.
func (tr *Transfer) cascadableLocked(id index.ID, en *index.Entry) bool {
	return en.IsRegular() && en.Committed() && en.InMemory() &&
		tr.Mu.Ix.Linked(id) && tr.Mu.Kind(en) == draft.Block
}

// CascadeToLocked queues a copy of a block to one tier, if the block is for that tier.
func (tr *Transfer) CascadeToLocked(s *state.Secondary, id index.ID, en *index.Entry) {
	synced := en.Synced() && s == tr.Keeper()
	if (en.Tiers()|en.Storing())&s.Bit != 0 || s.Opts.Cascade == state.CascadeOff && !synced || !tr.cascadableLocked(id, en) {
		return
	}
	if s.Opts.SecondHit && !synced && !s.AdmitLocked(tr.Mu.PathHash(id)) {
		tr.ApplyLocked(catalog.Seen{ID: id, Once: true})
		return
	}
	if s.Opts.Cascade == state.CascadeOnEvict && !synced {
		return // CleanLocked copies it when it is evicted
	}
	if s.FullLocked(en.Size()) && !synced {
		s.DeferLocked(id, en.Seq())
		return
	}
	tr.copyLocked(s, id, en, lane.Store{Burst: tr.burstLocked(id, en)}, false)
}

// burstLocked returns the burst in which a block was written, for a copy that is made in the order of the commits. A
// block that is evicted before its copy is made follows the later ones of its burst: its copy needs none.
func (tr *Transfer) burstLocked(id index.ID, en *index.Entry) uint16 {
	return uint16(tr.Mu.Room.BurstOf(tr.Mu.Bill(en), uint32(id)))
}

// copyLocked puts a copy of a block into the queue of a tier. like has the options of the copy. urgent puts it before
// all others. Each of the waiters gets the result.
func (tr *Transfer) copyLocked(s *state.Secondary, id index.ID, en *index.Entry, like lane.Store, urgent bool, waiters ...chan<- error) {
	like.ID, like.Seq, like.Bytes = id, en.Seq(), en.Size()
	like.Force = like.Force || en.Synced() && s == tr.Keeper()
	op := &like
	if !s.KeepsUser && en.Flags()&index.FlagUser != 0 { // never a copy without its attributes
		tr.ApplyLocked(catalog.Refused{ID: id})
		for _, w := range waiters {
			w <- &block.Error{Op: "store", Tier: s.Opts.Name, Err: block.ErrNoSpace}
		}
		return
	}
	for _, w := range waiters {
		op.Wait(w)
	}
	s.PushLocked(op, urgent)
	tr.ApplyLocked(catalog.Queued{ID: id, Bit: s.Bit})
}

// DropCopiesLocked takes a block that is gone out of the tiers, voids its stores, and parts its promotion from the entry:
// another block may get the entry.
func (tr *Transfer) DropCopiesLocked(id index.ID, en *index.Entry) {
	if en.Storing() != 0 {
		for _, s := range tr.Tiers {
			s.VoidLocked(id, en.Seq())
		}
	}
	tr.RemoveCopiesLocked(id, en)
	if p := tr.promotions[id]; p != nil {
		tr.orphanLocked(p)
	}
}

// CleanLocked queues a copy of a block that is about to be evicted, and reports whether the copy
// is under way or its turn will come. If other nodes have copies, the copy goes to a device of this
// node, if there is one, because the others may evict theirs at any time. leaving: see leaveLocked.
func (tr *Transfer) CleanLocked(id index.ID, en *index.Entry, leaving bool) bool {
	if en.Storing() != 0 {
		return true
	}
	if en.Flags()&(index.FlagRefused|index.FlagOnceSeen) != 0 || !tr.cascadableLocked(id, en) {
		return false
	}
	for _, s := range tr.Tiers {
		if s.Opts.Cascade == state.CascadeOff || en.Tiers() != 0 && s == tr.Remote || en.Tiers()&s.Bit != 0 {
			continue
		}
		if !s.FullLocked(en.Size()) {
			tr.copyLocked(s, id, en, lane.Store{Leaving: leaving && s.Opts.Cascade == state.CascadeOnEvict}, false)
		}
		return true // queued, or its turn will come
	}
	return false
}

// CleanSome queues copies of blocks that are about to be evicted, and waits until the tiers have those that they take.
// A block that is being written gets no copy.
func (tr *Transfer) CleanSome(ctx context.Context, ids []index.ID) error {
	for len(ids) > 0 && tr.Lazy != 0 {
		var later []index.ID
		tr.Mu.Lock()
		for _, id := range ids {
			if !tr.Mu.Ix.Valid(id) || !tr.Mu.Ix.Linked(id) {
				continue
			}
			if en := tr.Mu.Ix.At(id); en.Tiers()|en.Storing() == 0 && tr.CleanLocked(id, en, false) && en.Storing() == 0 {
				later = append(later, id) // the queue is full
			}
		}
		tr.Mu.Unlock()
		if err := tr.DrainPresent(ctx); err != nil {
			return err
		}
		if len(later) == len(ids) {
			return nil
		}
		ids = later
	}
	return nil
}

// storeNow copies a block down to a tier ahead of all others, and waits until the copy is there. force disregards the
// write budget and the admission of the tier. It returns false if the block is not for that tier.
func (tr *Transfer) storeNow(ctx context.Context, w state.Waiter, s *state.Secondary, id index.ID, force bool) (bool, error) {
	for {
		done := make(chan error, 1)
		joined := false
		tr.Mu.Lock()
		en := tr.Mu.Ix.At(id)
		switch {
		case en.Tiers()&s.Bit != 0:
			tr.Mu.Unlock()
			return true, nil
		case tr.Mu.Closed:
			tr.Mu.Unlock()
			return false, block.ErrClosed
		case !tr.cascadableLocked(id, en):
			tr.Mu.Unlock()
			return false, nil
		case !force && s.Opts.SecondHit && (en.Flags()&index.FlagOnceSeen != 0 || !s.AdmittedLocked(tr.Mu.PathHash(id))):
			tr.Mu.Unlock()
			return false, nil // the end of the write counts this use
		case en.Storing()&s.Bit != 0 && s.JoinLocked(id, en.Seq(), force, done):
			joined = true
		default:
			tr.copyLocked(s, id, en, lane.Store{Force: force}, true, done)
		}
		tr.Mu.Unlock()
		err := waitStored(ctx, w, done)
		if joined && force && errors.Is(err, block.ErrBudget) {
			continue // it was under way when it became urgent
		}
		return true, err
	}
}

// waitStored waits for the result of a store. A block that was replaced or removed meanwhile needs no copy.
func waitStored(ctx context.Context, w state.Waiter, done <-chan error) (err error) {
	select {
	case err = <-done: // already
	default:
		state.Announce(w)
		select {
		case err = <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if errors.Is(err, block.ErrNotFound) {
		return nil
	}
	return err
}

// flushTier waits until all blocks, removals and renames that a tier has so far are durable.
func (tr *Transfer) flushTier(ctx context.Context, w state.Waiter, s *state.Secondary) error {
	told := make(chan error, 1) // the tier has all removals and renames so far
	tr.Mu.Lock()
	s.AfterKeyedLocked(func() { told <- nil })
	tr.Mu.Unlock()
	if err := waitStored(ctx, w, told); err != nil {
		return err
	}
	done := make(chan error, 1)
	s.Syncer.Sync(func(err error) { done <- err })
	return waitStored(ctx, w, done)
}

// makeDurable waits until a committed block is stored and synced. A tier may refuse the name or the attributes that the
// copy is to have, and give it up: it is stored anew once.
func (tr *Transfer) makeDurable(ctx context.Context, w state.Waiter, id index.ID) error {
	s := tr.Keeper()
	if s == nil {
		return nil
	}
	for range 2 {
		if ok, err := tr.storeNow(ctx, w, s, id, true); err != nil || !ok {
			return err
		}
		if err := tr.flushTier(ctx, w, s); err != nil {
			return err
		}
		tr.Mu.Lock()
		has := tr.Mu.Ix.At(id).Tiers()&s.Bit != 0
		tr.Mu.Unlock()
		if has {
			break
		}
	}
	return nil
}

// AfterCommit waits for the copy of a committed block, if the cascade is synchronous
// or if sync is set: a process called fsync before.
func (tr *Transfer) AfterCommit(ctx context.Context, w state.Waiter, id index.ID, sync bool) error {
	if sync {
		return tr.makeDurable(ctx, w, id)
	}
	for _, s := range tr.Tiers {
		if s.Opts.Cascade != state.CascadeSync {
			continue
		}
		if _, err := tr.storeNow(ctx, w, s, id, false); err != nil {
			tr.Log.Warn("block not copied", zap.String("tier", s.Opts.Name), zap.Error(err))
		}
	}
	return nil
}

// CloseTiers ends the waits for the secondary tiers, and closes the tiers after the removals and updates that are
// left. Nothing else is begun by now. An upper tier closes after those below it: a process that waits for its lock then finds
// what the lower ones used, such as an address, free. Each has half of the time that is left, the last one all of it.
func (tr *Transfer) CloseTiers(ctx context.Context) error {
	for _, s := range tr.Tiers {
		s.TurnAway()
	}
	var errs []error
	for i, s := range slices.Backward(tr.Tiers) {
		share, cancel := ctx, context.CancelFunc(func() {})
		if due, ok := ctx.Deadline(); ok && i > 0 {
			share, cancel = context.WithTimeout(ctx, time.Until(due)/2)
		}
		errs = append(errs, s.Lane.Close(share))
		cancel()
	}
	return errors.Join(errs...)
}
