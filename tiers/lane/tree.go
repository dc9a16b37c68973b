package lane

import (
	"slices"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
)

// Tree is the rename of a directory, which changes the keys of all blocks below it. What the tiers need
// to know of that is noted in one hold of the lock, as cheaply as can be, and queued as
// one operation, which becomes one update a block when it gets to
// the front, some at a time. What happens to the same names later is queued behind
// it. One Tree may be queued in several lanes.
type Tree struct {
	From, To string // paths of the directory

	paths  []byte // of the blocks, under the new name, one after the other
	blocks []movedBlock
}

// movedBlock is one block as it was when it moved.
type movedBlock struct {
	id    index.ID
	bits  uint16       // tiers that had it
	end   int          // of its path
	attrs driver.Attrs // but for Dirs
}

// treeBatch bounds how many updates one hold of the lock makes of a Tree.
const treeBatch = 256

// Add notes a block that has moved, of which no copy is under way. bits are the tiers that have it; the Dirs of
// attrs are not used.
func (t *Tree) Add(ix *index.Index, id index.ID, bits uint16, attrs driver.Attrs) {
	t.paths = ix.AppendPath(t.paths, id)
	t.blocks = append(t.blocks, movedBlock{id, bits, len(t.paths), attrs})
}

// TreeLocked has the tier follow the rename of a directory.
func (l *Lane) TreeLocked(t *Tree) {
	n := uint64(0)
	for i := range t.blocks {
		if t.blocks[i].bits&l.o.Bit != 0 {
			n++
		}
	}
	if n == 0 {
		return
	}
	l.keyed.push(keyedOp{tree: t})
	l.keyedIn += n
	l.moving = append(l.moving, t)
	l.wakeUp()
}

// expandTreeLocked makes updates of the next blocks of the Tree at the front of
// the queue.
func (l *Lane) expandTreeLocked() {
	rest := l.keyed.pop()
	t := rest.tree
	var ops []keyedOp
	for rest.next < len(t.blocks) && len(ops) < treeBatch {
		b := &t.blocks[rest.next]
		start := 0
		if rest.next > 0 {
			start = t.blocks[rest.next-1].end
		}
		rest.next++
		if b.bits&l.o.Bit == 0 {
			continue
		}
		path := string(t.paths[start:b.end])
		a := b.attrs
		a.Dirs = l.o.Owner.DirsLocked(b.id) // if it moved again, so will its copy
		op := keyedOp{Update: Update{Attrs: &a, ID: b.id}}
		op.From, _ = block.ParseKey(t.From + path[len(t.To):])
		op.To, _ = block.ParseKey(path)
		l.count(&op, 1)
		ops = append(ops, op)
	}
	if rest.next < len(t.blocks) {
		ops = append(ops, rest)
	} else {
		l.moving = slices.Delete(l.moving, 0, 1)
	}
	l.keyed.items, l.keyed.head = append(ops, l.keyed.rest()...), 0
}
