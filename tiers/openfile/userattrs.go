package openfile

import (
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// Attributes of processes belong to a version of a file. A file that is being written has those that were set on it so far;
// its commit, and a rename, keep them. A block that is there already becomes another version with the first change, so
// that no copy of it elsewhere, and none that is under way, can pass for the one with the new attributes.

// SetUserAttrs replaces the attributes of processes of a file that is in memory, or has no copies, by what fn makes of them. It
// fails as fn does, and with ErrStale if the file has left memory.
func (fl *Files) SetUserAttrs(id index.ID, fn func(block.UserAttrs) (block.UserAttrs, error)) error {
	var g state.Gone
	fl.Mu.Lock()
	err := fl.setUserAttrsLocked(id, fn, &g)
	fl.Mu.Unlock()
	if err == nil {
		err = fl.WriteRecord(id, nil)
	}
	fl.Finish(&g)
	return err
}

func (fl *Files) setUserAttrsLocked(id index.ID, fn func(block.UserAttrs) (block.UserAttrs, error), g *state.Gone) error {
	en := fl.Mu.Ix.At(id)
	if fl.NonresidentLocked(id, en) {
		return state.ErrStale
	}
	was := fl.Mu.UserAttrs(id, en)
	user, err := fn(was)
	if err != nil || user == was {
		return err
	}
	fl.ApplyLocked(catalog.Attributed{ID: id, User: user})
	fl.ApplyLocked(catalog.Times{ID: id, Mtime: en.Mtime(), Ctime: fl.Now()})
	fl.TellAttrsLocked(id, g)
	if !en.Linked() || !en.Committed() || fl.Mu.Kind(en) != draft.Block {
		return nil
	}
	fl.transfer.RevisedLocked(id, en, g)
	if f := fl.fileLocked(id); f != nil {
		f.begun = max(f.begun, en.Seq())
	}
	return nil
}
