package tiers

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
)

// copies is the room of copies in the tiers below memory. It makes, updates and removes them, and does fsync.
type copies struct{ *core }

// cascadeLocked queues a copy of a block to every tier that lacks it. It is called when
// a block is committed and no process has it open for writing.
func (e *copies) cascadeLocked(id index.ID, en *index.Entry) {
	for _, s := range e.tiers {
		e.cascadeToLocked(s, id, en)
	}
}

// cascadableLocked reports whether a block may go to secondary tiers. A file under a temporary name may not. The raw
// files of pinned groups and plain names may not either, because they change at any time.
func (e *copies) cascadableLocked(id index.ID, en *index.Entry) bool {
	return en.Mode&modeType == modeRegular && en.Flags&flagUncommitted == 0 && en.Blob != 0 &&
		e.mu.ix.Linked(id) && e.kindLocked(en) == draft.Block
}

func (e *copies) cascadeToLocked(s *secondary, id index.ID, en *index.Entry) {
	synced := en.Flags&flagSynced != 0 && s == e.keeper()
	if (en.Tiers|en.Storing)&s.bit != 0 || s.opts.Cascade == CascadeOff && !synced || !e.cascadableLocked(id, en) {
		return
	}
	if s.opts.SecondHit && !synced && !s.AdmitLocked(e.pathHashLocked(id)) {
		en.Flags |= flagOnceSeen
		return
	}
	if s.opts.Cascade == CascadeOnEvict && !synced {
		return // cleanLocked copies it when it is evicted
	}
	if s.FullLocked(en.Size) && !synced {
		s.DeferLocked(id, en.Seq)
		return
	}
	s.copyLocked(id, en, lane.Store{}, false)
}

// copyLocked puts a copy of a block into the queue of a tier. like has the options of the copy. urgent puts it before
// all others. Each of the waiters gets the result.
func (s *secondary) copyLocked(id index.ID, en *index.Entry, like lane.Store, urgent bool, waiters ...chan<- error) {
	like.ID, like.Seq, like.Bytes = id, en.Seq, en.Size
	like.Force = like.Force || en.Flags&flagSynced != 0 && s == s.e.copies.keeper()
	op := &like
	for _, w := range waiters {
		op.Wait(w)
	}
	s.PushLocked(op, urgent)
	en.Storing |= s.bit
}

// voidStoresLocked voids the stores of a block that are queued or under way, because the
// block is gone: another block may get its entry.
func (e *copies) voidStoresLocked(id index.ID, en *index.Entry) {
	if en.Storing == 0 {
		return
	}
	for _, s := range e.tiers {
		s.VoidLocked(id, en.Seq)
	}
}

// retargetLocked is called when the name and bytes of a block went from one entry to another, or when a block got
// another commit number. It points the stores that are queued or under way to the new entry and number.
func (e *copies) retargetLocked(from, to index.ID, seq, newSeq uint64) {
	en := e.mu.ix.At(from)
	if en.Storing == 0 {
		return
	}
	for _, s := range e.tiers {
		s.RetargetLocked(from, to, seq, newSeq)
	}
	if from != to {
		e.mu.ix.At(to).Storing, en.Storing = en.Storing, 0
	}
}

// cleanLocked queues a copy of a block that is about to be evicted, and reports whether the copy
// is under way or its turn will come. If other nodes have copies, the copy goes to a device of this
// node, if there is one, because the others may evict theirs at any time. leaving: see leaveLocked.
func (e *copies) cleanLocked(id index.ID, en *index.Entry, leaving bool) bool {
	if en.Storing != 0 {
		return true
	}
	if en.Flags&(flagRefused|flagOnceSeen) != 0 || !e.cascadableLocked(id, en) {
		return false
	}
	for _, s := range e.tiers {
		if s.opts.Cascade == CascadeOff || en.Tiers != 0 && s == e.remote || en.Tiers&s.bit != 0 {
			continue
		}
		if !s.FullLocked(en.Size) {
			s.copyLocked(id, en, lane.Store{Leaving: leaving && s.opts.Cascade == CascadeOnEvict}, false)
		}
		return true // queued, or its turn will come
	}
	return false
}

