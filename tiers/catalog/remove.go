package catalog

import (
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
)

// Removed: an entry has lost its name. Its bytes stay as long as something refers to it: see Reaped. A directory is empty,
// and its file is gone with the name. Nothing happens to the name of an entry that has none.
type Removed struct {
	ID      index.ID
	Asked   bool // a kernel has asked for that
	Evicted bool // memory has evicted the last copy of a block
	Why     outcome.Cause
}

func (x Removed) apply(c *Catalog) Change {
	en, ch := c.begin(x.ID)
	what := Gone
	if x.Evicted {
		what = Dropped
	}
	c.tell(x.ID, en, what, 0, x.Why)
	ch.Left = c.left(x.ID, en, x.Asked)
	if en.Linked() {
		c.Ix.Unlink(x.ID)
	}
	if en.IsDir() {
		if ch.Blob, en.Fields().Blob = en.Blob(), 0; ch.Blob != 0 {
			c.dirFiles--
		}
	} else {
		c.pin(x.ID, en, false)
		c.classify(x.ID, en)
	}
	return c.end(en, ch)
}

// Reaped: an entry without a name and without handles gives up its bytes, and its number, too, if no kernel refers to it.
// Its write side ends.
type Reaped struct{ ID index.ID }

func (x Reaped) apply(c *Catalog) Change {
	en := c.Ix.At(x.ID)
	ch := Change{ID: x.ID, Blob: en.Blob()}
	if charge := c.Charge(x.ID, en); charge > 0 {
		c.use(en, -charge)
	}
	f := en.Fields()
	f.Size, f.Blob = 0, 0
	c.unwrite(x.ID)
	if en.Lookups() > 0 {
		return ch
	}
	if !en.IsDir() {
		c.Room.Leave(en.Group())
	}
	c.attribute(x.ID, en, "")
	c.Ix.Free(x.ID)
	return ch
}

// Restarted: a block that nobody has open has become a file without bytes, which is not committed. It has the same name,
// and another file in the primary tier, Blob. Its tiers have lost it. Change.Blob is the file that it had.
type Restarted struct {
	ID     index.ID
	Blob   uint64
	Now    int64
	Cgroup uint16 // account of the control group that makes the version
	Why    outcome.Cause
}

func (x Restarted) apply(c *Catalog) Change {
	en, ch := c.begin(x.ID)
	c.tell(x.ID, en, Gone, 0, x.Why)
	ch.Left = c.left(x.ID, en, false)
	ch.Aged = c.told(en) // a kernel may rename the block before it hears that the name is not its own any more
	pinned := en.Pinned()
	c.pin(x.ID, en, false)
	c.leave(x.ID, en, nil)
	if charge := c.Charge(x.ID, en); charge > 0 {
		c.use(en, -charge)
	}
	c.unwrite(x.ID)
	ch.Blob, en.Fields().Blob = en.Blob(), x.Blob
	f := en.Fields()
	f.Size, f.Lease, f.Mtime, f.Ctime = 0, 0, x.Now, x.Now
	c.attribute(x.ID, en, "")
	set(en, index.FlagUnread|index.FlagSum|index.FlagRefused|index.FlagOnceSeen|index.FlagFetched|index.FlagTouched, index.FlagUncommitted)
	c.pin(x.ID, en, pinned)
	accounts := en.Accounts()
	accounts[OfCgroup] = x.Cgroup
	c.rebill(x.ID, en, en.Group(), accounts)
	c.classify(x.ID, en)
	return c.end(en, ch)
}
