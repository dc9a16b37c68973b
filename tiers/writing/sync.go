package writing

import (
	"errors"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/state"
)

// Sync commits w, if it is open, with its present bytes, unless its name is temporary. It returns the kind of w, which
// another process may rename meanwhile.
func (e *drafts) Sync(w state.WriteSide) (draft.Kind, error) {
	f := w.(*File)
	e.Mu.Lock()
	s := e.stateLocked(f.id, e.Mu.Ix.At(f.id), &state.Caller{})
	open, err := len(f.handles) > 0, f.poisoned
	if open && err == nil {
		f.sync = e.Keeper() != nil
	}
	e.Mu.Unlock()
	switch {
	case err != nil:
		return s.Kind, errors.Join(block.ErrPoisoned, err)
	case !open || s.Kind == draft.Temp:
		return s.Kind, nil
	}
	if _, err := e.commit(f); err != nil {
		return s.Kind, err
	}
	e.Mu.Lock()
	f.sync = e.Keeper() != nil && len(f.handles) > 0
	e.Mu.Unlock()
	return s.Kind, nil
}