// cleanSome is cleanLocked for some blocks. It waits until they are copied down, as far as the tiers take them.
// A block that is being written gets no copy.
func (e *copies) cleanSome(ctx context.Context, ids []index.ID) error {
	for len(ids) > 0 && e.lazy != 0 {
		var later []index.ID
		e.mu.Lock()
		for _, id := range ids {
			if !e.mu.ix.Valid(id) || !e.mu.ix.Linked(id) {
				continue
			}
			if en := e.mu.ix.At(id); en.Tiers|en.Storing == 0 && e.cleanLocked(id, en, false) && en.Storing == 0 {
				later = append(later, id) // the queue is full
			}
		}
		e.mu.Unlock()
		if err := e.Drain(ctx); err != nil {
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
func (e *copies) storeNow(ctx context.Context, w Waiter, s *secondary, id index.ID, force bool) (bool, error) {
	for {
		done := make(chan error, 1)
		joined := false
		e.mu.Lock()
		en := e.mu.ix.At(id)
		switch {
		case en.Tiers&s.bit != 0:
			e.mu.Unlock()
			return true, nil
		case e.mu.closed:
			e.mu.Unlock()
			return false, block.ErrClosed
		case !e.cascadableLocked(id, en):
			e.mu.Unlock()
			return false, nil
		case !force && s.opts.SecondHit && (en.Flags&flagOnceSeen != 0 || !s.AdmittedLocked(e.pathHashLocked(id))):
			e.mu.Unlock()
			return false, nil // the end of the write counts this use
		case en.Storing&s.bit != 0 && s.JoinLocked(id, en.Seq, force, done):
			joined = true
		default:
			s.copyLocked(id, en, lane.Store{Force: force}, true, done)
		}
		e.mu.Unlock()
		err := waitStored(ctx, w, done)
		if joined && force && errors.Is(err, block.ErrBudget) {
			continue // it was under way when it became urgent
		}
		return true, err
	}
}

func waitStored(ctx context.Context, w Waiter, done <-chan error) error {
	return storedError(waitDone(ctx, w, done))
}

func waitDone(ctx context.Context, w Waiter, done <-chan error) error {
	select {
	case err := <-done: // already
		return err
	default:
	}
	announce(w)
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

// keeper returns the first tier that can make blocks durable, nil if there is none.
func (e *copies) keeper() *secondary {
	for _, s := range e.tiers {
		if s.syncer != nil {
			return s
		}
	}
	return nil
}

// makeDurable waits until a committed block is stored and synced.
func (e *copies) makeDurable(ctx context.Context, w Waiter, id index.ID) error {
	s := e.keeper()
	if s == nil {
		return nil
	}
	if ok, err := e.storeNow(ctx, w, s, id, true); err != nil || !ok {
		return err
	}
	return e.flushTier(ctx, w, s)
}

// flushTier waits until all blocks, removals and renames that a tier has so far are durable.
func (e *copies) flushTier(ctx context.Context, w Waiter, s *secondary) error {
	told := make(chan error, 1) // the tier has all removals and renames so far
	e.mu.Lock()
	s.AfterKeyedLocked(func() { told <- nil })
	e.mu.Unlock()
	if err := waitStored(ctx, w, told); err != nil {
		return err
	}
	done := make(chan error, 1)
	s.syncer.Sync(func(err error) { done <- err })
	return waitStored(ctx, w, done)
}

// afterCommit waits for the copy of a committed block, if the cascade is synchronous
// or if sync is set: a process called fsync before.
func (e *copies) afterCommit(ctx context.Context, w Waiter, id index.ID, sync bool) error {
	if sync {
		return e.makeDurable(ctx, w, id)
	}
	for _, s := range e.tiers {
		if s.opts.Cascade != CascadeSync {
			continue
		}
		if _, err := e.storeNow(ctx, w, s, id, false); err != nil {
			e.log.Warn("block not copied", zap.String("tier", s.opts.Name), zap.Error(err))
		}
	}
	return nil
}

// closeTiers ends the waits for the secondary tiers, and closes the tiers after the removals and updates that are
// left. Nothing else is begun by now.
func (e *copies) closeTiers(ctx context.Context) error {
	for _, s := range e.tiers {
		s.TurnAway()
	}
	var errs []error
	for _, s := range e.tiers {
		errs = append(errs, s.Lane.Close(ctx))
	}
	return errors.Join(errs...)
}
