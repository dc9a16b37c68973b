package lower

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/state"
)

// Fsync commits a file that is being written, with its present bytes. Then it waits until the file is durable
// in a secondary tier, if a tier can promise that. The copy goes ahead of all others, and admission rules
// and write budgets do not count. Bytes that are written later are durable when Fsync is called again, or
// the file is closed.
//
// A file under a temporary name is durable when the rename that commits it returns. Plain names and files
// of pinned groups live in memory only, and Fsync does nothing for them.
//
// Fsync fails with the tier's error (ErrUnavailable, ErrNoSpace), with ErrPoisoned if a write has failed, or with ctx's.
func (cp *copies) Fsync(ctx context.Context, id index.ID) error {
	cp.Mu.Lock()
	en, f := cp.Mu.Ix.At(id), cp.Mu.Files[id]
	dir, kind := en.IsDir(), cp.KindLocked(en)
	cp.Mu.Unlock()
	if dir {
		return cp.FsyncDir(ctx, id)
	}
	if f != nil && kind != draft.Plain {
		var err error
		if kind, err = cp.writing.Sync(f); err != nil {
			return err
		}
	}
	if kind != draft.Block {
		return nil
	}
	return cp.makeDurable(ctx, nil, id)
}

// FsyncDir waits until all blocks below a directory, and all removals and renames, are durable. It skips blocks that
// are not committed yet or are open for writing. As with Fsync, write budgets and admission do not count, nor does a
// cascade that is off. It fails with the first error of the tier that keeps a block from being durable (ErrNoSpace,
// ErrUnavailable), or with ctx's error.
func (cp *copies) FsyncDir(ctx context.Context, dir index.ID) error {
	s := cp.Keeper()
	if s == nil {
		return nil
	}
	var ids []index.ID
	cp.Mu.Lock()
	cp.Mu.Ix.Descend(dir, func(id index.ID, en *index.Entry) bool {
		if en.Tiers&s.Bit == 0 && cp.cascadableLocked(id, en) && !cp.OpenForWritingLocked(id) {
			ids = append(ids, id)
		}
		return true
	})
	cp.Mu.Unlock()
	var errs error
	for len(ids) > 0 && ctx.Err() == nil && errs == nil {
		n, err := cp.storeSome(ctx, s, ids)
		ids, errs = ids[n:], err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(errs, cp.flushTier(ctx, nil, s))
}

// storeSome copies down the first n blocks of ids, as many as the queue may hold. It waits for them, and returns n. It
// forces copies that the tier would otherwise refuse.
func (cp *copies) storeSome(ctx context.Context, s *state.Secondary, ids []index.ID) (n int, err error) {
	done := make(chan error, state.RecordBatch)
	cp.Mu.Lock()
	if cp.Mu.Closed {
		cp.Mu.Unlock()
		return 0, block.ErrClosed
	}
	n, waits := cp.storeBatchLocked(s, ids, done)
	cp.Mu.Unlock()
	for range waits {
		if cause := waitStored(ctx, nil, done); cause != nil && (err == nil || errors.Is(err, block.ErrBudget)) {
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
		if err := cp.storeAgain(ctx, s, id); err != nil {
			return n, err
		}
	}
	return n, nil
}

// storeBatchLocked queues copies of the first n blocks of ids, as many as one batch may have. It returns n, and the
// number of results that will come to done.
func (cp *copies) storeBatchLocked(s *state.Secondary, ids []index.ID, done chan error) (n, waits int) {
	var bytes int64
	queued := map[index.ID]*lane.Store{}
	for op := range s.QueuedLocked() {
		queued[op.ID] = op
	}
	for op := range s.BegunLocked() {
		queued[op.ID] = op
	}
	for n < len(ids) && n < state.RecordBatch && (bytes < s.Opts.QueueBytes || n == 0) {
		id := ids[n]
		n++
		if !cp.Mu.Ix.Valid(id) {
			continue
		}
		en := cp.Mu.Ix.At(id)
		if en.Tiers&s.Bit != 0 || !cp.cascadableLocked(id, en) || cp.OpenForWritingLocked(id) {
			continue
		}
		bytes += en.Size
		waits++
		if op := queued[id]; op != nil && en.Storing&s.Bit != 0 && op.Seq == en.Seq {
			op.Wait(done)
			op.Force = true
			continue
		}
		cp.copyLocked(s, id, en, lane.Store{Force: true}, false, done)
	}
	return n, waits
}

// storeAgain is storeNow, forced, for a block that may be gone.
func (cp *copies) storeAgain(ctx context.Context, s *state.Secondary, id index.ID) error {
	cp.Mu.Lock()
	gone := !cp.Mu.Ix.Valid(id)
	if !gone {
		cp.Mu.Ix.At(id).Lookups++ // so that the entry stays
	}
	cp.Mu.Unlock()
	if gone {
		return nil
	}
	defer cp.names.Forget(id, 1)
	_, err := cp.storeNow(ctx, nil, s, id, true)
	return err
}

// Drain waits until all blocks that were to be cascaded when it was called are copied, as far as the tiers take them,
// and durable, or until ctx ends. It does not wait for blocks that are committed meanwhile, so it ends under any load.
func (cp *copies) Drain(ctx context.Context) error {
	var errs []error
	for _, s := range cp.Tiers {
		if err := cp.drainTier(ctx, s); err != nil {
			return fmt.Errorf("tier %s: %w", s.Opts.Name, err)
		}
		if s.Syncer != nil {
			if err := cp.flushTier(ctx, nil, s); err != nil {
				errs = append(errs, fmt.Errorf("tier %s: %w", s.Opts.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// drainTier waits until one tier has got the blocks that were to be cascaded to it.
func (cp *copies) drainTier(ctx context.Context, s *state.Secondary) error {
	for so := (lane.Progress{}); ; {
		done := make(chan error, 1)
		cp.Mu.Lock()
		if cp.Mu.Closed {
			cp.Mu.Unlock()
			return block.ErrClosed
		}
		more := s.BarrierLocked(&so, func(err error) { done <- err })
		cp.Mu.Unlock()
		if err := waitStored(ctx, nil, done); err != nil || !more {
			return err
		}
	}
}
