package catalog

import (
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
)

// Queued: a copy of the block to a tier is queued.
type Queued struct {
	ID  index.ID
	Bit uint16
}

func (x Queued) apply(c *Catalog) Change {
	c.Ix.At(x.ID).Fields().Storing |= x.Bit
	return Change{ID: x.ID}
}

// Unqueued: the copy to a tier has ended, in whatever way.
type Unqueued struct {
	ID  index.ID
	Bit uint16
}

func (x Unqueued) apply(c *Catalog) Change {
	c.Ix.At(x.ID).Fields().Storing &^= x.Bit
	return Change{ID: x.ID}
}

// Copied: a tier has a copy of the block. Keeps: it is the copy that an fsync promised, so the promise is kept.
type Copied struct {
	ID    index.ID
	Bit   uint16
	Keeps bool
	Sum   block.Checksum // valid if the tier told it
	Old   bool           // the tier had the copy before the Catalog was made, so that followers know of it
}

func (x Copied) apply(c *Catalog) Change {
	en := c.Ix.At(x.ID)
	en.Fields().Tiers |= x.Bit
	en.Fields().Flags &^= index.FlagRefused | index.FlagOnceSeen | when(x.Keeps, index.FlagSynced)
	learn(en, x.Sum)
	if !x.Old {
		c.tell(x.ID, en, Kept, x.Bit, outcome.Cause{})
	}
	return Change{ID: x.ID}
}

// learn notes the checksum of an entry, unless it is known.
func learn(en *index.Entry, sum block.Checksum) {
	if sum.Valid && !en.HasSum() {
		f := en.Fields()
		f.Sum, f.Flags = sum.Sum, en.Flags()|index.FlagSum
	}
}

// Refused: a tier does not take the block. It is not asked again for this version.
type Refused struct{ ID index.ID }

func (x Refused) apply(c *Catalog) Change {
	c.Ix.At(x.ID).Fields().Flags |= index.FlagRefused
	return Change{ID: x.ID}
}

// Seen: the block was used for the first time (Once), so that a tier that wants it twice has not got it, or again.
type Seen struct {
	ID   index.ID
	Once bool
}

func (x Seen) apply(c *Catalog) Change {
	set(c.Ix.At(x.ID), index.FlagOnceSeen, when(x.Once, index.FlagOnceSeen))
	return Change{ID: x.ID}
}

// Touched: a read of the block is yet to be told to the tiers, or (not On) has been told.
type Touched struct {
	ID index.ID
	On bool
}

func (x Touched) apply(c *Catalog) Change {
	set(c.Ix.At(x.ID), index.FlagTouched, when(x.On, index.FlagTouched))
	return Change{ID: x.ID}
}

// Lost: tiers have the block no more (Tiers), or are not to get it (Storing). Promise: nor does a tier keep, under the
// name of the block, a version that an fsync promised. A directory that other nodes have no more is not Used.
type Lost struct {
	ID             index.ID
	Tiers, Storing uint16
	Promise        bool
	Why            outcome.Reason // that the tier had to drop its copy; 0: followers hear of the end of the block, or of its next version
}

func (x Lost) apply(c *Catalog) Change {
	en := c.Ix.At(x.ID)
	if en.Used() && en.Tiers()&x.Tiers&c.Remote != 0 {
		en.Fields().Flags &^= index.FlagUsed
		c.usedDirs--
	}
	en.Fields().Tiers &^= x.Tiers
	en.Fields().Storing &^= x.Storing
	en.Fields().Flags &^= when(x.Promise, index.FlagSynced)
	if x.Why != 0 {
		c.tell(x.ID, en, Dropped, x.Tiers, outcome.Cause{Reason: x.Why})
	}
	return Change{ID: x.ID}
}

// Synced: a tier keeps a version under the name of the file because an fsync promised it.
type Synced struct{ ID index.ID }

func (x Synced) apply(c *Catalog) Change {
	c.Ix.At(x.ID).Fields().Flags |= index.FlagSynced
	return Change{ID: x.ID}
}

// Summed: the checksum of the bytes is known.
type Summed struct {
	ID  index.ID
	Sum uint64
}

func (x Summed) apply(c *Catalog) Change {
	en := c.Ix.At(x.ID)
	f := en.Fields()
	f.Sum, f.Flags = x.Sum, en.Flags()|index.FlagSum
	return Change{ID: x.ID}
}
