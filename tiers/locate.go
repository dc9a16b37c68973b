package tiers

import (
	"context"
	"strings"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
)

// Names that only other nodes have are not in the index until somebody asks for them.
// Then they get an entry whose only tier is the Remote: a file is hollow, a directory
// has that bit. Such an entry goes when the kernel forgets it, for it can be made again
// at any time; or when nobody elsewhere has the name any more, of which the tier tells.
//
// A directory becomes this node's own, and is announced to the others, when something
// below it does.

// findLocked returns the child of parent called name, 0 if there is none, here or
// elsewhere.
func (e *Engine) findLocked(parent index.ID, name string) index.ID {
	if id := e.mu.ix.Lookup(parent, name); id != 0 || e.remote == nil {
		return id
	}
	return e.locateLocked(parent, name)
}

// walkLocked is findLocked for a path.
func (e *Engine) walkLocked(path string) index.ID {
	if id := e.mu.ix.Walk(path); id != 0 || e.remote == nil {
		return id
	}
	id := index.Root
	for more := path != ""; more && id != 0; {
		var name string
		name, path, more = strings.Cut(path, "/")
		id = e.findLocked(id, name)
	}
	return id
}

// childPathLocked is the path of a name in a directory.
func (e *Engine) childPathLocked(parent index.ID, name string) string {
	if parent == index.Root {
		return name
	}
	e.mu.scratch = append(append(e.mu.ix.AppendPath(e.mu.scratch[:0], parent), '/'), name...)
	return string(e.mu.scratch)
}

// locateLocked enters what a name means elsewhere, if anything.
func (e *Engine) locateLocked(parent index.ID, name string) index.ID {
	if e.dirLocked(parent) != nil || len(name) > block.MaxName || parent == index.Root && name == block.Reserved {
		return 0
	}
	l, ok := e.far.Locate(e.childPathLocked(parent, name))
	if !ok {
		return 0
	}
	return e.enterLocked(parent, name, &l)
}

// enterLocked makes an entry of what others have under a name.
func (e *Engine) enterLocked(parent index.ID, name string, l *Located) index.ID {
	ix := e.mu.ix
	id := ix.Alloc()
	en := ix.At(id)
	en.Mode, en.UID, en.GID = l.Mode&(modeType|0o7777), l.UID, l.GID
	en.Mtime, en.Atime, en.Ctime = l.Mtime, l.Mtime, l.Mtime
	en.Seq, en.Tiers = l.Seq, e.remote.bit
	e.mu.seq = max(e.mu.seq, l.Seq)
	isDir := l.Mode&modeType == modeDir
	if !isDir {
		en.Size = l.Size
		en.Group = e.groupOfLocked(parent, name)
		e.mu.hollow++
	}
	ix.Link(id, parent, name)
	if isDir {
		e.markDirLocked(id, en)
	} else {
		e.classifyLocked(id, en)
	}
	e.far.Watch(e.keyLocked(id))
	e.mu.strays = append(e.mu.strays, id)
	return id
}

// settleStraysLocked forgets those entries, of the ones that were made before the last
// call, to which nobody has come to refer, and returns those made since.
func (e *Engine) settleStraysLocked(old []index.ID, g *gone) (since []index.ID) {
	for _, id := range old {
		if e.mu.ix.Valid(id) { // it may be another's by now, of which the same holds
			e.settleRemoteLocked(id, e.mu.ix.At(id), g)
		}
	}
	since, e.mu.strays = e.mu.strays, nil
	return since
}

// remoteOnlyLocked reports whether an entry stands for what only others have.
func (e *Engine) remoteOnlyLocked(id index.ID, en *index.Entry) bool {
	if e.remote == nil || en.Tiers != e.remote.bit || !e.mu.ix.Linked(id) {
		return false
	}
	if en.Mode&modeType == modeDir {
		return e.mu.ix.Children(id) == 0 && !e.shadowedLocked(id)
	}
	return e.hollowLocked(id, en) && en.Storing == 0 && e.mu.promotions[id] == nil
}

// shadowedLocked reports whether something is being written in a directory that has no
// entry in it yet.
func (e *Engine) shadowedLocked(dir index.ID) bool {
	for k := range e.mu.shadows {
		if k.parent == dir {
			return true
		}
	}
	return false
}

// settleRemoteLocked forgets an entry that stands for what only others have when
// nobody refers to it any more, and then the directories above.
func (e *Engine) settleRemoteLocked(id index.ID, en *index.Entry, g *gone) {
	for e.remote != nil && en.Lookups == 0 && en.Opens == 0 && id != index.Root && e.remoteOnlyLocked(id, en) {
		parent := e.mu.ix.Parent(id)
		e.forgetRemoteLocked(id, en, g)
		id, en = parent, e.mu.ix.At(parent)
	}
}

// forgetRemoteLocked takes such an entry out of the index, and its name out of the
// kernel's cache.
func (e *Engine) forgetRemoteLocked(id index.ID, en *index.Entry, g *gone) {
	ix := e.mu.ix
	e.clearTiersLocked(id, en, en.Tiers)
	isDir := en.Mode&modeType == modeDir
	if !isDir {
		e.mu.hollow--
	}
	if en.Lookups > 0 {
		g.names = append(g.names, goneName{ix.Parent(id), id, ix.Name(id)})
	}
	ix.Unlink(id)
	if !isDir {
		e.classifyLocked(id, en)
	}
	e.reapLocked(id, en, g)
}

