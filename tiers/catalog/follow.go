package catalog

import (
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
)

// Fact is what an Edit means to those who follow blocks: the event log, the outcomes that explain a miss, and the samples
// of reuse.
type Fact struct {
	ID   index.ID // the entry, which has its name
	What What
	Tier uint16 // bit of a lower tier; 0: memory
	Why  outcome.Cause
}

// What happens to a block.
type What uint8

// What happens to a block. Gone: the name means nothing any more, or no block.
const (
	Kept    What = iota + 1 // a tier has it
	Dropped                 // a tier has evicted it
	Gone
)

// tell tells the followers about an entry, if it is a block that is committed and has its name.
func (c *Catalog) tell(id index.ID, en *index.Entry, what What, tier uint16, why outcome.Cause) {
	if c.Follow != nil && c.Standing(id, en) != Uncounted && c.Kind(en) == draft.Block {
		c.Follow(Fact{ID: id, What: what, Tier: tier, Why: why})
	}
}

// Kind returns the kind of a file's name. A directory counts as a block.
func (c *Catalog) Kind(en *index.Entry) draft.Kind {
	switch {
	case en.IsDir():
		return draft.Block
	case en.IsPlain() || c.Room.Group(en.Group()).Pinned():
		return draft.Plain
	case en.IsTemp():
		return draft.Temp
	}
	return draft.Block
}

// KindOf returns the kind that a file of a name would have.
func (c *Catalog) KindOf(k Name) draft.Kind {
	switch flags := c.NameFlags(k.Parent, k.Name); {
	case flags&index.FlagPlain != 0 || c.Room.Group(c.GroupOf(k.Parent)).Pinned():
		return draft.Plain
	case flags&index.FlagTemp != 0:
		return draft.Temp
	}
	return draft.Block
}
