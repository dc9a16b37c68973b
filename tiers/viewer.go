package tiers

import (
	"slices"
	"strings"

	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
)

// Viewer is a user who is told only of blocks that the kernel would let him open for reading. A nil
// *Viewer is told of all.
type Viewer struct {
	UID  uint32
	GIDs []uint32 // his group, and the supplementary ones
}

// Permission bits, as they are for others.
const (
	mayRead   = 0o4
	maySearch = 0o1
)

// may reports whether a mode gives v all of the wanted bits. As the kernel has it, the owner has the
// first three alone, and the group the next.
func (v *Viewer) may(want, mode, uid, gid uint32) bool {
	switch {
	case uid == v.UID:
		mode >>= 6
	case slices.Contains(v.GIDs, gid):
		mode >>= 3
	}
	return mode&want == want
}

// reachesLocked reports whether v may search a directory and all above it.
func (e *lookups) reachesLocked(v *Viewer, dir index.ID) bool {
	for ; dir != 0; dir = e.mu.ix.Parent(dir) {
		if en := e.mu.ix.At(dir); !v.may(maySearch, en.Mode, en.UID, en.GID) {
			return false
		}
	}
	return true
}

// showsLocked reports whether v may read a file in a directory.
func (e *lookups) showsLocked(v *Viewer, dir, id index.ID) bool {
	if v == nil {
		return true
	}
	en := e.mu.ix.At(id)
	return v.may(mayRead, en.Mode, en.UID, en.GID) && e.reachesLocked(v, dir)
}

// showsFarLocked reports whether v may read what others have at a path: the directories above it may
// be theirs as well.
func (e *lookups) showsFarLocked(v *Viewer, path string, l *driver.Located) bool {
	if v == nil {
		return true
	}
	want := uint32(mayRead)
	for ok := true; ; {
		if !ok || !v.may(want, l.Mode, l.UID, l.GID) {
			return false
		}
		path = path[:max(strings.LastIndexByte(path, '/'), 0)]
		if id := e.mu.ix.Walk(path); id != 0 {
			return e.reachesLocked(v, id)
		}
		var above driver.Located
		above, ok = e.elsewhere.locate(path)
		l, want = &above, maySearch
	}
}

// guardLocked appends what keeps users from knowing of an entry by its name: of it and the directories
// above it those that not all may read. It appends nothing for most.
func (e *lookups) guardLocked(guard []driver.DirAttrs, id index.ID) []driver.DirAttrs {
	for ; id != 0; id = e.mu.ix.Parent(id) {
		en := e.mu.ix.At(id)
		if all := wanted(en.Mode) * 0o111; en.Mode&all != all {
			guard = append(guard, driver.DirAttrs{Mode: en.Mode, UID: en.UID, GID: en.GID})
		}
	}
	return guard
}

// wanted is what a user needs of an entry to be told of events below or about it: unlike who asks for a
// name, he learns names from them.
func wanted(mode uint32) uint32 {
	if mode&modeType == modeDir {
		return mayRead | maySearch
	}
	return mayRead
}

// Shows reports whether v may know of the event: he may read the block, and search and list the
// directories above it, as all of them were when it happened.
func (ev *Event) Shows(v *Viewer) bool {
	return v == nil || !slices.ContainsFunc(ev.guard, func(a driver.DirAttrs) bool { return !v.may(wanted(a.Mode), a.Mode, a.UID, a.GID) })
}
