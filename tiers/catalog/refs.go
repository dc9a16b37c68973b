package catalog

import (
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/policy"
)

// Referred: a kernel, or a call that needs the entry to stay, refers to it once more.
type Referred struct{ ID index.ID }

func (x Referred) apply(c *Catalog) Change {
	c.Ix.At(x.ID).Fields().Lookups++
	return Change{ID: x.ID}
}

// Forgotten: N references are given back.
type Forgotten struct {
	ID index.ID
	N  uint64
}

func (x Forgotten) apply(c *Catalog) Change {
	en := c.Ix.At(x.ID)
	en.Fields().Lookups -= uint32(min(x.N, uint64(en.Lookups())))
	return Change{ID: x.ID}
}

// LookedUp: a kernel has looked a name up. Until is the end of the lease that it gets; 0: none.
type LookedUp struct {
	ID    index.ID
	Until int64
}

func (x LookedUp) apply(c *Catalog) Change {
	en := c.Ix.At(x.ID)
	en.Fields().Lookups++
	if x.Until != 0 {
		en.Fields().Lease = x.Until
	}
	return Change{ID: x.ID}
}

// Leased: a look-up without a kernel has promised that the block stays readable until a time.
type Leased struct {
	ID    index.ID
	Until int64
}

func (x Leased) apply(c *Catalog) Change {
	c.Ix.At(x.ID).Fields().Lease = x.Until
	return Change{ID: x.ID}
}

// Opened: N handles were opened. With Now the read is a use of the block, for the orders of eviction and the time of
// access; with Lent it is one for the orders alone.
type Opened struct {
	ID      index.ID
	N       uint32
	Now     int64 // 0: the open is no use
	Lent    bool
	Burst   policy.Burst // that the use belongs to
	Brought bool         // the block has come to memory for this read, so its place is in Burst with each policy
}

func (x Opened) apply(c *Catalog) Change {
	en := c.Ix.At(x.ID)
	was := en.Opens()
	en.Fields().Opens += x.N
	if was == 0 {
		c.classify(x.ID, en)
	}
	if x.Now != 0 {
		en.Fields().Atime = x.Now
	}
	if (x.Now != 0 || x.Lent) && en.Ranked() {
		c.Room.Touch(c.Bill(en), uint32(x.ID), x.Burst)
		if x.Brought {
			c.Room.Follow(c.Bill(en), uint32(x.ID), x.Burst, true)
		}
	}
	return Change{ID: x.ID}
}

// Closed: a handle was closed.
type Closed struct{ ID index.ID }

func (x Closed) apply(c *Catalog) Change {
	en := c.Ix.At(x.ID)
	if en.Fields().Opens--; en.Opens() == 0 {
		c.classify(x.ID, en)
	}
	return Change{ID: x.ID}
}

// Used: a process of this node uses a directory of other nodes.
type Used struct{ ID index.ID }

func (x Used) apply(c *Catalog) Change {
	if en := c.Ix.At(x.ID); !en.Used() {
		en.Fields().Flags |= index.FlagUsed
		c.usedDirs++
	}
	return Change{ID: x.ID}
}
