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

// copies is the room of copies in the tiers below memory: making, updating and removing them, and fsync.
type copies struct{ *core }

// cascadeLocked has a block copied to every tier that lacks it. It is called when a
// block is committed and nobody has it open for writing.
func (e *copies) cascadeLocked(id index.ID, en *index.Entry) {
	for _, s := range e.tiers {
		e.cascadeToLocked(s, id, en)
	}
}

// cascadable reports whether blocks like this one go to secondary tiers at all:
// not what is held under a temporary name, and not the raw files of pinned
// groups and plain names, which change at any time.
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
		return // cleanLocked sees to it
	}
	if s.FullLocked(en.Size) && !synced {
		s.DeferLocked(id, en.Seq)
		return
	}
	s.copyLocked(id, en, lane.Store{}, false)
}

// copyLocked puts a copy of a block into the queue of a tier, with the fields of like that say how. urgent: before
// all others.
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

// voidStoresLocked follows that a block is gone of which stores are under way: its entry
// may become that of another block.
func (e *copies) voidStoresLocked(id index.ID, en *index.Entry) {
	if en.Storing == 0 {
		return
	}
	for _, s := range e.tiers {
		s.VoidLocked(id, en.Seq)
	}
}

// retargetLocked follows a block whose name and bytes went from one entry to
// another, or that got another commit number: stores that are queued or under way
// are about the latter now.
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

// cleanLocked has a block that is to be evicted copied down first, and reports
// whether that is under way. What only others have besides goes to a device of this node
// if there is one: they may evict it at any time. leaving: see leaveLocked.
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

// cleanSome is cleanLocked for some blocks, and waits until they are copied down, as far as the tiers take them.
// Each is tried once: of one that is being written no copy is made.
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

// storeNow copies a block down to a tier ahead of all others, and waits until it is
// there. With force set the tier's write budget and admission do not count. False: it
// is not for that tier.
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
			return false, nil // the end of the write counts it
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

// storedError is what a store means to who waits for it: a block that was
// replaced or removed meanwhile needs no copy.
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

// flushTier waits until all that a tier holds is durable.
func (e *copies) flushTier(ctx context.Context, w Waiter, s *secondary) error {
	told := make(chan error, 1) // of the removals and renames so far
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

// afterCommit does what follows a commit at once: it waits for the copy, if the
// cascade is synchronous or somebody called fsync before.
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

// closeTiers turns away who waits, and closes the secondary tiers, after the removals and updates that are left,
// now that nothing else is begun.
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
