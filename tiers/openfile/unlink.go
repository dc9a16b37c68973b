package openfile

import (
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/state"
)

// Unlink removes the file that name means to the caller: the name at once, the bytes when the last handle is closed.
// It fails with ErrNotFound or ErrIsDir.
func (fl *Files) Unlink(parent index.ID, name string, by state.Caller) error {
	var g state.Gone
	fl.Mu.Lock()
	err := fl.removeLocked(parent, name, &by, &g)
	fl.Mu.Unlock()
	fl.Finish(&g)
	return err
}

func (fl *Files) removeLocked(parent index.ID, name string, by *state.Caller, g *state.Gone) error {
	id, _ := fl.names.ResolveLocked(parent, name, *by, g)
	if id == 0 {
		return block.ErrNotFound
	}
	if fl.Mu.Ix.At(id).IsDir() {
		return block.ErrIsDir
	}
	if fl.names.IsLinkLocked(catalog.Name{Parent: parent, Name: name}) {
		fl.names.UnlinkLinkLocked(id, g)
		fl.ChangedLocked(parent)
		return nil
	}
	fl.Mu.Counters.Removed++
	fl.names.UnlinkLocked(id, outcome.Cause{Reason: outcome.ReasonUnlink, By: by.Actor()}, by.Proc(), g)
	fl.ChangedLocked(parent)
	return nil
}

// dropLocked makes f an unlinked file. why says how it loses its name.
func (fl *Files) dropLocked(f *File, why outcome.Cause, g *state.Gone) {
	fl.names.DropNameLocked(f.id, fl.Mu.Ix.At(f.id), why, g)
}

const unopenedGrace = 10e9 // nanoseconds that a private file waits for the open that it was made for

// ExpireFiles drops temporary files that no process has had open for TempExpiry, and private files for which the open
// that made them has not come again.
func (fl *Files) ExpireFiles() {
	var g state.Gone
	fl.Mu.Lock()
	now := fl.Now()
	for id, w := range fl.Mu.Files {
		f := w.(*File)
		en := fl.Mu.Ix.At(id)
		idle := now - f.born
		if f.warm {
			f.warm = false
			g.Files = append(g.Files, f)
		}
		switch {
		case en.Opens() > 0 || len(f.handles) > 0:
		case !en.Committed():
			if idle > unopenedGrace {
				fl.dropLocked(f, outcome.Cause{}, &g)
			}
		case fl.Mu.Kind(en) == draft.Temp && idle > int64(fl.Opts.TempExpiry):
			fl.Mu.Counters.Expired++
			fl.dropLocked(f, outcome.Cause{Reason: outcome.ReasonAbandoned}, &g)
		}
	}
	fl.names.ExpireLinksLocked(fl.Opts.TempExpiry, &g)
	fl.Mu.Unlock()
	fl.Finish(&g)
}
