package catalog

import (
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
)

// CreatedFile: a file got its name, which was free. ID is not used: Change.ID is that of the new entry.
//
// A file in memory (Blob) is not committed until it is Seated or Committed. A file that only lower tiers have (Tiers) is
// committed. The time of its directory does not change, because it was there before.
type CreatedFile struct {
	Attrs

	Parent  index.ID
	Name    string
	Inherit bool // the file gets the group of a directory with the setgid bit

	Blob    uint64
	Cgroup  uint16 // account of the control group that makes the file
	Pinned  bool
	Expires int64

	Tiers   uint16
	Seq     uint64
	Size    int64
	Sum     block.Checksum
	Fetched bool // another node has made the version
	News    bool // followers have not heard of the copy
	User    block.UserAttrs
	Unread  bool // User is not known
}

func (x *CreatedFile) apply(c *Catalog) Change {
	id := c.Ix.Alloc()
	en := c.Ix.At(id)
	x.set(en)
	if x.Inherit {
		c.inherit(x.Parent, en)
	}
	f := en.Fields()
	f.Blob, f.Tiers, f.Seq, f.Size = x.Blob, x.Tiers, x.Seq, x.Size
	en.Fields().Accounts[OfCgroup] = x.Cgroup
	en.Fields().Flags = when(x.Fetched, index.FlagFetched) | when(x.Unread, index.FlagUnread)
	c.attribute(id, en, x.User)
	learn(en, x.Sum)
	c.enter(en, x.Parent)
	if x.Expires != 0 {
		c.Ix.SetExpires(id, x.Expires)
	}
	if x.Blob != 0 {
		en.Fields().Flags |= index.FlagUncommitted | c.NameFlags(x.Parent, x.Name)
	}
	c.pin(id, en, x.Pinned)
	c.Ix.Link(id, x.Parent, x.Name)
	ch := Change{ID: id}
	if x.Blob == 0 { // it takes no memory, so that no account and no order has it
		ch.Is = Nonresident
		c.count(Nonresident, 1)
		if x.Tiers&c.Remote == 0 {
			c.Room.Group(en.Group()).Learn(x.Size)
		}
		if x.News {
			c.tell(id, en, Kept, x.Tiers, outcome.Cause{})
		}
		return ch
	}
	c.date(x.Parent, x.Ctime)
	c.classify(id, en)
	return ch
}

// CreatedDir: a directory got its name, which was free. ID is not used: Change.ID is that of the new entry.
type CreatedDir struct {
	Attrs

	Parent  index.ID
	Name    string
	Inherit bool // the directory gets the group and the bit of a directory with the setgid bit
	Dated   bool // the time of its directory changes
	Refs    uint32

	Blob  uint64
	Tiers uint16
	Seq   uint64
}

func (x *CreatedDir) apply(c *Catalog) Change {
	id := c.Ix.Alloc()
	en := c.Ix.At(id)
	x.set(en)
	if x.Inherit {
		c.inherit(x.Parent, en)
	}
	f := en.Fields()
	f.Blob, f.Tiers, f.Seq, f.Lookups = x.Blob, x.Tiers, x.Seq, x.Refs
	c.Ix.Link(id, x.Parent, x.Name)
	c.mark(id, en)
	if x.Blob != 0 {
		c.dirFiles++
	}
	if x.Dated {
		c.date(x.Parent, x.Ctime)
	}
	return Change{ID: id}
}

// Found: an earlier process left a file in memory, under a name that is free (ID 0) or that a file with an earlier
// commit had. Change.Blob is the file of that one. Adopted follows for the last file that is Found under a name.
type Found struct {
	ID     index.ID
	Parent index.ID
	Name   string
	Blob   uint64
}

func (x Found) apply(c *Catalog) Change {
	ch := Change{ID: x.ID}
	if x.ID == 0 {
		ch.ID = c.Ix.Alloc()
		en := c.Ix.At(ch.ID)
		f := en.Fields()
		f.Mode, f.Flags = modeRegular, index.FlagUncommitted
		c.Ix.Link(ch.ID, x.Parent, x.Name)
	}
	en := c.Ix.At(ch.ID)
	ch.Blob, en.Fields().Blob = en.Blob(), x.Blob
	return ch
}

// Adopted: a file that was Found is this process's. Its name is Name.
type Adopted struct {
	Attrs

	Name    string
	Seq     uint64
	Size    int64
	Sum     block.Checksum
	Expires int64
	Pinned  bool
	User    block.UserAttrs
}

func (x *Adopted) apply(c *Catalog) Change {
	id := x.ID
	en, ch := c.begin(id)
	x.set(en)
	f := en.Fields()
	f.Seq, f.Size = x.Seq, x.Size
	learn(en, x.Sum)
	c.attribute(id, en, x.User)
	if x.Expires != 0 {
		c.Ix.SetExpires(id, x.Expires)
	}
	parent := c.Ix.Parent(id)
	c.enter(en, parent)
	set(en, index.FlagUncommitted, c.NameFlags(parent, x.Name))
	c.pin(id, en, x.Pinned)
	c.use(en, ChargeOf(en.Size()))
	c.classify(id, en)
	if en.Stable() && !c.Room.Group(en.Group()).Pinned() {
		c.Room.Group(en.Group()).Learn(en.Size())
	}
	return c.end(en, ch)
}

// enter has the group of a directory, and the account of the owner, pay for a new file in the directory.
func (c *Catalog) enter(en *index.Entry, dir index.ID) {
	f := en.Fields()
	f.Group, f.Accounts[OfUser] = c.GroupOf(dir), c.Room.OfUser(en.UID())
	c.Room.Enter(en.Group())
}

// date notes that the names in a directory changed.
func (c *Catalog) date(dir index.ID, now int64) {
	en := c.Ix.At(dir)
	f := en.Fields()
	f.Mtime, f.Ctime = now, now
}

// mark notes whether names below a directory are temporary.
func (c *Catalog) mark(id index.ID, en *index.Entry) {
	temp := c.Ix.At(c.Ix.Parent(id)).IsTemp() || c.Temp.Dir(c.Ix.Name(id))
	set(en, index.FlagTemp, when(temp, index.FlagTemp))
}

// Bits of st_mode, as Linux has them.
const (
	modeRegular = 0o100000
	setgid      = 0o2000
)

// inherit gives a new entry of a directory with the setgid bit the group of the directory, and a new directory also the
// bit.
func (c *Catalog) inherit(dir index.ID, en *index.Entry) {
	d := c.Ix.At(dir)
	if d.Mode()&setgid == 0 {
		return
	}
	en.Fields().GID = d.GID()
	if en.IsDir() {
		en.Fields().Mode |= setgid
	}
}
