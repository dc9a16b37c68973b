package catalog

import (
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
)

// Becomes is what a file is under its new name.
type Becomes uint8

// What a rename makes of a file.
const (
	Same      Becomes = iota // what it was
	Private                  // not committed: Committed follows
	Hidden                   // not committed: the close of another process commits it
	Shown                    // a file that is no block, which all processes see
	Withdrawn                // the same, and it was a block
)

// Renamed: an entry has another name, which is free, because a kernel has asked for that. A directory moves with everything below it.
type Renamed struct {
	ID     index.ID
	Parent index.ID
	Name   string
	Now    int64
	Seq    uint64
	By     outcome.Actor

	Becomes     Becomes // of a file
	Size, Mtime int64   // of a file that is Shown or Withdrawn: its record says so, and it may be a block again before a write
}

func (x *Renamed) apply(c *Catalog) Change {
	en, ch := c.begin(x.ID)
	if x.Becomes == Withdrawn && c.Follow != nil { // it may have the group of its new name, and be no block there
		c.Follow(Fact{ID: x.ID, What: Gone, Why: outcome.Cause{Reason: outcome.ReasonRenamed, By: x.By}})
	}
	ch.Left = c.left(x.ID, en, true)
	from := c.Ix.Parent(x.ID)
	c.Ix.Rename(x.ID, x.Parent, x.Name)
	c.date(from, x.Now)
	c.date(x.Parent, x.Now)
	f := en.Fields()
	f.Ctime, f.Seq = x.Now, x.Seq
	if en.IsDir() {
		c.moved(x.ID, en)
		return ch
	}
	set(en, index.FlagTemp|index.FlagPlain, c.NameFlags(x.Parent, x.Name))
	switch x.Becomes {
	case Hidden: // the kernel has moved its own entry of the name
		ch.Hidden = en.Lookups() > 0
		fallthrough
	case Private:
		en.Fields().Flags |= index.FlagUncommitted
	case Shown, Withdrawn:
		en.Fields().Flags &^= index.FlagUncommitted
		f := en.Fields()
		f.Size, f.Mtime = x.Size, x.Mtime
	}
	c.classify(x.ID, en)
	return c.end(en, ch)
}

// moved follows the move of a directory. Other groups may pay for the files below it, and its name may make them
// temporary, or no longer so.
func (c *Catalog) moved(dir index.ID, en *index.Entry) {
	c.mark(dir, en)
	c.Ix.Descend(dir, func(id index.ID, en *index.Entry) bool {
		if en.IsDir() {
			c.mark(id, en)
		} else {
			c.rebill(id, en, c.GroupOf(c.Ix.Parent(id)), en.Accounts())
		}
		return true
	})
}
