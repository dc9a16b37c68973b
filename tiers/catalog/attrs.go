package catalog

import (
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
)

// Attrs are the attributes of an entry that calls and other nodes set.
type Attrs struct {
	ID                  index.ID
	Mode                uint16 // with the type
	UID, GID            uint32
	Mtime, Atime, Ctime int64
	Use                 bool // setting the time of access was a use of the block
}

// AttrsOf returns the attributes that an entry has.
func AttrsOf(id index.ID, en *index.Entry) Attrs {
	return Attrs{ID: id, Mode: en.Mode(), UID: en.UID(), GID: en.GID(), Mtime: en.Mtime(), Atime: en.Atime(), Ctime: en.Ctime()}
}

// set gives an entry the attributes, but for its owner's account.
func (x *Attrs) set(en *index.Entry) {
	f := en.Fields()
	f.Mode, f.UID, f.GID, f.Mtime, f.Atime, f.Ctime = x.Mode, x.UID, x.GID, x.Mtime, x.Atime, x.Ctime
}

func (x *Attrs) apply(c *Catalog) Change {
	en := c.Ix.At(x.ID)
	x.set(en)
	c.own(x.ID, en, x.UID, x.GID)
	if x.Use && en.Ranked() {
		c.Room.Touch(c.Bill(en), uint32(x.ID), 0)
	}
	return Change{ID: x.ID}
}

// Times: the times of an entry have changed.
type Times struct {
	ID           index.ID
	Mtime, Ctime int64
}

func (x Times) apply(c *Catalog) Change {
	en := c.Ix.At(x.ID)
	f := en.Fields()
	f.Mtime, f.Ctime = x.Mtime, x.Ctime
	return Change{ID: x.ID}
}

// Pinned: a user has pinned a file, or (not On) it is pinned no more.
type Pinned struct {
	ID index.ID
	On bool
}

func (x Pinned) apply(c *Catalog) Change {
	en := c.Ix.At(x.ID)
	c.pin(x.ID, en, x.On)
	c.classify(x.ID, en)
	return Change{ID: x.ID}
}

// Expires: a file is to be removed at a time. 0: never.
type Expires struct {
	ID index.ID
	At int64
}

func (x Expires) apply(c *Catalog) Change {
	c.Ix.SetExpires(x.ID, x.At)
	return Change{ID: x.ID}
}

// Versioned: the entry has another version number. Own: this node has made the version.
type Versioned struct {
	ID  index.ID
	Seq uint64
	Own bool
}

func (x Versioned) apply(c *Catalog) Change {
	en := c.Ix.At(x.ID)
	en.Fields().Seq = x.Seq
	en.Fields().Flags &^= when(x.Own, index.FlagFetched)
	return Change{ID: x.ID}
}

// Attributed: a file has these attributes of processes. They belong to its version.
type Attributed struct {
	ID   index.ID
	User block.UserAttrs
}

func (x Attributed) apply(c *Catalog) Change {
	en := c.Ix.At(x.ID)
	c.attribute(x.ID, en, x.User)
	set(en, index.FlagUnread, 0)
	return Change{ID: x.ID}
}

// attribute gives a file its attributes of processes. Only files that have some take memory for them.
func (c *Catalog) attribute(id index.ID, en *index.Entry, user block.UserAttrs) {
	if user != "" {
		c.user[id] = user
	} else if en.Flags()&index.FlagUser != 0 {
		delete(c.user, id)
	}
	set(en, index.FlagUser, when(user != "", index.FlagUser))
}

// UserAttrs returns the attributes of processes that a file has.
func (c *Catalog) UserAttrs(id index.ID, en *index.Entry) block.UserAttrs {
	if en.Flags()&index.FlagUser == 0 {
		return ""
	}
	return c.user[id]
}
