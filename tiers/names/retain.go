package names

import (
	"slices"

	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/state"
)

// A reader looks a name up, and then opens what it found. If the block is replaced in between, the reader would have to
// look again, which the kernel does only once: where a name is replaced all the time, the reader would miss a block that
// is always there. So the bytes of a replaced block stay while a kernel refers to it, and the kernel that has asked for
// the replacement can open them: it has looked the name up before. Another kernel may not have heard of the replacement, and
// looks again. Only the latest few stay. A crash does not bring them back: they lose their records.
const (
	retainedBlocks = 32 // at most
	retainedShare  = 64 // and at most this fraction of the capacity
)

// retained is a replaced block that can still be opened.
type retained struct {
	id index.ID
	by outcome.Actor // who replaced it
}

// retainLocked keeps the bytes of a block that was just replaced, by a handle of its own. It reports whether it does.
func (nm *Names) retainLocked(id index.ID, en *index.Entry, why outcome.Cause, g *state.Gone) bool {
	most := nm.Opts.CapacityBytes / retainedShare
	charge := catalog.ChargeOf(en.Size())
	if why.Reason != outcome.ReasonReplaced || why.By == 0 || en.Lookups() == 0 || !en.InMemory() || !en.Committed() || charge > most ||
		nm.Mu.Files[id] != nil || nm.Mu.Kind(en) != draft.Block {
		return false
	}
	nm.ApplyLocked(catalog.Opened{ID: id, N: 1})
	nm.retained = append(nm.retained, retained{id, why.By})
	g.Records = append(g.Records, id)
	for _, r := range nm.retained[:len(nm.retained)-1] {
		charge += catalog.ChargeOf(nm.Mu.Ix.At(r.id).Size())
	}
	for charge > most || len(nm.retained) > retainedBlocks {
		oldest := nm.retained[0].id
		charge -= catalog.ChargeOf(nm.Mu.Ix.At(oldest).Size())
		nm.releaseLocked(oldest, g)
	}
	return true
}

// RetainedLocked reports whether a process of a kernel can still open an entry without a name for reading.
func (nm *Names) RetainedLocked(id index.ID, kernel uint32) bool {
	i := nm.retainedLocked(id)
	return i >= 0 && nm.retained[i].by.Kernel() == kernel
}

// retainedLocked returns the place of an entry in retained, -1 if it is not there.
func (nm *Names) retainedLocked(id index.ID) int {
	return slices.IndexFunc(nm.retained, func(r retained) bool { return r.id == id })
}

// releaseLocked gives up a retained block: its bytes go when no process has it open.
func (nm *Names) releaseLocked(id index.ID, g *state.Gone) {
	i := nm.retainedLocked(id)
	nm.retained = slices.Delete(nm.retained, i, i+1)
	nm.ApplyLocked(catalog.Closed{ID: id})
	en := nm.Mu.Ix.At(id)
	g.Blobs = append(g.Blobs, driver.BlobID(en.Blob()))
	nm.ReapLocked(id, en, g)
}
