package names

import (
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/state"
)

// DropNameLocked takes the name of a file away. It gives up the bytes as soon as no handle and no kernel uses them.
func (nm *Names) DropNameLocked(id index.ID, en *index.Entry, why outcome.Cause, g *state.Gone) {
	nm.dropLocked(id, en, catalog.Removed{Why: why}, nil, g)
}

// EvictNameLocked takes the name of a block away that memory evicts and that no tier holds: followers hear of an eviction.
func (nm *Names) EvictNameLocked(id index.ID, en *index.Entry, why outcome.Cause, g *state.Gone) {
	nm.dropLocked(id, en, catalog.Removed{Why: why, Evicted: true}, nil, g)
}

// dropLocked is DropNameLocked. by is as of state.ChangeLocked.
func (nm *Names) dropLocked(id index.ID, en *index.Entry, x catalog.Removed, by *state.Process, g *state.Gone) {
	x.ID = id
	linked := en.Linked()
	if linked {
		nm.unnameLocked(en, x, by, g)
	}
	switch {
	case !en.InMemory() || nm.retainedLocked(id) >= 0:
	case nm.LinkedLocked(id):
		g.Records = append(g.Records, id) // a crash does not bring it back
	case !linked || !nm.retainLocked(id, en, x.Why, g):
		g.Blobs = append(g.Blobs, driver.BlobID(en.Blob()))
	}
	nm.ReapLocked(id, en, g)
}

// unnameLocked takes the name of an entry out of the index, and everything that hangs on the name.
func (nm *Names) unnameLocked(en *index.Entry, x catalog.Removed, by *state.Process, g *state.Gone) {
	ix, id, why := nm.Mu.Ix, x.ID, x.Why
	parent := ix.Parent(id)
	if !x.Evicted {
		nm.buryDroppedLocked(id, en, why)
	}
	if len(nm.Finders) > 0 && (why.Reason == outcome.ReasonUnlink || why.Reason == outcome.ReasonExpired) {
		nm.Copies.DisownLocked(ix.Path(id), en.Tiers()|en.Storing())
	}
	nm.Copies.DropCopiesLocked(id, en)
	nm.ChangeLocked(x, by, g)
	nm.StrayLocked(parent, ix.At(parent))
}

// RestartLocked gives up the block of an entry, which no process has open. The entry keeps its name, and is another file,
// as x says.
func (nm *Names) RestartLocked(id index.ID, en *index.Entry, x catalog.Restarted, g *state.Gone) {
	if len(nm.Finders) > 0 {
		nm.Copies.DisownLocked(nm.Mu.Ix.Path(id), en.Tiers()|en.Storing())
	}
	nm.buryDroppedLocked(id, en, x.Why)
	nm.Copies.DropCopiesLocked(id, en)
	nm.ChangeLocked(x, nil, g)
	nm.dropFileLocked(id, g)
}

// dropFileLocked ends the write side of an entry, if there is one, and has its primary file closed.
func (nm *Names) dropFileLocked(id index.ID, g *state.Gone) {
	if f := nm.Mu.Files[id]; f != nil {
		nm.DropFileLocked(id)
		g.Files = append(g.Files, f)
	}
}

// buryDroppedLocked tells other nodes of a file that is about to lose its name.
func (nm *Names) buryDroppedLocked(id index.ID, en *index.Entry, why outcome.Cause) {
	switch {
	case en.IsDir():
	case en.Committed() && nm.Mu.Kind(en) == draft.Block,
		!en.Committed() && !en.IsTemp() && why.Reason == outcome.ReasonUnlink: // it may have been committed while it was empty
		nm.BuryLocked(id, why.Reason)
	}
}

// ReapLocked frees the memory, the file and the id of an entry without a name, as
// far as its handles and the kernel's references allow.
func (nm *Names) ReapLocked(id index.ID, en *index.Entry, g *state.Gone) {
	if !en.Linked() && en.Lookups() == 0 && nm.retainedLocked(id) >= 0 { // no kernel can ask for it any more
		nm.releaseLocked(id, g)
		return
	}
	if en.Linked() || en.Opens() > 0 || id == index.Root {
		nm.SettleRemoteLocked(id, en, g)
		return
	}
	if ch := nm.ApplyLocked(catalog.Reaped{ID: id}); ch.Blob != 0 {
		g.Dropped = append(g.Dropped, driver.BlobID(ch.Blob))
	}
	nm.dropFileLocked(id, g)
}
