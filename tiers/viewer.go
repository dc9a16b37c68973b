package tiers

import (
	"strings"

	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/index"
)

// reachesLocked reports whether v may search a directory and all directories above it.
func (e *lookups) reachesLocked(v *event.Viewer, dir index.ID) bool {
	for ; dir != 0; dir = e.mu.ix.Parent(dir) {
		if en := e.mu.ix.At(dir); !v.May(event.MaySearch, en.Mode, en.UID, en.GID) {
			return false
		}
	}
	return true
}

// showsLocked reports whether v may read a file in a directory.
func (e *lookups) showsLocked(v *event.Viewer, dir, id index.ID) bool {
	if v == nil {
		return true
	}
	en := e.mu.ix.At(id)
	return v.May(event.MayRead, en.Mode, en.UID, en.GID) && e.reachesLocked(v, dir)
}

// showsFarLocked reports whether v may read the file l that other nodes have at path. Directories above it may also
// be those of other nodes.
func (e *lookups) showsFarLocked(v *event.Viewer, path string, l *driver.Located) bool {
	if v == nil {
		return true
	}
	want := uint32(event.MayRead)
	for ok := true; ; {
		if !ok || !v.May(want, l.Mode, l.UID, l.GID) {
			return false
		}
		path = path[:max(strings.LastIndexByte(path, '/'), 0)]
		if id := e.mu.ix.Walk(path); id != 0 {
			return e.reachesLocked(v, id)
		}
		var above driver.Located
		above, ok = e.elsewhere.locate(path)
		l, want = &above, event.MaySearch
	}
}

// guardLocked appends the permissions that keep users from knowing an entry by its name: of it and the directories
// above it those that not all users may read. It appends nothing for most entries.
func (e *lookups) guardLocked(guard []driver.DirAttrs, id index.ID) []driver.DirAttrs {
	for ; id != 0; id = e.mu.ix.Parent(id) {
		en := e.mu.ix.At(id)
		if all := event.Wanted(en.Mode) * 0o111; en.Mode&all != all {
			guard = append(guard, driver.DirAttrs{Mode: en.Mode, UID: en.UID, GID: en.GID})
		}
	}
	return guard
}
