package catalog

import "github.com/kvfs/kvfs/tiers/index"

// A kernel caches names and attributes of the entries that it refers to. What it has not asked for itself it is told of.
// With several kernels a change that one has asked for is told to the others.
//
// A kernel caches only answers that are the same for all processes. So an entry that is being written is not told of, and
// a file that gets a name for the first time tells no kernel anything.

// told reports whether several kernels may have cached what one of them asks to change of an entry.
func (c *Catalog) told(en *index.Entry) bool {
	return c.Kernels && en.Lookups() > 0 && en.Flags()&(index.FlagUncommitted|index.FlagTemp) == 0
}

// left returns the name of an entry that is about to lose it, if kernels are to forget that. asked: a kernel has asked for
// the loss.
func (c *Catalog) left(id index.ID, en *index.Entry, asked bool) Name {
	if !en.Linked() || en.Lookups() == 0 || asked && !c.told(en) {
		return Name{}
	}
	return Name{c.Ix.Parent(id), c.Ix.Name(id)}
}

// Aged: size or time of a file is another one than kernels may have cached, or will be at any time, though the entry is
// the same.
type Aged struct{ ID index.ID }

func (x Aged) apply(c *Catalog) Change { return Change{ID: x.ID, Aged: c.told(c.Ix.At(x.ID))} }
