package tiers

import "github.com/kvfs/kvfs/tiers/index"

// A reader looks a name up and opens what it found in two steps. If the block is
// replaced in between, the open answers "look again" (ErrStale), but the kernel
// does that only once; where a name is replaced all the time, the second try may
// fail as the first, and an engine would see ESTALE. So a replaced block stays
// open-able for a little while, nameless: the latest few, and not for long if
// anybody needs the memory.
const (
	limboBlocks = 32 // replaced blocks kept at most
	limboShare  = 64 // and at most this fraction of the capacity
)

// limboBlock is a replaced block and the name that it had.
type limboBlock struct {
	id  index.ID
	key nameKey
}

// limboLocked keeps the bytes of a block that was just replaced, if that is
// cheap and the kernel may still ask for it. It reports whether it does.
func (e *Engine) limboLocked(id index.ID, en *index.Entry, k nameKey, g *gone) bool {
	charge := chargeOf(en.Size)
	if en.Lookups == 0 || en.Blob == 0 || e.mu.files[id] != nil || charge > e.opts.CapacityBytes/limboShare {
		return false
	}
	en.Flags |= flagLimbo
	e.mu.limbo = append(e.mu.limbo, limboBlock{id, k})
	e.mu.limboBytes += charge
	for len(e.mu.limbo) > limboBlocks || e.mu.limboBytes > e.opts.CapacityBytes/limboShare {
		e.leaveLimboLocked(e.mu.limbo[0].id, g)
	}
	return true
}

// leaveLimboLocked gives up a replaced block, as soon as nobody has it open.
func (e *Engine) leaveLimboLocked(id index.ID, g *gone) {
	for i, x := range e.mu.limbo {
		if x.id == id {
			e.mu.limbo = append(e.mu.limbo[:i], e.mu.limbo[i+1:]...)
			break
		}
	}
	en := e.mu.ix.At(id)
	en.Flags &^= flagLimbo
	e.mu.limboBytes -= chargeOf(en.Size)
	g.blobs = append(g.blobs, BlobID(en.Blob))
	e.reapLocked(id, en, g)
}

// clearLimboLocked gives up all replaced blocks.
func (e *Engine) clearLimboLocked(g *gone) {
	for len(e.mu.limbo) > 0 {
		e.leaveLimboLocked(e.mu.limbo[0].id, g)
	}
}

// leaveLimboNamedLocked gives up the earlier versions of a name that goes. Their
// records are still there, so that without the later version a crash would bring
// them back.
func (e *Engine) leaveLimboNamedLocked(k nameKey, g *gone) {
	for i := 0; i < len(e.mu.limbo); {
		if e.mu.limbo[i].key == k {
			e.leaveLimboLocked(e.mu.limbo[i].id, g)
		} else {
			i++
		}
	}
}