// lostDirLocked follows that nobody elsewhere has a directory any more. It stays for as
// long as something is in it.
func (e *Engine) lostDirLocked(id index.ID, en *index.Entry, g *gone) {
	if e.remoteOnlyLocked(id, en) && en.Opens == 0 {
		parent := e.mu.ix.Parent(id)
		e.forgetRemoteLocked(id, en, g)
		e.settleLostLocked(parent, g)
	}
}

// settleLostLocked takes away directories that nobody has, from id upwards, now that
// something in them is gone.
func (e *Engine) settleLostLocked(id index.ID, g *gone) {
	for id != index.Root {
		en := e.mu.ix.At(id)
		if !e.remoteOnlyLocked(id, en) {
			return
		}
		if _, ok := e.far.Locate(e.mu.ix.Path(id)); ok {
			e.settleRemoteLocked(id, en, g)
			return
		}
		parent := e.mu.ix.Parent(id)
		e.forgetRemoteLocked(id, en, g)
		id = parent
	}
}

// leaveRemoteLocked follows the rename of a block: what others have is called from.
func (e *Engine) leaveRemoteLocked(en *index.Entry, from string) {
	if en.Tiers&e.remote.bit != 0 {
		key, _ := block.ParseKey(from)
		e.far.Unwatch(key)
		en.Tiers &^= e.remote.bit
	}
}

// ownDirsLocked makes the directories above an entry this node's own.
func (e *Engine) ownDirsLocked(id index.ID) {
	if e.remote == nil {
		return
	}
	for p := e.mu.ix.Parent(id); p != index.Root && p != 0; p = e.mu.ix.Parent(p) {
		en := e.mu.ix.At(p)
		if en.Tiers&e.remote.bit == 0 {
			return // and so are those above
		}
		e.clearTiersLocked(p, en, e.remote.bit)
		e.dirEventLocked(DirCreated, p)
	}
}

func (e *Engine) dirEventLocked(kind EventKind, id index.ID) {
	e.events.add(Event{Time: e.opts.Now(), Kind: kind, Key: e.keyLocked(id)})
}

// buryLocked has the versions elsewhere of a name void, if it went because somebody
// wanted it to go.
func (e *Engine) buryLocked(id index.ID, reason string, g *gone) {
	if e.remote == nil {
		return
	}
	switch reason {
	case "unlink", "expired":
	case "replaced":
		if e.remoteOnlyLocked(id, e.mu.ix.At(id)) {
			return // publishedLocked decides
		}
	default:
		return // lost, or removed elsewhere, where there is a grave already
	}
	g.graves = append(g.graves, Grave{Path: e.mu.ix.Path(id), Seq: e.nextSeqLocked()})
}

// publishedLocked follows the commit of a version for the versions elsewhere: those that
// were there when this one was begun are replaced. One that came meanwhile stays: two
// nodes that compute the same block at the same time do not take each other's away.
func (e *Engine) publishedLocked(id index.ID, en *index.Entry, begun uint64, g *gone) {
	if e.remote == nil || !e.mu.ix.Linked(id) {
		return
	}
	e.ownDirsLocked(id)
	path := e.mu.ix.Path(id)
	l, ok := e.far.Locate(path)
	if !ok {
		return
	}
	if e.mu.seq = max(e.mu.seq, l.Seq); en.Seq <= l.Seq {
		en.Seq = e.nextSeqLocked()
	}
	if l.Seq <= begun {
		g.graves = append(g.graves, Grave{Path: path, Seq: en.Seq})
	}
}

// learnAttrs takes over what the holder of a block has told of it.
func (e *Engine) learnAttrs(p *promotion, a *Attrs) {
	if a == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	en := e.promotedEntryLocked(p)
	if en == nil || en.Seq != a.Seq || en.Tiers != e.remote.bit {
		return
	}
	en.Mode, en.UID, en.GID = modeRegular|a.Mode&0o7777, a.UID, a.GID
	en.Mtime, en.Ctime = a.Mtime, max(a.Mtime, en.Ctime)
	if a.Expires != 0 && en.Expires != a.Expires {
		en.Expires = a.Expires
		e.mu.expiries.add(a.Expires, p.id)
	}
}

// otherElsewhere reports whether others have another version than the one that a
// promotion was to bring.
func (e *Engine) otherElsewhere(p *promotion) bool {
	l, ok := e.far.Locate(p.key.Path())
	return ok && l.Seq != p.seq
}

// emptyElsewhere fails with ErrNotEmpty if others have something in a directory that is
// to be removed. It asks them, so it blocks.
func (e *Engine) emptyElsewhere(ctx context.Context, parent index.ID, name string) error {
	if e.remote == nil {
		return nil
	}
	e.mu.Lock()
	id := e.findLocked(parent, name)
	if id == 0 || e.mu.ix.At(id).Mode&modeType != modeDir || e.mu.ix.Children(id) > 0 {
		e.mu.Unlock()
		return nil // which rmdirLocked tells better
	}
	path := e.mu.ix.Path(id)
	_, known := e.far.Locate(path)
	e.mu.Unlock()
	if !known {
		return nil
	}
	found := false
	announceWait(ctx)
	err := e.far.List(ctx, path, func(name string, _ *Located) bool {
		_, found = e.far.Locate(path + "/" + name)
		return !found
	})
	switch {
	case found:
		return block.ErrNotEmpty
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	}
	return nil // who cannot be reached is told of the grave, and keeps what is not empty
}
