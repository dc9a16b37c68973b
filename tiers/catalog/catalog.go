package catalog

import (
	"hash/maphash"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/pattern"
	"github.com/kvfs/kvfs/tiers/room"
)

// Catalog is the index with the accounts that follow from it. The exported fields are constant once the first Edit is
// applied.
type Catalog struct {
	Ix          *index.Index
	Room        *room.Room  // the accounts of memory
	Temp, Plain pattern.Set // which names are temporary, and which are plain
	Remote      uint16      // bit of the tier that stands for other nodes; 0: there is none
	Kernels     bool        // several kernels refer to entries: what one asks for is told to the others
	Seed        maphash.Seed
	Follow      func(Fact) // nil: nobody. Apply calls it, while the entry has its name

	Scratch []byte // for paths; any method may change it

	writing     map[index.ID]*Writing // the files that have a write side
	user        map[index.ID]block.UserAttrs
	blocks      int64 // committed files in memory
	nonresident int64 // committed files in lower tiers only
	usedDirs    int   // directories that are Used
	dirFiles    int64 // directories with a file of their own
}

// New returns a Catalog of the root directory. The caller sets Room before it makes files.
func New(temp, plain pattern.Set, root Attrs) Catalog {
	c := Catalog{Ix: index.New(), Temp: temp, Plain: plain, Seed: maphash.MakeSeed(), writing: map[index.ID]*Writing{}, user: map[index.ID]block.UserAttrs{}}
	root.set(c.Ix.At(index.Root))
	return c
}

// Edit is one thing that happens to an entry.
type Edit interface {
	apply(c *Catalog) Change
}

// Apply makes a change, and everything in the catalog that follows from it.
func (c *Catalog) Apply(e Edit) Change { return e.apply(c) }

// Change is what Apply did to an entry.
type Change struct {
	ID   index.ID
	Was  Standing // before
	Is   Standing // now
	Blob uint64   // file in the primary tier that was the entry's and is no more; 0: none
	Grew int64    // bytes that the entry costs beyond those reserved for it

	Left   Name // that the entry had, and that kernels are to forget; zero: none
	Hidden bool // kernels are to forget the name that the entry has, because most processes do not find it there
	Aged   bool // kernels are to forget the attributes of the entry
}

// Name is one name in one directory.
type Name struct {
	Parent index.ID
	Name   string
}

// Standing is how a file counts: see Blocks.
type Standing uint8

// The standings of a file.
const (
	Uncounted   Standing = iota // it is a directory, is not committed, or has no name
	Resident                    // in memory
	Nonresident                 // in lower tiers only
)

// Standing returns how an entry counts.
func (c *Catalog) Standing(id index.ID, en *index.Entry) Standing {
	switch {
	case en.IsDir() || !en.Committed() || !en.Linked():
		return Uncounted
	case c.Resident(id, en):
		return Resident
	}
	return Nonresident
}

// Blocks returns how many committed files are in memory, and how many are in lower tiers only.
func (c *Catalog) Blocks() (resident, nonresident int64) { return c.blocks, c.nonresident }

// UsedDirs returns how many directories are Used.
func (c *Catalog) UsedDirs() int { return c.usedDirs }

// DirFiles returns how many directories have a file of their own in memory.
func (c *Catalog) DirFiles() int64 { return c.dirFiles }

// begin returns the entry of an Edit, and the Change with its standing before.
func (c *Catalog) begin(id index.ID) (*index.Entry, Change) {
	en := c.Ix.At(id)
	return en, Change{ID: id, Was: c.Standing(id, en)}
}

// end completes a Change after the fields of the entry have changed.
func (c *Catalog) end(en *index.Entry, ch Change) Change {
	if ch.Is = c.Standing(ch.ID, en); ch.Is != ch.Was {
		c.count(ch.Was, -1)
		c.count(ch.Is, 1)
	}
	return ch
}

func (c *Catalog) count(s Standing, n int64) {
	switch s {
	case Resident:
		c.blocks += n
	case Nonresident:
		c.nonresident += n
	}
}

// Census counts the entries by their standing, as Blocks would say, by going through all of them.
func (c *Catalog) Census() (resident, nonresident int64) {
	var n [Nonresident + 1]int64
	c.Ix.Descend(index.Root, func(id index.ID, en *index.Entry) bool {
		n[c.Standing(id, en)]++
		return true
	})
	return n[Resident], n[Nonresident]
}

// Resident reports whether a file takes memory: the primary tier has a version of it, or it is being written.
func (c *Catalog) Resident(id index.ID, en *index.Entry) bool {
	return en.InMemory() || c.writing[id] != nil
}

// PathHash returns the hash by which policies and filters recognise a name.
func (c *Catalog) PathHash(id index.ID) uint64 {
	c.Scratch = c.Ix.AppendPath(c.Scratch[:0], id)
	return maphash.Bytes(c.Seed, c.Scratch)
}

// GroupOf returns the group that the names in a directory belong to.
func (c *Catalog) GroupOf(dir index.ID) uint32 {
	top := index.ID(0)
	for dir != index.Root && dir != 0 {
		top, dir = dir, c.Ix.Parent(dir)
	}
	if dir == 0 || top == 0 { // below a directory that was removed, or at the root
		return c.Room.Number("")
	}
	c.Scratch = c.Ix.AppendPath(c.Scratch[:0], top)
	return c.Room.NumberOf(c.Scratch)
}

// NameFlags returns index.FlagTemp and index.FlagPlain as the name of a file demands.
func (c *Catalog) NameFlags(parent index.ID, name string) (flags uint16) {
	if c.Ix.At(parent).IsTemp() || c.Temp.Name(name) {
		flags |= index.FlagTemp
	}
	if c.Plain.Name(name) {
		flags |= index.FlagPlain
	}
	return flags
}

// set gives an entry some of the flags in mask, and takes the others in it away.
func set(en *index.Entry, mask, flags uint16) { en.Fields().Flags = en.Flags()&^mask | flags }

// when returns the flag if on, else none.
func when(on bool, flag uint16) uint16 {
	if on {
		return flag
	}
	return 0
}
