package catalog

import (
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/policy"
)

// Leaving: a block is about to leave memory, so it goes out of the orders of eviction, but for By, which takes it out
// itself. Nil: out of all.
type Leaving struct {
	ID index.ID
	By policy.Policy
}

func (x Leaving) apply(c *Catalog) Change {
	c.leave(x.ID, c.Ix.At(x.ID), x.By)
	return Change{ID: x.ID}
}

// Stays: a block that was Leaving stays in memory.
type Stays struct{ ID index.ID }

func (x Stays) apply(c *Catalog) Change {
	c.classify(x.ID, c.Ix.At(x.ID))
	return Change{ID: x.ID}
}

// Reranked: the block's group has another order of eviction than before.
type Reranked struct{ ID index.ID }

func (x Reranked) apply(c *Catalog) Change {
	en := c.Ix.At(x.ID)
	c.leave(x.ID, en, nil)
	c.classify(x.ID, en)
	return Change{ID: x.ID}
}

// Evicted: a block has left memory. A lower tier has it. It has no write side.
type Evicted struct {
	ID  index.ID
	Why outcome.Cause
}

func (x Evicted) apply(c *Catalog) Change {
	en, ch := c.begin(x.ID)
	ch.Blob = en.Blob()
	c.use(en, -ChargeOf(en.Size()))
	en.Fields().Blob = 0
	c.classify(x.ID, en)
	c.tell(x.ID, en, Dropped, 0, x.Why)
	return c.end(en, ch)
}

// Arrived: a block that lower tiers have is in memory, too, with N handles for those that wait for it and one reference.
type Arrived struct {
	ID   index.ID
	Blob uint64
	Sum  block.Checksum
	Now  int64
	N    uint32
}

func (x Arrived) apply(c *Catalog) Change {
	en, ch := c.begin(x.ID)
	f := en.Fields()
	f.Blob, f.Atime = x.Blob, x.Now
	learn(en, x.Sum)
	c.use(en, ChargeOf(en.Size()))
	en.Fields().Opens += x.N
	en.Fields().Lookups++
	c.classify(x.ID, en)
	c.tell(x.ID, en, Kept, 0, outcome.Cause{Reason: outcome.ReasonPromoted})
	return c.end(en, ch)
}

// Billed: another group, or other accounts, pay for a file.
type Billed struct {
	ID       index.ID
	Group    uint32
	Accounts [2]uint16
}

func (x Billed) apply(c *Catalog) Change {
	c.rebill(x.ID, c.Ix.At(x.ID), x.Group, x.Accounts)
	return Change{ID: x.ID}
}
