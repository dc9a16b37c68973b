package tiers

import "github.com/kvfs/kvfs/tiers/index"

// With Options.Kernels several kernels refer to entries, each with a cache of its own. What
// one of them asks for it knows, and the others do not: so it is told to all.
//
// A kernel keeps only what it was told with Attr.Stable. That is never what is being
// written, nor that there is no such name: so writing a file under a temporary name and
// renaming it to one that nobody has tells nobody anything.

// nameLeftLocked tells of a name that an entry is about to lose because a kernel asked for
// that. It is called before the name is gone.
func (e *Engine) nameLeftLocked(id index.ID, en *index.Entry, g *gone) {
	if e.opts.Kernels && en.Lookups > 0 && en.Flags&flagUncommitted == 0 {
		g.names = append(g.names, goneName{e.mu.ix.Parent(id), id, e.mu.ix.Name(id)})
	}
}

// attrsChangedLocked tells that the attributes of an entry have changed because a kernel
// asked for that. Those of what is being written no kernel may rely on.
func (e *Engine) attrsChangedLocked(id index.ID, en *index.Entry, g *gone) {
	if e.opts.Kernels && en.Lookups > 0 && en.Flags&flagUncommitted == 0 {
		g.names = append(g.names, goneName{id: id})
	}
}

// tellAttrs is attrsChangedLocked for a caller that does not hold the lock.
func (e *Engine) tellAttrs(id index.ID) {
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
func (e *Engine) tellSize(id index.ID, size int64) {
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

// heirLocked returns the block that has taken the name of one in limbo, 0 if there is none. Who
// opens the old one to write the file anew can be given a version of the new one at once: else
// the kernel, which looks again only once, would be told to do so twice.
func (e *Engine) heirLocked(id index.ID, en *index.Entry) index.ID {
	if !e.opts.Kernels || en.Flags&flagLimbo == 0 {
		return 0
	}
	for _, x := range e.mu.limbo {
		if x.id != id || !e.mu.ix.Valid(x.key.parent) {
			continue
		}
		heir := e.mu.ix.Lookup(x.key.parent, x.key.name)
		if heir == 0 {
			return 0
		}
		if he := e.mu.ix.At(heir); he.Mode&modeType == modeRegular && he.Flags&flagUncommitted == 0 && he.Size > 0 {
			return heir
		}
	}
	return 0
}

// maxLookAgain bounds the threads that are remembered to have been told ErrStale. Beyond it
// some are forgotten, and told once more.
const maxLookAgain = 4096

// lookAgainLocked reports whether the open of a committed entry without a name, or a look-up
// in a directory without one, is to be answered ErrStale. The kernel of thread tid may not have
// heard yet that the name means something else, so that it would find the old version long
// after the new one was there. It is sent to look again, once: if it comes back at once with an
// entry without a name, that lost it between the look-up and the open, or was open already.
func (e *Engine) lookAgainLocked(id index.ID, en *index.Entry, f *File, tid uint32) bool {
	if !e.opts.Kernels || e.mu.ix.Linked(id) || en.Flags&flagUncommitted != 0 || f != nil && f.shadow {
		return false
	}
	now := e.now()
	if told, ok := e.mu.lookAgain[tid]; ok && now-told < promiseGrace {
		return false
	}
	if len(e.mu.lookAgain) >= maxLookAgain {
		for old := range e.mu.lookAgain {
			delete(e.mu.lookAgain, old)
			break
		}
	}
	e.mu.lookAgain[tid] = now
	return true
}

// lookedLocked follows that thread tid has opened something.
func (e *Engine) lookedLocked(tid uint32) {
	if len(e.mu.lookAgain) > 0 {
		delete(e.mu.lookAgain, tid)
	}
}

// threadBits is how many bits of a thread id are the kernel's own with Options.Kernels: its
// pid_max is at most 2^22.
const threadBits = 22
