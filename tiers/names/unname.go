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
func (e *names) DropNameLocked(id index.ID, en *index.Entry, kind event.Kind, why fate.Cause, g *state.Gone) {
	limbo := e.Mu.Ix.Linked(id) && e.unnameLocked(id, en, kind, why, g)
	if en.InMemory() && !limbo {
		g.Blobs = append(g.Blobs, driver.BlobID(en.Blob))
	}
	state.Pin(e.State, id, en, false)
	e.ClassifyLocked(id, en)
	e.ReapLocked(id, en, g)
}

// unnameLocked takes the name of an entry out of the index, and everything that hangs on the name. It reports whether
// the bytes stay in limbo.
func (e *names) unnameLocked(id index.ID, en *index.Entry, kind event.Kind, why fate.Cause, g *state.Gone) (limbo bool) {
	ix := e.Mu.Ix
	parent, name := ix.Parent(id), ix.Name(id)
	k := state.NameKey{Parent: parent, Name: name}
	if why.Reason == fate.ReasonReplaced {
		limbo = e.writing.LimboLocked(id, en, k, g)
	} else {
		e.writing.LeaveLimboNamedLocked(k, g)
	}
	if !en.IsDir() {
		e.tellDroppedLocked(id, en, kind, why)
	}
	if len(e.Finders) > 0 && (why.Reason == fate.ReasonUnlink || why.Reason == fate.ReasonExpired) {
		e.lower.DisownLocked(ix.Path(id), en.Tiers|en.Storing)
	}
	e.lower.DropCopiesLocked(id, en)
	if en.Lookups > 0 {
		g.Names = append(g.Names, state.GoneName{Parent: parent, ID: id, Name: name})
	}
	ix.Unlink(id)
	e.elsewhere.StrayLocked(parent, ix.At(parent))
	e.lower.PartLocked(id) // another file may get the id
	return limbo
}

// GiveUpLocked gives up the block of an entry, which no process has open. The entry keeps its name, and is about to be
// another file.
func (e *names) GiveUpLocked(id index.ID, en *index.Entry, why fate.Cause, g *state.Gone) {
	ix := e.Mu.Ix
	k := state.NameKey{Parent: ix.Parent(id), Name: ix.Name(id)}
	e.writing.LeaveLimboNamedLocked(k, g)
	if len(e.Finders) > 0 {
		e.lower.DisownLocked(ix.Path(id), en.Tiers|en.Storing)
	}
	e.tellDroppedLocked(id, en, event.Removed, why)
	e.lower.DropCopiesLocked(id, en)
	e.lower.PartLocked(id)
	if en.Lookups > 0 {
		g.Names = append(g.Names, state.GoneName{Parent: k.Parent, ID: id, Name: k.Name})
	}
	pinned := en.Pinned()
	state.Pin(e.State, id, en, false)
	state.LeaveOrders(e.Mu.Room, id, en)
	if charge := e.ChargeLocked(id, en); charge > 0 {
		e.AddUsedLocked(en, -charge)
	}
	if en.InMemory() {
		g.Blobs = append(g.Blobs, driver.BlobID(en.Blob))
		g.Dropped = append(g.Dropped, driver.BlobID(en.Blob))
	}
	if f := e.Mu.Files[id]; f != nil {
		f.AddChargeLocked(-f.ChargeLocked())
		e.DropFileLocked(id)
		g.Files = append(g.Files, f)
	}
	en.Size, en.Lease = 0, 0
	en.Flags &^= index.FlagSum | index.FlagRefused | index.FlagOnceSeen | index.FlagFetched | index.FlagTouched
	state.Pin(e.State, id, en, pinned)
}

// tellDroppedLocked counts a file that is about to lose its name, and tells followers and other nodes.
func (e *names) tellDroppedLocked(id index.ID, en *index.Entry, kind event.Kind, why fate.Cause) {
	if !en.Committed() {
		if why.Reason == fate.ReasonUnlink && !en.IsTemp() {
			e.elsewhere.BuryLocked(id, why.Reason) // it may have been committed while it was empty
		}
		return
	}
	if e.ResidentLocked(id, en) {
		e.Mu.Blocks--
	} else {
		e.Mu.Hollow--
	}
	if e.KindLocked(en) == draft.Block {
		e.EventLocked(kind, id, why)
		if kind == event.Removed {
			e.elsewhere.BuryLocked(id, why.Reason)
		}
	}
}

// ReapLocked frees the memory, the file and the id of an entry without a name, as
// far as its handles and the kernel's references allow.
func (e *names) ReapLocked(id index.ID, en *index.Entry, g *state.Gone) {
	if e.Mu.Ix.Linked(id) || en.Opens > 0 || id == index.Root {
		e.elsewhere.SettleRemoteLocked(id, en, g)
		return
	}
	if en.InLimbo() {
		if en.Lookups == 0 { // no kernel can ask for it any more
			e.writing.LeaveLimboLocked(id, g)
		}
		return
	}
	f := e.Mu.Files[id]
	if charge := e.ChargeLocked(id, en); charge > 0 {
		e.AddUsedLocked(en, -charge)
	}
	en.Size = 0
	if en.InMemory() {
		g.Dropped = append(g.Dropped, driver.BlobID(en.Blob))
		en.Blob = 0
	}
	if f != nil {
		f.AddChargeLocked(-f.ChargeLocked())
		e.DropFileLocked(id)
		g.Files = append(g.Files, f)
	}
	if en.Lookups == 0 {
		if en.Counted() {
			en.Flags &^= index.FlagCounted // its charge is 0
		}
		if !en.IsDir() {
			e.Mu.Room.Leave(en.Group)
		}
		e.Mu.Ix.Free(id)
	}
}
