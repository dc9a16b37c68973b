package lower

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/state"
)

// copies is the room of copies in the tiers below memory. It makes, updates and removes them, and does fsync.
type copies struct{ *core }

// CascadeLocked queues a copy of a block to every tier that lacks it. It is called when
// a block is committed and no process has it open for writing.
func (cp *copies) CascadeLocked(id index.ID, en *index.Entry) {
	for _, s := range cp.Tiers {
		cp.CascadeToLocked(s, id, en)
	}
}

// cascadableLocked reports whether a block may go to secondary tiers. A file under a temporary name may not. The raw
// files of pinned groups and plain names may not either, because they change at any time.
func (cp *copies) cascadableLocked(id index.ID, en *index.Entry) bool {
	return en.IsRegular() && en.Committed() && en.InMemory() &&
		cp.Mu.Ix.Linked(id) && cp.KindLocked(en) == draft.Block
}

// CascadeToLocked queues a copy of a block to one tier, if the block is for that tier.
func (cp *copies) CascadeToLocked(s *state.Secondary, id index.ID, en *index.Entry) {
	synced := en.Synced() && s == cp.Keeper()
	if (en.Tiers|en.Storing)&s.Bit != 0 || s.Opts.Cascade == state.CascadeOff && !synced || !cp.cascadableLocked(id, en) {
		return
	}
	if s.Opts.SecondHit && !synced && !s.AdmitLocked(cp.PathHashLocked(id)) {
		en.Flags |= index.FlagOnceSeen
		return
	}
	if s.Opts.Cascade == state.CascadeOnEvict && !synced {
		return // CleanLocked copies it when it is evicted
	}
	if s.FullLocked(en.Size) && !synced {
		s.DeferLocked(id, en.Seq)
		return
	}
	cp.copyLocked(s, id, en, lane.Store{}, false)
}

// copyLocked puts a copy of a block into the queue of a tier. like has the options of the copy. urgent puts it before
// all others. Each of the waiters gets the result.
func (cp *copies) copyLocked(s *state.Secondary, id index.ID, en *index.Entry, like lane.Store, urgent bool, waiters ...chan<- error) {
	like.ID, like.Seq, like.Bytes = id, en.Seq, en.Size
	like.Force = like.Force || en.Synced() && s == cp.Keeper()
	op := &like
	for _, w := range waiters {
		op.Wait(w)
	}
	s.PushLocked(op, urgent)
	en.Storing |= s.Bit
}

// DropCopiesLocked takes a block that is gone out of the tiers, and voids its stores.
func (cp *copies) DropCopiesLocked(id index.ID, en *index.Entry) {
	cp.voidStoresLocked(id, en)
	cp.RemoveCopiesLocked(id, en)
}

// voidStoresLocked voids the stores of a block that are queued or under way, because the
// block is gone: another block may get its entry.
func (cp *copies) voidStoresLocked(id index.ID, en *index.Entry) {
	if en.Storing == 0 {
		return
	}
	for _, s := range cp.Tiers {
		s.VoidLocked(id, en.Seq)
	}
}

// CleanLocked queues a copy of a block that is about to be evicted, and reports whether the copy
// is under way or its turn will come. If other nodes have copies, the copy goes to a device of this
// node, if there is one, because the others may evict theirs at any time. leaving: see leaveLocked.
func (cp *copies) CleanLocked(id index.ID, en *index.Entry, leaving bool) bool {
	if en.Storing != 0 {
		return true
	}
	if en.Flags&(index.FlagRefused|index.FlagOnceSeen) != 0 || !cp.cascadableLocked(id, en) {
		return false
	}
	for _, s := range cp.Tiers {
		if s.Opts.Cascade == state.CascadeOff || en.Tiers != 0 && s == cp.Remote || en.Tiers&s.Bit != 0 {
			continue
		}
		if !s.FullLocked(en.Size) {
			cp.copyLocked(s, id, en, lane.Store{Leaving: leaving && s.Opts.Cascade == state.CascadeOnEvict}, false)
		}
		return true // queued, or its turn will come
	}
	return false
}

