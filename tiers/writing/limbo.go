package writing

import (
	"slices"

	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// A reader looks a name up and then opens what it found. If the block is replaced in between, the open answers "look
// again" (ErrStale). The kernel looks again only once. If a name is replaced all the time, the second try may fail
// like the first, and an engine would see ESTALE. So a replaced block can be opened for a while, without a name. Only
// the latest few can, and not for long if memory is needed.
const (
	limboBlocks = 32 // replaced blocks kept at most
	limboShare  = 64 // and at most this fraction of the capacity
)

// limboBlock is a replaced block and the name that it had.
type limboBlock struct {
	id     index.ID
	key    state.NameKey
	charge int64 // bytes
}

// limbo holds the replaced blocks that can still be opened, oldest first.
type limbo struct {
	blocks []limboBlock
	bytes  int64 // sum of the charges
}

func (l *limbo) add(b limboBlock) {
	l.blocks = append(l.blocks, b)
	l.bytes += b.charge
}

// remove takes a block out, which must be in limbo.
func (l *limbo) remove(id index.ID) {
	i := slices.IndexFunc(l.blocks, func(b limboBlock) bool { return b.id == id })
	l.bytes -= l.blocks[i].charge
	l.blocks = slices.Delete(l.blocks, i, i+1)
}

// over reports whether limbo has too many blocks, or more than most bytes.
func (l *limbo) over(most int64) bool { return len(l.blocks) > limboBlocks || l.bytes > most }

// LimboLocked keeps the bytes of a block that was just replaced, if they are few and the kernel may still ask for
// them. It reports whether it does.
func (e *drafts) LimboLocked(id index.ID, en *index.Entry, k state.NameKey, g *state.Gone) bool {
	charge, most := state.ChargeOf(en.Size), e.Opts.CapacityBytes/limboShare
	if en.Lookups == 0 || en.Blob == 0 || e.fileLocked(id) != nil || charge > most {
		return false
	}
	en.Flags |= state.FlagLimbo
	e.limbo.add(limboBlock{id, k, charge})
	for e.limbo.over(most) {
		e.LeaveLimboLocked(e.limbo.blocks[0].id, g)
	}
	return true
}

// LeaveLimboLocked gives a replaced block up: its bytes go when no process has it open.
func (e *drafts) LeaveLimboLocked(id index.ID, g *state.Gone) {
	e.limbo.remove(id)
	en := e.Mu.Ix.At(id)
	en.Flags &^= state.FlagLimbo
	g.Blobs = append(g.Blobs, driver.BlobID(en.Blob))
	e.names.ReapLocked(id, en, g)
}

// ClearLimboLocked gives up all replaced blocks.
func (e *drafts) ClearLimboLocked(g *state.Gone) {
	for len(e.limbo.blocks) > 0 {
		e.LeaveLimboLocked(e.limbo.blocks[0].id, g)
	}
}

// LeaveLimboNamedLocked gives up the earlier versions of a name that is removed. Their records still exist. Without
// the later version a crash would bring them back.
func (e *drafts) LeaveLimboNamedLocked(k state.NameKey, g *state.Gone) {
	for i := 0; i < len(e.limbo.blocks); {
		if e.limbo.blocks[i].key == k {
			e.LeaveLimboLocked(e.limbo.blocks[i].id, g)
		} else {
			i++
		}
	}
}
