package transfer

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/state"
)

// FsyncDir waits until all blocks below a directory, and all removals and renames, are durable. It skips blocks that
// are not committed yet or are open for writing. As with Fsync, write budgets and admission do not count, nor does a
// cascade that is off. It fails with the first error of the tier that keeps a block from being durable (ErrNoSpace,
// ErrUnavailable), or with ctx's error.
func (tr *Transfer) FsyncDir(ctx context.Context, dir index.ID) error {
	s := tr.Keeper()
	if s == nil {
		return nil
	}
	tr.Mu.Lock()
	before := tr.givenUp
	tr.Mu.Unlock()
	if err := tr.storeBelow(ctx, s, dir); err != nil {
		return err
	}
	tr.Mu.Lock()
	same := tr.givenUp == before
	tr.Mu.Unlock()
	if same {
		return nil
	}
	return tr.storeBelow(ctx, s, dir)
}

// storeBelow stores the blocks below a directory that a tier does not have, and syncs the tier.
func (tr *Transfer) storeBelow(ctx context.Context, s *state.Secondary, dir index.ID) error {
	var ids []index.ID
	tr.Mu.Lock()
	tr.Mu.Ix.Descend(dir, func(id index.ID, en *index.Entry) bool {
		if en.Tiers()&s.Bit == 0 && tr.cascadableLocked(id, en) && !tr.OpenForWritingLocked(id) {
			ids = append(ids, id)
		}
		return true
	})
	tr.Mu.Unlock()
	var errs error
	for len(ids) > 0 && ctx.Err() == nil && errs == nil {
		n, err := tr.storeSome(ctx, s, ids)
		ids, errs = ids[n:], err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(errs, tr.flushTier(ctx, nil, s))
}

// storeSome copies down the first n blocks of ids, as many as the queue may hold. It waits for them, and returns n. It
// forces copies that the tier would otherwise refuse.
func (tr *Transfer) storeSome(ctx context.Context, s *state.Secondary, ids []index.ID) (n int, err error) {
	done := make(chan error, state.RecordBatch)
	tr.Mu.Lock()
	if tr.Mu.Closed {
		tr.Mu.Unlock()
		return 0, block.ErrClosed
	}
	n, waits := tr.storeBatchLocked(s, ids, done)
	tr.Mu.Unlock()
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
		if err := tr.storeAgain(ctx, s, id); err != nil {
			return n, err
		}
	}
	return n, nil
}

// storeBatchLocked queues copies of the first n blocks of ids, as many as one batch may have. It returns n, and the
// number of results that will come to done.
func (tr *Transfer) storeBatchLocked(s *state.Secondary, ids []index.ID, done chan error) (n, waits int) {
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
		if !tr.Mu.Ix.Valid(id) {
			continue
		}
		en := tr.Mu.Ix.At(id)
		if en.Tiers()&s.Bit != 0 || !tr.cascadableLocked(id, en) || tr.OpenForWritingLocked(id) {
			continue
		}
		bytes += en.Size()
		waits++
		if op := queued[id]; op != nil && en.Storing()&s.Bit != 0 && op.Seq == en.Seq() {
			op.Wait(done)
			op.Force = true
			continue
		}
		tr.copyLocked(s, id, en, lane.Store{Force: true}, false, done)
	}
	return n, waits
}

// storeAgain is storeNow, forced, for a block that may be gone.
func (tr *Transfer) storeAgain(ctx context.Context, s *state.Secondary, id index.ID) error {
	tr.Mu.Lock()
	gone := !tr.Mu.Ix.Valid(id)
	if !gone {
		tr.ApplyLocked(catalog.Referred{ID: id}) // so that the entry stays
	}
	tr.Mu.Unlock()
	if gone {
		return nil
	}
	defer tr.names.Forget(id, 1)
	_, err := tr.storeNow(ctx, nil, s, id, true)
	return err
}

// Drain waits until all blocks that were to be cascaded when it was called are copied, as far as the tiers take them,
// and durable, or until ctx ends. It does not wait for blocks that are committed meanwhile, so it ends under any load. It
// waits for tiers that are away.
func (tr *Transfer) Drain(ctx context.Context) error { return tr.drain(ctx, false) }

// DrainPresent is Drain, but does not wait for tiers that are away.
func (tr *Transfer) DrainPresent(ctx context.Context) error { return tr.drain(ctx, true) }

func (tr *Transfer) drain(ctx context.Context, present bool) error {
	var errs []error
	for _, s := range tr.Tiers {
		if err := tr.drainTier(ctx, s, present); err != nil {
			return fmt.Errorf("tier %s: %w", s.Opts.Name, err)
		}
		if s.Syncer != nil {
			if err := tr.flushTier(ctx, nil, s); err != nil {
				errs = append(errs, fmt.Errorf("tier %s: %w", s.Opts.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// drainTier waits until one tier has got the blocks that were to be cascaded to it; present: as far as it is not away.
func (tr *Transfer) drainTier(ctx context.Context, s *state.Secondary, present bool) error {
	for so := (lane.Progress{}); ; {
		done := make(chan error, 1)
		tr.Mu.Lock()
		if tr.Mu.Closed {
			tr.Mu.Unlock()
			return block.ErrClosed
		}
		more := s.BarrierLocked(&so, present, func(err error) { done <- err })
		tr.Mu.Unlock()
		if err := waitStored(ctx, nil, done); err != nil || !more {
			return err
		}
	}
}
