package names

import (
	"strings"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// A name that a Finder has gets an entry, too, when a process asks for it. That entry is this node's own, as if the
// block had been listed when the engine was opened, and stays.

// SeekLocked returns the latest version that other nodes or Finders have at a path without an entry, and its tier, nil
// if there is none. What a Finder has counts only if its directories are here, or can be found.
func (nm *Names) SeekLocked(path string) (l driver.Located, s *state.Secondary) {
	l, s = nm.latestLocked(path)
	for dir := path; s != nil && s != nm.Remote; {
		dir = dir[:max(strings.LastIndexByte(dir, '/'), 0)]
		if id := nm.Mu.Ix.Walk(dir); id != 0 {
			if nm.DirLocked(id) != nil {
				return driver.Located{}, nil
			}
			break
		}
		if above, t := nm.latestLocked(dir); t == nil || !above.IsDir() {
			return driver.Located{}, nil
		}
	}
	return l, s
}

// latestLocked returns the latest version that other nodes or Finders have at a path, and its tier, nil if there is
// none. Of the same version it returns the copy in the faster tier.
func (nm *Names) latestLocked(path string) (l driver.Located, s *state.Secondary) {
	if nm.Remote != nil {
		if far, ok := nm.Locate(path); ok {
			l, s = far, nm.Remote
		}
	}
	for _, f := range nm.Finders {
		found, ok := nm.foundIn(f, path)
		switch {
		case !ok, s != nil && (found.Seq < l.Seq || found.Seq == l.Seq && f.N > s.N):
		case s != nil && s == nm.Remote && l.IsDir() && found.IsDir(): // it stays that of the other nodes
		default:
			l, s = found, f
		}
	}
	return l, s
}

// foundIn asks a Finder for a path. It ignores an answer that cannot be right, that a grave voids, or that a change under
// way will make wrong.
func (nm *Names) foundIn(f *state.Secondary, path string) (driver.Located, bool) {
	name := path[strings.LastIndexByte(path, '/')+1:]
	if nm.Temp.Name(name) || nm.Plain.Name(name) {
		return driver.Located{}, false
	}
	l, ok := f.Finder.Find(path)
	switch kind := l.Mode & state.ModeType; {
	case !ok, kind != state.ModeDir && kind != state.ModeRegular, l.Size < 0, !nm.Plausible(l.Seq),
		l.Expires != 0 && l.Expires <= nm.Now(), nm.Far != nil && l.Seq < nm.Far.Buried(path), f.UnsettledLocked(path):
		return driver.Located{}, false
	}
	return l, true
}

// seekChildLocked enters the file or directory that other nodes or Finders have under a name, and returns 0 if they
// have none.
func (nm *Names) seekChildLocked(parent index.ID, name string) index.ID {
	if nm.DirLocked(parent) != nil || len(name) > block.MaxName || parent == index.Root && name == block.Reserved {
		return 0
	}
	l, s := nm.latestLocked(nm.ChildPathLocked(parent, name))
	if s == nil {
		return 0
	}
	return nm.EnterLocked(parent, name, &l, s)
}

// enterFoundLocked completes the entry of what a Finder has.
func (nm *Names) enterFoundLocked(id index.ID, l *driver.Located) {
	nm.OwnDirsLocked(id)
	if l.IsDir() {
		nm.DirEventLocked(event.DirCreated, id)
		return
	}
	nm.ApplyLocked(catalog.Expires{ID: id, At: l.Expires})
}
