package tiers

import "github.com/kvfs/kvfs/tiers/index"

// With Options.Kernels several kernels refer to entries, each with a cache of its own. A change that one kernel asked
// for is told to all, because the others do not know of it.
//
// A kernel caches only answers with Attr.Stable. An entry that is being written never has that, nor has the answer
// that a name does not exist. So writing a file under a temporary name and renaming it to a new name tells no kernel
// anything.

// nameLeftLocked notes in g that an entry is about to lose its name because a kernel asked for that. The caller calls
// it before the name is gone. by is as in Options.Invalidate.
func (e *attrs) nameLeftLocked(id index.ID, en *index.Entry, by Process, g *gone) {
	if e.opts.Kernels && en.Lookups > 0 && en.Flags&(flagUncommitted|flagTemp) == 0 {
		g.names = append(g.names, goneName{e.mu.ix.Parent(id), id, e.mu.ix.Name(id), by})
	}
}

// tellAsker tells the asking kernel, too, of names whose change has failed: that kernel believes it happened.
func (e *attrs) tellAsker(names []goneName) {
	for _, n := range names {
		if n.by != (Process{}) {
			e.opts.Invalidate(Process{}, n.parent, n.id, n.name)
		}
	}
}

// attrsChangedLocked notes in g that the attributes of an entry have changed because a kernel asked for that. No
// kernel caches those of a file that is being written, so for such a file it does nothing.
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

// tellSize tells kernels that a handle gives a committed file another size in place.
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
