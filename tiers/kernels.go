package tiers

import "github.com/kvfs/kvfs/tiers/index"

// With Options.Kernels several kernels refer to entries, each with a cache of its own. What
// one of them asks for it knows, and the others do not: so it is told to all.
//
// A kernel keeps only what it was told with Attr.Stable. That is never what is being
// written, nor that there is no such name: so writing a file under a temporary name and
// renaming it to a new name tells no kernel anything.

// nameLeftLocked tells of a name that an entry is about to lose because a kernel asked for
// that. It is called before the name is gone. by is as in Options.Invalidate.
func (e *attrs) nameLeftLocked(id index.ID, en *index.Entry, by Process, g *gone) {
	if e.opts.Kernels && en.Lookups > 0 && en.Flags&(flagUncommitted|flagTemp) == 0 {
		g.names = append(g.names, goneName{e.mu.ix.Parent(id), id, e.mu.ix.Name(id), by})
	}
}

// tellAsker tells of names again after a call that changed them has failed: its kernel does not know.
func (e *attrs) tellAsker(names []goneName) {
	for _, n := range names {
		if n.by != (Process{}) {
			e.opts.Invalidate(Process{}, n.parent, n.id, n.name)
		}
	}
}

// attrsChangedLocked tells that the attributes of an entry have changed because a kernel
// asked for that. Those of what is being written no kernel may rely on.
func (e *attrs) attrsChangedLocked(id index.ID, en *index.Entry, g *gone) {
	if e.opts.Kernels && en.Lookups > 0 && en.Flags&(flagUncommitted|flagTemp) == 0 {
		g.names = append(g.names, goneName{id: id})
	}
}

// tellAttrs is attrsChangedLocked for a caller that does not hold the lock.
func (e *attrs) tellAttrs(id index.ID) {
	if !e.opts.Kernels {
		return
	}
	var g gone
	e.mu.Lock()
	e.attrsChangedLocked(id, e.mu.ix.At(id), &g)
	e.mu.Unlock()
	e.finish(&g)
}

// tellSize tells of a committed file that a handle gives another size in place.
func (e *attrs) tellSize(id index.ID, size int64) {
	if !e.opts.Kernels {
		return
	}
	var g gone
	e.mu.Lock()
	if en := e.mu.ix.At(id); en.Size != size {
		e.attrsChangedLocked(id, en, &g)
	}
	e.mu.Unlock()
	e.finish(&g)
}
