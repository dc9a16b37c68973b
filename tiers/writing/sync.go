package writing

import (
	"errors"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/state"
)

// Sync commits w, if it is open, with its present bytes. Of a temporary file it only notes how many there are. It
// returns the kind of w, which another process may rename meanwhile.
func (e *drafts) Sync(w state.WriteSide) (draft.Kind, error) {
	f := w.(*File)
	e.Mu.Lock()
	en := e.Mu.Ix.At(f.id)
	s := e.stateLocked(f.id, en, &state.Caller{}, false)
	kind, open, err := s.Kind, len(f.handles) > 0, f.poisoned
	first := en.Flags&state.FlagUncommitted != 0 || f.synced >= 0
	if open && err == nil {
		f.sync = e.Keeper() != nil
	}
	e.Mu.Unlock()
	switch {
	case err != nil:
		return kind, errors.Join(block.ErrPoisoned, err)
	case !open:
		return kind, nil
	case kind == draft.Temp: // if another process renames it, that is what a killed writer leaves
		size, _, err := f.fstat()
		if err != nil {
			return kind, err
		}
		e.Mu.Lock()
		temp := e.KindLocked(e.Mu.Ix.At(f.id)) == draft.Temp
		if temp {
			f.kept = size
		}
		e.Mu.Unlock()
		if !temp { // renamed since
			return e.Sync(f)
		}
		return kind, nil
	}
	if _, err := e.commit(f, s.Place); err != nil {
		return kind, err
	}
	e.Mu.Lock()
	if en := e.Mu.Ix.At(f.id); first && en.Size > 0 {
		f.synced = en.Size
	}
	f.sync = e.Keeper() != nil && len(f.handles) > 0
	e.Mu.Unlock()
	return kind, nil
}
