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
func (el *elsewhere) SeekLocked(path string) (l driver.Located, s *state.Secondary) {
	l, s = el.latestLocked(path)
	for dir := path; s != nil && s != el.Remote; {
		dir = dir[:max(strings.LastIndexByte(dir, '/'), 0)]
		if id := el.Mu.Ix.Walk(dir); id != 0 {
			if el.DirLocked(id) != nil {
				return driver.Located{}, nil
			}
			break
		}
		if above, t := el.latestLocked(dir); t == nil || !above.IsDir() {
			return driver.Located{}, nil
		}
	}
	return l, s
}

// latestLocked returns the latest version that other nodes or Finders have at a path, and its tier, nil if there is
// none. Of the same version it returns the copy in the faster tier.
func (el *elsewhere) latestLocked(path string) (l driver.Located, s *state.Secondary) {
	if el.Remote != nil {
		if far, ok := el.Locate(path); ok {
			l, s = far, el.Remote
		}
	}
	for _, f := range el.Finders {
		found, ok := el.foundIn(f, path)
		switch {
		case !ok, s != nil && (found.Seq < l.Seq || found.Seq == l.Seq && f.N > s.N):
		case s != nil && s == el.Remote && l.IsDir() && found.IsDir(): // it stays that of the other nodes
		default:
			l, s = found, f
		}
	}
	return l, s
}

// foundIn asks a Finder for a path. It ignores an answer that cannot be right, that a grave voids, or that a change under
// way will make wrong.
func (el *elsewhere) foundIn(f *state.Secondary, path string) (driver.Located, bool) {
	name := path[strings.LastIndexByte(path, '/')+1:]
	if el.Temp.Name(name) || el.Plain.Name(name) {
		return driver.Located{}, false
	}
	l, ok := f.Finder.Find(path)
	switch kind := l.Mode & state.ModeType; {
	case !ok, kind != state.ModeDir && kind != state.ModeRegular, l.Size < 0, !el.plausible(l.Seq),
		l.Expires != 0 && l.Expires <= el.Now(), el.Far != nil && l.Seq < el.Far.Buried(path), f.UnsettledLocked(path):
		return driver.Located{}, false
	}
	return l, true
}

// seekChildLocked enters the file or directory that other nodes or Finders have under a name, and returns 0 if they
// have none.
func (el *elsewhere) seekChildLocked(parent index.ID, name string) index.ID {
	if el.DirLocked(parent) != nil || len(name) > block.MaxName || parent == index.Root && name == block.Reserved {
		return 0
	}
	l, s := el.latestLocked(el.ChildPathLocked(parent, name))
	if s == nil {
		return 0
	}
	return el.enterLocked(parent, name, &l, s)
}

// enterFoundLocked completes the entry of what a Finder has.
func (el *elsewhere) enterFoundLocked(id index.ID, en *index.Entry, l *driver.Located, s *state.Secondary) {
	el.OwnDirsLocked(id)
	if l.IsDir() {
		el.DirEventLocked(event.DirCreated, id)
		return
	}
	el.Mu.Room.Group(en.Group).Learn(l.Size)
	el.Mu.Ix.SetExpires(id, l.Expires)
	el.TierEventLocked(event.Stored, s.Opts.Name, id, fate.Cause{}) // the events tell which blocks there are
}
