package catalog

import (
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/policy"
)

// Begun: a file gets a write side.
type Begun struct {
	ID index.ID
	W  *Writing
}

func (x Begun) apply(c *Catalog) Change {
	en, ch := c.begin(x.ID)
	x.W.charge = ChargeOf(en.Size())
	c.writing[x.ID] = x.W
	return c.end(en, ch)
}

// Ended: the write side of a file ends. The file costs what its bytes cost: see Trimmed. The entry may be gone.
type Ended struct{ ID index.ID }

func (x Ended) apply(c *Catalog) Change {
	delete(c.writing, x.ID)
	return Change{ID: x.ID}
}

// unwrite ends the write side of a file that costs nothing from now on.
func (c *Catalog) unwrite(id index.ID) {
	if w := c.writing[id]; w != nil {
		w.charge = 0
		delete(c.writing, id)
	}
}

// Reserved: room for N more bytes was made for a file that is being written. If its write side has ended while a write
// waited for the room, nothing is charged.
type Reserved struct {
	ID index.ID
	N  int64
}

func (x Reserved) apply(c *Catalog) Change {
	if w := c.writing[x.ID]; w != nil {
		w.charge += x.N
		c.resize(c.Ix.At(x.ID), x.N)
	}
	return Change{ID: x.ID}
}

// Trimmed: room that was reserved beyond the size of a file is free again.
type Trimmed struct{ ID index.ID }

func (x Trimmed) apply(c *Catalog) Change {
	en, w := c.Ix.At(x.ID), c.writing[x.ID]
	c.resize(en, ChargeOf(en.Size())-w.charge)
	w.charge = ChargeOf(en.Size())
	return Change{ID: x.ID}
}

// grow charges what size bytes cost beyond what is charged to a file that is being written, and returns that.
func (c *Catalog) grow(id index.ID, en *index.Entry, size int64) int64 {
	w := c.writing[id]
	over := ChargeOf(size) - w.charge
	if over <= 0 {
		return 0
	}
	c.resize(en, over)
	w.charge += over
	return over
}

// Seated: a file that is no block is committed before its bytes are there: all processes see it.
type Seated struct {
	ID  index.ID
	Seq uint64
}

func (x Seated) apply(c *Catalog) Change {
	en, ch := c.begin(x.ID)
	en.Fields().Flags &^= index.FlagUncommitted
	en.Fields().Seq = x.Seq
	return c.end(en, ch)
}

// Committed: a file that is being written has become a version of a block, with these bytes.
type Committed struct {
	ID          index.ID
	Size, Mtime int64
	Seq         uint64
	Burst       policy.Burst // of the commit
}

func (x Committed) apply(c *Catalog) Change {
	en, ch := c.begin(x.ID)
	ch.Grew = c.grow(x.ID, en, x.Size)
	c.leave(x.ID, en, nil) // its size changed: enter it anew
	en.Fields().Flags &^= index.FlagUncommitted | index.FlagSum | index.FlagRefused | index.FlagOnceSeen | index.FlagFetched
	f := en.Fields()
	f.Size, f.Mtime, f.Ctime, f.Seq = x.Size, x.Mtime, max(x.Mtime, en.Ctime()), x.Seq
	c.Ix.SetExpires(x.ID, c.Ix.Expires(x.ID)) // it may have been due before it was committed
	c.classify(x.ID, en)
	c.Room.Follow(c.Bill(en), uint32(x.ID), x.Burst, true)
	c.Room.Group(en.Group()).Commit(x.Size)
	ch.Aged = ch.Was != Uncounted && c.told(en) // in place
	c.tell(x.ID, en, Kept, 0, outcome.Cause{})
	return c.end(en, ch)
}

// Rewritten: the bytes of a file that is no block have changed.
type Rewritten struct {
	ID          index.ID
	Size, Mtime int64
}

func (x Rewritten) apply(c *Catalog) Change {
	en := c.Ix.At(x.ID)
	ch := Change{ID: x.ID, Grew: c.grow(x.ID, en, x.Size)}
	f := en.Fields()
	f.Size, f.Mtime, f.Ctime = x.Size, x.Mtime, max(x.Mtime, en.Ctime())
	en.Fields().Flags &^= index.FlagSum
	ch.Aged = c.told(en)
	return ch
}

// Sized: a file that is being written has another size or time. That is not charged: no commit, or Trimmed, follows.
type Sized struct {
	ID          index.ID
	Size, Mtime int64
}

func (x Sized) apply(c *Catalog) Change {
	en := c.Ix.At(x.ID)
	f := en.Fields()
	f.Size, f.Mtime = x.Size, x.Mtime
	return Change{ID: x.ID}
}
