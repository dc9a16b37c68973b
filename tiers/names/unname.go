package names

import (
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// DropNameLocked takes the name of a file away. It gives up the bytes as soon as no handle and no kernel uses them.
func (nm *names) DropNameLocked(id index.ID, en *index.Entry, kind event.Kind, why fate.Cause, g *state.Gone) {
	limbo := nm.Mu.Ix.Linked(id) && nm.unnameLocked(id, en, kind, why, g)
	if en.InMemory() && !limbo {
		g.Blobs = append(g.Blobs, driver.BlobID(en.Blob))
	}
	state.Pin(nm.State, id, en, false)
	nm.ClassifyLocked(id, en)
	nm.ReapLocked(id, en, g)
}

// unnameLocked takes the name of an entry out of the index, and everything that hangs on the name. It reports whether
// the bytes stay in limbo.
func (nm *names) unnameLocked(id index.ID, en *index.Entry, kind event.Kind, why fate.Cause, g *state.Gone) (limbo bool) {
	ix := nm.Mu.Ix
	parent, name := ix.Parent(id), ix.Name(id)
	k := state.NameKey{Parent: parent, Name: name}
	if why.Reason == fate.ReasonReplaced {
		limbo = nm.writing.LimboLocked(id, en, k, g)
	} else {
		nm.writing.LeaveLimboNamedLocked(k, g)
	}
	if !en.IsDir() {
		nm.tellDroppedLocked(id, en, kind, why)
	}
	if len(nm.Finders) > 0 && (why.Reason == fate.ReasonUnlink || why.Reason == fate.ReasonExpired) {
		nm.lower.DisownLocked(ix.Path(id), en.Tiers|en.Storing)
	}
	nm.lower.DropCopiesLocked(id, en)
	if en.Lookups > 0 {
		g.Names = append(g.Names, state.GoneName{Parent: parent, ID: id, Name: name})
	}
	ix.Unlink(id)
	nm.elsewhere.StrayLocked(parent, ix.At(parent))
	nm.lower.PartLocked(id) // another file may get the id
	return limbo
}

// GiveUpLocked gives up the block of an entry, which no process has open. The entry keeps its name, and is about to be
// another file.
func (nm *names) GiveUpLocked(id index.ID, en *index.Entry, why fate.Cause, g *state.Gone) {
	ix := nm.Mu.Ix
	k := state.NameKey{Parent: ix.Parent(id), Name: ix.Name(id)}
	nm.writing.LeaveLimboNamedLocked(k, g)
	if len(nm.Finders) > 0 {
		nm.lower.DisownLocked(ix.Path(id), en.Tiers|en.Storing)
	}
	nm.tellDroppedLocked(id, en, event.Removed, why)
	nm.lower.DropCopiesLocked(id, en)
	nm.lower.PartLocked(id)
	if en.Lookups > 0 {
		g.Names = append(g.Names, state.GoneName{Parent: k.Parent, ID: id, Name: k.Name})
	}
	pinned := en.Pinned()
	state.Pin(nm.State, id, en, false)
	state.LeaveOrders(nm.Mu.Room, id, en)
	if charge := nm.ChargeLocked(id, en); charge > 0 {
		nm.AddUsedLocked(en, -charge)
	}
	if en.InMemory() {
		g.Blobs = append(g.Blobs, driver.BlobID(en.Blob))
		g.Dropped = append(g.Dropped, driver.BlobID(en.Blob))
	}
	if f := nm.Mu.Files[id]; f != nil {
		f.AddChargeLocked(-f.ChargeLocked())
		nm.DropFileLocked(id)
		g.Files = append(g.Files, f)
	}
	en.Size, en.Lease = 0, 0
	en.Flags &^= index.FlagSum | index.FlagRefused | index.FlagOnceSeen | index.FlagFetched | index.FlagTouched
	state.Pin(nm.State, id, en, pinned)
}

// tellDroppedLocked counts a file that is about to lose its name, and tells followers and other nodes.
func (nm *names) tellDroppedLocked(id index.ID, en *index.Entry, kind event.Kind, why fate.Cause) {
	if !en.Committed() {
		if why.Reason == fate.ReasonUnlink && !en.IsTemp() {
			nm.elsewhere.BuryLocked(id, why.Reason) // it may have been committed while it was empty
		}
		return
	}
	nm.RecountLocked(nm.StandingLocked(id, en), state.Uncounted)
	if nm.KindLocked(en) == draft.Block {
		nm.EventLocked(kind, id, why)
		if kind == event.Removed {
			nm.elsewhere.BuryLocked(id, why.Reason)
		}
	}
}

// ReapLocked frees the memory, the file and the id of an entry without a name, as
// far as its handles and the kernel's references allow.
func (nm *names) ReapLocked(id index.ID, en *index.Entry, g *state.Gone) {
	if nm.Mu.Ix.Linked(id) || en.Opens > 0 || id == index.Root {
		nm.elsewhere.SettleRemoteLocked(id, en, g)
		return
	}
	if en.InLimbo() {
		if en.Lookups == 0 { // no kernel can ask for it any more
			nm.writing.LeaveLimboLocked(id, g)
		}
		return
	}
	f := nm.Mu.Files[id]
	if charge := nm.ChargeLocked(id, en); charge > 0 {
		nm.AddUsedLocked(en, -charge)
	}
	en.Size = 0
	if en.InMemory() {
		g.Dropped = append(g.Dropped, driver.BlobID(en.Blob))
		en.Blob = 0
	}
	if f != nil {
		f.AddChargeLocked(-f.ChargeLocked())
		nm.DropFileLocked(id)
		g.Files = append(g.Files, f)
	}
	if en.Lookups == 0 {
		if en.Counted() {
			en.Flags &^= index.FlagCounted // its charge is 0
		}
		if !en.IsDir() {
			nm.Mu.Room.Leave(en.Group)
		}
		nm.Mu.Ix.Free(id)
	}
}
