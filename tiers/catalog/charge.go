package catalog

import (
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/policy"
	"github.com/kvfs/kvfs/tiers/room"
)

// PageBytes is a page of tmpfs.
const PageBytes = 4096

// ChargeOf returns the bytes that a file of size bytes costs: whole pages, as tmpfs counts.
func ChargeOf(size int64) int64 { return (size + PageBytes - 1) &^ (PageBytes - 1) }

// Writing is what a file costs that is being written. It is part of the write side of the file.
type Writing struct{ charge int64 }

// Charge returns the bytes charged to the file: reserved or used, whichever is more.
func (w *Writing) Charge() int64 { return w.charge }

// What the elements of index.Entry.Accounts are accounts of.
const (
	OfUser   = iota // the owner of the file
	OfCgroup        // the control group of the process that made the version
)

// Charge returns the bytes of memory that an entry costs now.
func (c *Catalog) Charge(id index.ID, en *index.Entry) int64 {
	if w := c.writing[id]; w != nil {
		return w.charge
	}
	if !en.InMemory() {
		return 0
	}
	return ChargeOf(en.Size())
}

// PinnedBytes returns what a file counts for quotas of pinned bytes: nothing, unless a user has pinned it. Else it is the
// same in memory and in lower tiers.
func (c *Catalog) PinnedBytes(id index.ID, en *index.Entry) int64 {
	if !en.Pinned() {
		return 0
	}
	return c.pinnable(id, en)
}

// pinnable returns what PinnedBytes is if a user has pinned the file.
func (c *Catalog) pinnable(id index.ID, en *index.Entry) int64 {
	if w := c.writing[id]; w != nil {
		return w.charge
	}
	return ChargeOf(en.Size())
}

// PinFits reports whether those who pay for a file may have it pinned.
func (c *Catalog) PinFits(id index.ID, en *index.Entry) bool {
	return en.Pinned() || !c.Bill(en).OverPins(c.pinnable(id, en))
}

// Bill returns who pays for an entry.
func (c *Catalog) Bill(en *index.Entry) room.Bill {
	b := c.Room.Bill(en.Group(), en.Accounts())
	b.Pinned = en.Pinned()
	return b
}

// pin notes whether a user has pinned a file. classify follows.
func (c *Catalog) pin(id index.ID, en *index.Entry, pinned bool) {
	if pinned == en.Pinned() {
		return
	}
	was := c.PinnedBytes(id, en)
	en.Fields().Flags ^= index.FlagPinned
	c.Bill(en).AddPins(c.PinnedBytes(id, en) - was)
}

// use changes the bytes charged to an entry by delta because it has come to memory, or has left it.
func (c *Catalog) use(en *index.Entry, delta int64) {
	c.Room.Charge(c.Bill(en), delta, en.Counted())
	if delta < 0 {
		c.Room.Signal()
	}
}

// resize changes the bytes charged to a file by delta because it has become larger or smaller.
func (c *Catalog) resize(en *index.Entry, delta int64) {
	c.use(en, delta)
	if en.Pinned() {
		c.Bill(en).AddPins(delta)
	}
}

// leave takes an entry out of the orders of eviction, if it is in them, but for by, which takes it out itself.
func (c *Catalog) leave(id index.ID, en *index.Entry, by policy.Policy) {
	if en.Ranked() {
		en.Fields().Flags &^= index.FlagPolicy
		c.Room.Unrank(c.Bill(en), uint32(id), by)
	}
}

// classify brings a file's place in the accounts and in the orders of eviction in line with its fields. Its cost counts
// as pinned while it is open, being written or pinned. It is in the orders while it is a committed block that may be
// evicted.
func (c *Catalog) classify(id index.ID, en *index.Entry) {
	resident := c.Resident(id, en)
	hold := !resident || en.Flags()&(index.FlagUncommitted|index.FlagPinned|index.FlagTemp|index.FlagPlain) != 0 ||
		!en.Linked() || c.Room.Group(en.Group()).Pinned()
	if counted := resident && (hold || en.Opens() > 0); counted != en.Counted() {
		en.Fields().Flags ^= index.FlagCounted
		if counted {
			c.Room.Pin(c.Charge(id, en))
		} else {
			c.Room.Pin(-c.Charge(id, en))
			c.Room.Signal()
		}
	}
	switch {
	case hold:
		c.leave(id, en, nil)
	case !en.Ranked():
		en.Fields().Flags |= index.FlagPolicy
		c.Room.Rank(c.Bill(en), uint32(id), c.PathHash(id), max(ChargeOf(en.Size()), 1))
	}
}

// rebill has a file paid for by another group, or by other accounts.
func (c *Catalog) rebill(id index.ID, en *index.Entry, group uint32, accounts [2]uint16) {
	if en.Group() == group && en.Accounts() == accounts {
		return
	}
	c.leave(id, en, nil)
	charge := c.Charge(id, en)
	if en.Group() != group {
		c.Room.Move(en.Group(), group, charge)
	}
	for i, from := range en.Accounts() {
		c.Room.Pass(from, accounts[i], charge)
	}
	pinned := c.PinnedBytes(id, en)
	c.Bill(en).AddPins(-pinned)
	f := en.Fields()
	f.Group, f.Accounts = group, accounts
	c.Bill(en).AddPins(pinned)
	c.classify(id, en)
}

// own gives an entry an owner. A file is paid for by the account of its owner.
func (c *Catalog) own(id index.ID, en *index.Entry, uid, gid uint32) {
	f := en.Fields()
	f.UID, f.GID = uid, gid
	if !en.IsDir() {
		to := en.Accounts()
		to[OfUser] = c.Room.OfUser(uid)
		c.rebill(id, en, en.Group(), to)
	}
}
