package tiers

import (
	"context"
	"errors"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
)

// Fsync waits until a file is durable in a secondary tier, if there is one that can
// promise that.
//
// A committed block is copied there ahead of all others, admission rules and write
// budgets aside; if it is still being written, its present bytes are committed first.
// Of a new file that is being written under its final name the present bytes are
// stored, to be found again if the daemon dies before the file is closed. A file
// under a temporary name, or a new version of a block, is durable when the rename or
// close that commits it returns.
//
// It fails with the tier's error (ErrUnavailable, ErrNoSpace), with ErrPoisoned if a
// write to the file has failed, or with ctx's error. Raw files of pinned groups live
// in memory only; for them it does nothing.
func (e *Engine) Fsync(ctx context.Context, id index.ID) error {
	s := e.keeper()
	if s == nil {
		return nil
	}
	for {
		e.mu.Lock()
		en, f := e.mu.ix.At(id), e.mu.files[id]
		uncommitted := en.Flags&flagUncommitted != 0
		switch {
		case f == nil || !uncommitted && f.writers == 0:
			e.mu.Unlock()
			return e.makeDurable(ctx, id)
		case f.poisoned != nil:
			err := errors.Join(block.ErrPoisoned, f.poisoned)
			e.mu.Unlock()
			return err
		}
		f.sync = true
		if e.mu.groups[en.Group].opts.Pinned || uncommitted && (en.Flags&flagTemp != 0 || f.shadow || f.base != 0 || !e.mu.ix.Linked(id)) {
			e.mu.Unlock()
			return nil
		}
		if !uncommitted {
			e.mu.Unlock()
			return e.syncWritten(ctx, f)
		}
		done := make(chan error, 1)
		e.storeRawLocked(s, id, en, done)
		e.mu.Unlock()
		err := waitDone(ctx, done)
		committed := e.Committed(id)
		switch {
		case committed:
			return e.makeDurable(ctx, id)
		case err == nil:
			return e.flushTier(ctx, s)
		case !errors.Is(err, block.ErrNotFound) || !e.named(id):
			return storedError(err)
		}
		// Another fsync has taken its place before it was begun.
	}
}

// storeRawLocked has the present bytes of an uncommitted file stored. One fsync that
// is still in the queue does for all.
func (e *Engine) storeRawLocked(s *secondary, id index.ID, en *index.Entry, done chan<- error) {
	if en.Flags&flagSynced != 0 && e.joinQueuedLocked(s, id, en.Seq, true, done) {
		return
	}
	en.Seq = e.nextSeqLocked()
	en.Flags |= flagSynced
	op := e.queueStoreLocked(s, id, en, true, done)
	op.raw = true
	en.Storing &^= s.bit
}

// named reports whether an entry has a name.
func (e *Engine) named(id index.ID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.ix.Linked(id)
}

// syncWritten makes a committed file durable that is still open for writing. What is
// written to it later is to be durable when it is closed.
func (e *Engine) syncWritten(ctx context.Context, f *File) error {
	e.mu.Lock()
	shared := f.shared
	e.mu.Unlock()
	if !shared { // else nothing was written since the commit
		if _, err := e.commit(f); err != nil {
			return err
		}
		e.mu.Lock()
		f.sync = f.writers > 0
		e.mu.Unlock()
	}
	return e.makeDurable(ctx, f.id)
}

