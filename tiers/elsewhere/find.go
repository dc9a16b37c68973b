package elsewhere

import (
	"strings"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// A name that a Finder has gets an entry, too, when a process asks for it. That entry is this node's own, as if the
// block had been listed when the engine was opened, and stays.

// SeekLocked returns the latest version that other nodes or Finders have at a path without an entry, and its tier, nil
// if there is none. What a Finder has counts only if its directories are here, or can be found.
func (e *elsewhere) SeekLocked(path string) (l driver.Located, s *state.Secondary) {
	l, s = e.latestLocked(path)
	for dir := path; s != nil && s != e.Remote; {
		dir = dir[:max(strings.LastIndexByte(dir, '/'), 0)]
		if id := e.Mu.Ix.Walk(dir); id != 0 {
			if e.DirLocked(id) != nil {
				return driver.Located{}, nil
			}
			break
		}
		if above, t := e.latestLocked(dir); t == nil || !above.IsDir() {
			return driver.Located{}, nil
		}
	}
	return l, s
}

// latestLocked returns the latest version that other nodes or Finders have at a path, and its tier, nil if there is
// none. Of the same version it returns the copy in the faster tier.
func (e *elsewhere) latestLocked(path string) (l driver.Located, s *state.Secondary) {
	if e.Remote != nil {
		if far, ok := e.Locate(path); ok {
			l, s = far, e.Remote
		}
	}
	for _, f := range e.Finders {
		found, ok := e.foundIn(f, path)
		switch {
		case !ok, s != nil && (found.Seq < l.Seq || found.Seq == l.Seq && f.N > s.N):
		case s != nil && s == e.Remote && l.IsDir() && found.IsDir(): // it stays that of the other nodes
		default:
			l, s = found, f
		}
	}
	return l, s
}

// foundIn is Finder.Find without the answers that cannot be right, that a grave voids, or that a change under way will
// make wrong.
func (e *elsewhere) foundIn(f *state.Secondary, path string) (driver.Located, bool) {
	name := path[strings.LastIndexByte(path, '/')+1:]
	if e.Temp.Name(name) || e.Plain.Name(name) {
		return driver.Located{}, false
	}
	l, ok := f.Finder.Find(path)
	switch kind := l.Mode & state.ModeType; {
	case !ok, kind != state.ModeDir && kind != state.ModeRegular, l.Size < 0, !e.plausible(l.Seq),
		l.Expires != 0 && l.Expires <= e.Now(), e.Far != nil && l.Seq < e.Far.Buried(path), f.UnsettledLocked(path):
		return driver.Located{}, false
	}
	return l, true
}

// seekChildLocked enters the file or directory that other nodes or Finders have under a name, and returns 0 if they
// have none.
func (e *elsewhere) seekChildLocked(parent index.ID, name string) index.ID {
	if e.DirLocked(parent) != nil || len(name) > block.MaxName || parent == index.Root && name == block.Reserved {
		return 0
	}
	l, s := e.latestLocked(e.ChildPathLocked(parent, name))
	if s == nil {
		return 0
	}
	return e.enterLocked(parent, name, &l, s)
}

// enterFoundLocked completes the entry of what a Finder has.
func (e *elsewhere) enterFoundLocked(id index.ID, en *index.Entry, l *driver.Located, s *state.Secondary) {
	e.OwnDirsLocked(id)
	if l.IsDir() {
		e.DirEventLocked(event.DirCreated, id)
		return
	}
	e.Mu.Room.Group(en.Group).Learn(l.Size)
	e.Mu.Ix.SetExpires(id, l.Expires)
	e.TierEventLocked(event.Stored, s.Opts.Name, id, fate.Cause{}) // the events tell which blocks there are
}
