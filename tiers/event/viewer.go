package event

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/driver"
)

// Viewer is a user who is told only of blocks that the kernel would let him open for reading. A nil
// *Viewer is told of all.
type Viewer struct {
	UID  uint32
	GIDs []uint32 // his group, and the supplementary ones
}

// Permission bits, as they are for others.
const (
	MayRead   = 0o4
	MaySearch = 0o1
)

// May reports whether a mode gives v all of the wanted bits. As the kernel has it, the owner has the
// first three alone, and the group the next.
func (v *Viewer) May(want, mode, uid, gid uint32) bool {
	switch {
	case uid == v.UID:
		mode >>= 6
	case slices.Contains(v.GIDs, gid):
		mode >>= 3
	}
	return mode&want == want
}

// Wanted is what a user needs of an entry to be told of events below or about it: unlike who asks for a
// name, he learns names from them.
func Wanted(mode uint32) uint32 {
	if mode&unix.S_IFMT == unix.S_IFDIR {
		return MayRead | MaySearch
	}
	return MayRead
}

// Shows reports whether v may know of the event: he may read the block, and search and list the
// directories above it, as all of them were when it happened.
func (e *Event) Shows(v *Viewer) bool {
	return v == nil || !slices.ContainsFunc(e.Guard, func(a driver.DirAttrs) bool { return !v.May(Wanted(a.Mode), a.Mode, a.UID, a.GID) })
}