// CleanSome queues copies of blocks that are about to be evicted, and waits until the tiers have those that they take.
// A block that is being written gets no copy.
func (cp *copies) CleanSome(ctx context.Context, ids []index.ID) error {
	for len(ids) > 0 && cp.Lazy != 0 {
		var later []index.ID
		cp.Mu.Lock()
		for _, id := range ids {
			if !cp.Mu.Ix.Valid(id) || !cp.Mu.Ix.Linked(id) {
				continue
			}
			if en := cp.Mu.Ix.At(id); en.Tiers|en.Storing == 0 && cp.CleanLocked(id, en, false) && en.Storing == 0 {
				later = append(later, id) // the queue is full
			}
		}
		cp.Mu.Unlock()
		if err := cp.Drain(ctx); err != nil {
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
func (cp *copies) storeNow(ctx context.Context, w state.Waiter, s *state.Secondary, id index.ID, force bool) (bool, error) {
	for {
		done := make(chan error, 1)
		joined := false
		cp.Mu.Lock()
		en := cp.Mu.Ix.At(id)
		switch {
		case en.Tiers&s.Bit != 0:
			cp.Mu.Unlock()
			return true, nil
		case cp.Mu.Closed:
			cp.Mu.Unlock()
			return false, block.ErrClosed
		case !cp.cascadableLocked(id, en):
			cp.Mu.Unlock()
			return false, nil
		case !force && s.Opts.SecondHit && (en.Flags&index.FlagOnceSeen != 0 || !s.AdmittedLocked(cp.PathHashLocked(id))):
			cp.Mu.Unlock()
			return false, nil // the end of the write counts this use
		case en.Storing&s.Bit != 0 && s.JoinLocked(id, en.Seq, force, done):
			joined = true
		default:
			cp.copyLocked(s, id, en, lane.Store{Force: force}, true, done)
		}
		cp.Mu.Unlock()
		err := waitStored(ctx, w, done)
		if joined && force && errors.Is(err, block.ErrBudget) {
			continue // it was under way when it became urgent
		}
		return true, err
	}
}

func waitStored(ctx context.Context, w state.Waiter, done <-chan error) error {
	return storedError(waitDone(ctx, w, done))
}

func waitDone(ctx context.Context, w state.Waiter, done <-chan error) error {
	select {
	case err := <-done: // already
		return err
	default:
	}
	state.Announce(w)
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// storedError turns the error of a store into that of the wait for it. A block that
// was replaced or removed meanwhile needs no copy.
func storedError(err error) error {
	if errors.Is(err, block.ErrNotFound) {
		return nil
	}
	return err
}

// makeDurable waits until a committed block is stored and synced.
func (cp *copies) makeDurable(ctx context.Context, w state.Waiter, id index.ID) error {
	s := cp.Keeper()
	if s == nil {
		return nil
	}
	if ok, err := cp.storeNow(ctx, w, s, id, true); err != nil || !ok {
		return err
	}
	return cp.flushTier(ctx, w, s)
}

// flushTier waits until all blocks, removals and renames that a tier has so far are durable.
func (cp *copies) flushTier(ctx context.Context, w state.Waiter, s *state.Secondary) error {
	told := make(chan error, 1) // the tier has all removals and renames so far
	cp.Mu.Lock()
	s.AfterKeyedLocked(func() { told <- nil })
	cp.Mu.Unlock()
	if err := waitStored(ctx, w, told); err != nil {
		return err
	}
	done := make(chan error, 1)
	s.Syncer.Sync(func(err error) { done <- err })
	return waitStored(ctx, w, done)
}

// AfterCommit waits for the copy of a committed block, if the cascade is synchronous
// or if sync is set: a process called fsync before.
func (cp *copies) AfterCommit(ctx context.Context, w state.Waiter, id index.ID, sync bool) error {
	if sync {
		return cp.makeDurable(ctx, w, id)
	}
	for _, s := range cp.Tiers {
		if s.Opts.Cascade != state.CascadeSync {
			continue
		}
		if _, err := cp.storeNow(ctx, w, s, id, false); err != nil {
			cp.Log.Warn("block not copied", zap.String("tier", s.Opts.Name), zap.Error(err))
		}
	}
	return nil
}

// CloseTiers ends the waits for the secondary tiers, and closes the tiers after the removals and updates that are
// left. Nothing else is begun by now.
func (cp *copies) CloseTiers(ctx context.Context) error {
	for _, s := range cp.Tiers {
		s.TurnAway()
	}
	var errs []error
	for _, s := range cp.Tiers {
		errs = append(errs, s.Lane.Close(ctx))
	}
	return errors.Join(errs...)
}
