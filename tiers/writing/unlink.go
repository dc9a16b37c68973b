package writing

import (
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// Unlink removes the file that name means to the caller: the name at once, the bytes when the last handle is closed.
// It fails with ErrNotFound or ErrIsDir.
func (e *drafts) Unlink(parent index.ID, name string, by state.Caller) error {
	var g state.Gone
	e.Mu.Lock()
	err := e.removeLocked(parent, name, &by, &g)
	e.elsewhere.TellOutdatedLocked(&g)
	e.Mu.Unlock()
	e.Finish(&g)
	return err
}

func (e *drafts) removeLocked(parent index.ID, name string, by *state.Caller, g *state.Gone) error {
	id, _ := e.names.ResolveLocked(parent, name, *by)
	if id == 0 {
		return block.ErrNotFound
	}
	if e.Mu.Ix.At(id).Mode&state.ModeType == state.ModeDir {
		return block.ErrIsDir
	}
	e.Mu.Counters.Removed++
	e.names.UnlinkLocked(id, fate.Cause{Reason: fate.ReasonUnlink, By: by.Actor()}, by.Proc(), g)
	e.ChangedLocked(parent)
	return nil
}

// dropLocked makes f an unlinked file. why says how it loses its name.
func (e *drafts) dropLocked(f *File, why fate.Cause, g *state.Gone) {
	e.names.DropNameLocked(f.id, e.Mu.Ix.At(f.id), event.Removed, why, g)
}

// EmptyLocked reports whether a directory is empty to the caller. If it is, the private files of other processes there
// become unlinked files.
func (e *drafts) EmptyLocked(dir index.ID, by state.Caller, g *state.Gone) bool {
	n := e.Mu.Ix.Children(dir)
	if n == 0 || int64(n) > e.Writers.Load() {
		return n == 0
	}
	var others []*File
	for id, w := range e.Mu.Files {
		f := w.(*File)
		if e.Mu.Ix.Parent(id) == dir && e.Mu.Ix.At(id).Flags&state.FlagUncommitted != 0 && !f.MineLocked(by) {
			others = append(others, f)
		}
	}
	if int(n) > len(others) {
		return false
	}
	for _, f := range others {
		e.dropLocked(f, fate.Cause{}, g)
	}
	return true
}

const unopenedGrace = 10e9 // nanoseconds that a private file waits for the open that it was made for

// ExpireFiles drops temporary files that no process has had open for TempExpiry, and private files for which the open
// that made them has not come again.
func (e *drafts) ExpireFiles() {
	var g state.Gone
	e.Mu.Lock()
	now := e.Now()
	for id, w := range e.Mu.Files {
		f := w.(*File)
		en := e.Mu.Ix.At(id)
		idle := now - f.born
		if f.warm {
			f.warm = false
			g.Idle = append(g.Idle, f)
		}
		switch {
		case en.Opens > 0 || len(f.handles) > 0:
		case en.Flags&state.FlagUncommitted != 0:
			if idle > unopenedGrace {
				e.dropLocked(f, fate.Cause{}, &g)
			}
		case e.KindLocked(en) == draft.Temp && idle > int64(e.Opts.TempExpiry):
			e.Mu.Counters.Expired++
			e.dropLocked(f, fate.Cause{Reason: fate.ReasonAbandoned}, &g)
		}
	}
	e.Mu.Unlock()
	e.Finish(&g)
}
