package tiers

import (
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
)

// A rename of a directory changes the keys of all blocks below it. What the tiers need
// to know of that is noted in one hold of Engine.mu, as cheaply as can be, and queued as
// one operation of a tier's keyed queue, which becomes one update a block when it gets to
// the front, some at a time. Whatever happens to the same names later is queued behind
// it.
type movedTree struct {
	from, to string // paths of the directory
	paths    []byte // of the blocks, under the new name, one after the other
	blocks   []movedBlock
}

// movedBlock is one block as it was when it moved.
type movedBlock struct {
	id    index.ID
	bits  uint16       // tiers that had it
	end   int          // of its path
	attrs driver.Attrs // but for Dirs
}

// moveBatch bounds how many updates one hold of the lock makes of a movedTree.
const moveBatch = 256

// addLocked notes a block that has moved, and of which no copy is under way.
func (t *movedTree) addLocked(e *Engine, id index.ID, en *index.Entry) {
	t.paths = e.mu.ix.AppendPath(t.paths, id)
	t.blocks = append(t.blocks, movedBlock{id, en.Tiers, len(t.paths), driver.Attrs{
		Seq: en.Seq, Mode: en.Mode & 0o7777, UID: en.UID, GID: en.GID,
		Mtime: en.Mtime, Expires: en.Expires, Pinned: en.Flags&flagPinned != 0,
	}})
}

// queueMovedLocked has the tiers follow the rename of a directory.
func (e *Engine) queueMovedLocked(t *movedTree) {
	if len(t.blocks) == 0 {
		return
	}
	var counts [maxSecondaries]uint64
	for i := range t.blocks {
		for _, s := range e.tiers {
			if t.blocks[i].bits&s.bit != 0 {
				counts[s.n]++
			}
		}
	}
	for _, s := range e.tiers {
		if counts[s.n] > 0 {
			s.keyed.push(keyedOp{moved: t})
			s.keyedIn += counts[s.n]
			s.moving++
			s.wakeUp()
		}
	}
}

// expandMovedLocked makes updates of the next blocks of the movedTree at the front of
// the queue.
func (e *Engine) expandMovedLocked(s *secondary) {
	rest := s.keyed.pop()
	t := rest.moved
	var ops []keyedOp
	for rest.next < len(t.blocks) && len(ops) < moveBatch {
		b := &t.blocks[rest.next]
		start := 0
		if rest.next > 0 {
			start = t.blocks[rest.next-1].end
		}
		rest.next++
		if b.bits&s.bit == 0 {
			continue
		}
		path := string(t.paths[start:b.end])
		op := keyedOp{id: b.id}
		op.key, _ = block.ParseKey(t.from + path[len(t.to):])
		op.to, _ = block.ParseKey(path)
		a := b.attrs
		if e.mu.ix.Valid(b.id) && e.mu.ix.Linked(b.id) {
			a.Dirs = e.attrsLocked(b.id, e.mu.ix.At(b.id)).Dirs // if it moved again, so will its copy
		}
		op.attrs = &a
		s.naming[op.key]++
		s.naming[op.to]++
		ops = append(ops, op)
	}
	if rest.next < len(t.blocks) {
		ops = append(ops, rest)
	} else {
		s.moving--
	}
	s.keyed.pushAllFront(ops)
}
