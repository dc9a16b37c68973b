package openfile

import (
	"context"
	"errors"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/index"
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
func (fl *Files) Fsync(ctx context.Context, id index.ID) error {
	fl.Mu.Lock()
	en, f := fl.Mu.Ix.At(id), fl.Mu.Files[id]
	dir, kind := en.IsDir(), fl.Mu.Kind(en)
	fl.Mu.Unlock()
	if dir {
		return fl.transfer.FsyncDir(ctx, id)
	}
	if f != nil && kind != draft.Plain {
		var err error
		if kind, err = fl.sync(f.(*File)); err != nil {
			return err
		}
	}
	if kind != draft.Block {
		return nil
	}
	return fl.transfer.AfterCommit(ctx, nil, id, true)
}

// sync commits f, if it is open, with its present bytes, unless its name is temporary. It returns the kind of f, which
// another process may rename meanwhile.
func (fl *Files) sync(f *File) (draft.Kind, error) {
	fl.Mu.Lock()
	s := fl.stateLocked(f.id, fl.Mu.Ix.At(f.id), &state.Caller{})
	open, err := len(f.handles) > 0, f.poisoned
	if open && err == nil {
		f.sync = fl.Keeper() != nil
	}
	fl.Mu.Unlock()
	switch {
	case err != nil:
		return s.Kind, errors.Join(block.ErrPoisoned, err)
	case !open || s.Kind == draft.Temp:
		return s.Kind, nil
	}
	if _, err := fl.commit(f); err != nil {
		return s.Kind, err
	}
	fl.Mu.Lock()
	f.sync = fl.Keeper() != nil && len(f.handles) > 0
	fl.Mu.Unlock()
	return s.Kind, nil
}