// FsyncDir waits until every block below a directory that was committed before, and
// every removal and rename, is durable. As with Fsync, write budgets and admission do
// not count, nor that the cascade is off. It fails with the first error of the
// tier that keeps a block from being durable (ErrNoSpace, ErrUnavailable), or ctx's.
func (e *Engine) FsyncDir(ctx context.Context, dir index.ID) error {
	s := e.keeper()
	if s == nil {
		return nil
	}
	var ids []index.ID
	e.mu.Lock()
	e.mu.ix.Descend(dir, func(id index.ID, en *index.Entry) bool {
		if en.Tiers&s.bit == 0 && e.cascadableLocked(id, en) {
			ids = append(ids, id)
		}
		return true
	})
	e.mu.Unlock()
	var errs error
	for len(ids) > 0 && ctx.Err() == nil && errs == nil {
		n, err := e.storeSome(ctx, s, ids)
		ids, errs = ids[n:], err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(errs, e.flushTier(ctx, s))
}

// storeSome has the first of some blocks copied down, as many as the queue may hold,
// waits for them, and returns how many they were. It forces what the tier would
// refuse.
func (e *Engine) storeSome(ctx context.Context, s *secondary, ids []index.ID) (n int, err error) {
	var bytes int64
	done := make(chan error, recordBatch)
	queued := map[index.ID]*storeOp{}
	waits := 0
	e.mu.Lock()
	if e.mu.closed {
		e.mu.Unlock()
		return 0, block.ErrClosed
	}
	for _, op := range s.stores.items[s.stores.head:] {
		if op.barrier == nil {
			queued[op.id] = op
		}
	}
	for op := range e.mu.underWay {
		if op.tier == s {
			queued[op.id] = op
		}
	}
	for n < len(ids) && n < recordBatch && (bytes < s.opts.QueueBytes || n == 0) {
		id := ids[n]
		n++
		if !e.mu.ix.Valid(id) {
			continue
		}
		en := e.mu.ix.At(id)
		if en.Tiers&s.bit != 0 || !e.cascadableLocked(id, en) {
			continue
		}
		bytes += en.Size
		waits++
		if op := queued[id]; op != nil && en.Storing&s.bit != 0 && op.seq == en.Seq {
			op.waiters, op.force = append(op.waiters, done), true
			continue
		}
		e.queueStoreLocked(s, id, en, false, done).force = true
	}
	e.mu.Unlock()
	for range waits {
		if cause := waitStored(ctx, done); cause != nil && (err == nil || errors.Is(err, block.ErrBudget)) {
			err = cause
		}
		if ctx.Err() != nil {
			return n, ctx.Err()
		}
	}
	if !errors.Is(err, block.ErrBudget) {
		return n, err
	}
	for _, id := range ids[:n] { // some were under way when they became urgent
		if err := e.storeAgain(ctx, s, id); err != nil {
			return n, err
		}
	}
	return n, nil
}

// storeAgain is storeNow, forced, for a block that may be gone.
func (e *Engine) storeAgain(ctx context.Context, s *secondary, id index.ID) error {
	e.mu.Lock()
	gone := !e.mu.ix.Valid(id)
	if !gone {
		e.mu.ix.At(id).Lookups++ // so that the entry stays
	}
	e.mu.Unlock()
	if gone {
		return nil
	}
	defer e.Forget(id, 1)
	_, err := e.storeNow(ctx, s, id, true)
	return err
}

// Drain waits until everything that was to be cascaded when it was called has been, as
// far as the tiers take it, and is durable, or until ctx ends. What is committed
// meanwhile is not waited for, so that it ends under any load.
func (e *Engine) Drain(ctx context.Context) error {
	var errs []error
	for _, s := range e.tiers {
		if err := e.drainTier(ctx, s); err != nil {
			return err
		}
		if s.syncer != nil {
			errs = append(errs, e.flushTier(ctx, s))
		}
	}
	return errors.Join(errs...)
}

// drainTier waits until one tier has been given what was to be cascaded to it.
func (e *Engine) drainTier(ctx context.Context, s *secondary) error {
	e.mu.Lock()
	renames := s.keyedIn
	e.mu.Unlock()
	var deferred uint64 // wait until so many have left s.deferred
	for renaming := true; ; {
		done := make(chan error, 1)
		e.mu.Lock()
		if e.mu.closed {
			e.mu.Unlock()
			return block.ErrClosed
		}
		if renaming {
			deferred = s.deferred.popped + uint64(s.deferred.len())
			renaming = s.recorder == nil && s.keyedOut < renames // a rename has it stored anew
		}
		e.undeferLocked(s)
		more := renaming || s.deferred.popped < deferred
		s.stores.push(&storeOp{barrier: func(err error) { done <- err }})
		e.mu.Unlock()
		s.wakeUp()
		if err := waitStored(ctx, done); err != nil {
			return err
		}
		if !more {
			return nil
		}
	}
}
