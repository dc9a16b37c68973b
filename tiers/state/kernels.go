package state

import "github.com/kvfs/kvfs/tiers/index"

// With Options.Kernels several kernels refer to entries, each with a cache of its own. A change that one kernel asked
// for is told to all, because the others do not know of it.
//
// A kernel caches only answers with Attr.Stable. An entry that is being written never has that, nor has the answer
// that a name does not exist. So writing a file under a temporary name and renaming it to a new name tells no kernel
// anything.

// NameLeftLocked notes in g that an entry is about to lose its name because a kernel asked for that. The caller calls
// it before the name is gone. by is as in Options.Invalidate.
func (st *State) NameLeftLocked(id index.ID, en *index.Entry, by Process, g *Gone) {
	if st.Opts.Kernels && en.Lookups > 0 && en.Flags&(index.FlagUncommitted|index.FlagTemp) == 0 {
		g.Names = append(g.Names, GoneName{st.Mu.Ix.Parent(id), id, st.Mu.Ix.Name(id), by})
	}
}

// InheritGroupLocked gives a new entry of a directory with the setgid bit the group of the directory, and a new directory
// also the bit.
func (st *State) InheritGroupLocked(dir index.ID, en *index.Entry) {
	d := st.Mu.Ix.At(dir)
	if d.Mode&setgid == 0 {
		return
	}
	en.GID = d.GID
	if en.IsDir() {
		en.Mode |= setgid
	}
}

// setgid is S_ISGID.
const setgid = 0o2000

// AttrsChangedLocked notes in g that the attributes of an entry have changed because a kernel asked for that. No
// kernel caches those of a file that is being written, so for such a file it does nothing.
func (st *State) AttrsChangedLocked(id index.ID, en *index.Entry, g *Gone) {
	if st.Opts.Kernels && en.Lookups > 0 && en.Flags&(index.FlagUncommitted|index.FlagTemp) == 0 {
		g.Names = append(g.Names, GoneName{ID: id})
	}
}
