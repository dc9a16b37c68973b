package tiers

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
)

// elsewhere is the room of names that other nodes have: finding, entering in the index and forgetting them.
type elsewhere struct {
	*core

	listings    listings      // leaf lock of its own
	implausible atomic.Uint64 // version numbers of other nodes that cannot be right

	// Guarded by core.mu.
	outdated []goneName // a look-up found that these names mean other entries; not yet told
	strays   []index.ID // entries made for files and directories of other nodes, perhaps without a reference
}

// A name that only other nodes have is not in the index until a process asks for it. Then the name gets an entry
// whose only tier is the Remote: a file is hollow, a directory has that bit. The entry goes when the kernel forgets
// it, because it can be made again at any time. It also goes when no other node has the name any more; the tier
// tells of that.
//
// A directory becomes this node's own, and is announced to the other nodes, when something below it does.

// findLocked returns the child of parent called name, 0 if there is none here or elsewhere.
func (e *elsewhere) findLocked(parent index.ID, name string) index.ID {
	id := e.mu.ix.Lookup(parent, name)
	if e.remote == nil {
		return id
	}
	if id == 0 {
		return e.locateLocked(parent, name)
	}
	if en := e.mu.ix.At(id); en.Tiers == e.remote.bit && en.Blob == 0 {
		return e.renewLocked(id, en)
	}
	return id
}

// renewLocked looks up again what other nodes have under the name of id, if its entry stands only for that. A later
// version gets an entry of its own, because the kernel may have opened this one.
func (e *elsewhere) renewLocked(id index.ID, en *index.Entry) index.ID {
	isDir := en.Mode&modeType == modeDir
	if !isDir && !e.remoteOnlyLocked(id, en) {
		return id
	}
	l, ok := e.locate(e.mu.ix.Path(id))
	switch {
	case ok && !isDir && l.Seq == en.Seq && l.Mode&modeType == modeRegular:
		en.Mode, en.UID, en.GID = l.Mode&(modeType|0o7777), l.UID, l.GID // they may have changed since
		return id
	case !ok || l.Seq <= en.Seq || l.Mode&modeType != en.Mode&modeType:
		return id
	case isDir:
		en.Mode, en.UID, en.GID, en.Seq = l.Mode&(modeType|0o7777), l.UID, l.GID, l.Seq
		return id
	}
	parent, name := e.mu.ix.Parent(id), e.mu.ix.Name(id)
	var g gone
	e.forgetRemoteLocked(id, en, &g)
	e.outdated = append(e.outdated, g.names...)
	return e.enterLocked(parent, name, &l)
}

// tellOutdatedLocked moves the names that look-ups found to mean other entries to g. Every function that looks up
// calls it before it releases the lock.
func (e *elsewhere) tellOutdatedLocked(g *gone) {
	g.names = append(g.names, e.outdated...)
	e.outdated = nil
}

// walkLocked is findLocked for a path.
func (e *elsewhere) walkLocked(path string) index.ID {
	if e.remote == nil {
		return e.mu.ix.Walk(path)
	}
	id := index.Root
	for more := path != ""; more && id != 0; {
		var name string
		name, path, more = strings.Cut(path, "/")
		id = e.findLocked(id, name)
	}
	return id
}

// childPathLocked returns the path of the name in the directory parent.
func (e *core) childPathLocked(parent index.ID, name string) string {
	if parent == index.Root {
		return name
	}
	e.mu.scratch = append(append(e.mu.ix.AppendPath(e.mu.scratch[:0], parent), '/'), name...)
	return string(e.mu.scratch)
}

// maxAhead is how far in the future a version number of another node may lie. Without a bound one broken clock would
// set the version numbers of all nodes. Package cluster has the same bound.
const maxAhead = 24 * time.Hour

// plausible reports whether a version number of another node can be right. A number that cannot is counted and
// ignored.
func (e *elsewhere) plausible(seq uint64) bool {
	if seq <= uint64(e.opts.Now().Add(maxAhead).UnixNano()) {
		return true
	}
	if e.implausible.Add(1) == 1 {
		e.log.Warn("version number of another node from too far in the future: it and all others like it are ignored",
			zap.Uint64("version", seq), zap.Duration("bound", maxAhead))
	}
	return false
}

// observeLocked raises the number that the next version gets above seq, a number of another node. It returns false
// if seq cannot be right.
func (e *elsewhere) observeLocked(seq uint64) bool {
	if !e.plausible(seq) {
		return false
	}
	e.mu.seq = max(e.mu.seq, seq)
	return true
}

// locate is Remote.Locate without the answers that cannot be right.
func (e *elsewhere) locate(path string) (driver.Located, bool) {
	l, ok := e.far.Locate(path)
	kind := l.Mode & modeType
	if !ok || kind != modeDir && kind != modeRegular || l.Size < 0 || !e.plausible(l.Seq) {
		return driver.Located{}, false
	}
	return l, true
}

// locateLocked enters the file or directory that other nodes have under a name, and returns 0 if they have none.
func (e *elsewhere) locateLocked(parent index.ID, name string) index.ID {
	if e.names.dirLocked(parent) != nil || len(name) > block.MaxName || parent == index.Root && name == block.Reserved {
		return 0
	}
	l, ok := e.locate(e.childPathLocked(parent, name))
	if !ok {
		return 0
	}
	return e.enterLocked(parent, name, &l)
}

// enterLocked makes an entry of the file or directory l that other nodes have under a name.
func (e *elsewhere) enterLocked(parent index.ID, name string, l *driver.Located) index.ID {
	ix := e.mu.ix
	id := ix.Alloc()
	en := ix.At(id)
	en.Mode, en.UID, en.GID = l.Mode&(modeType|0o7777), l.UID, l.GID
	en.Mtime, en.Atime, en.Ctime = l.Mtime, l.Mtime, l.Mtime
	en.Seq, en.Tiers = l.Seq, e.remote.bit
	e.observeLocked(l.Seq)
	isDir := l.Mode&modeType == modeDir
	if !isDir {
		en.Size = l.Size
		en.Flags |= flagFetched
		e.space.enterGroupLocked(en, e.groupOfLocked(parent))
		e.mu.hollow++
	}
	ix.Link(id, parent, name)
	if isDir {
		e.names.markDirLocked(id, en)
	} else {
		e.classifyLocked(id, en)
	}
	e.far.Watch(e.keyLocked(id))
	e.strays = append(e.strays, id)
	return id
}

// strayLocked notes an entry that may stand, from now on, only for a file or directory of other nodes.
func (e *elsewhere) strayLocked(id index.ID, en *index.Entry) {
	if e.remote != nil && en.Tiers == e.remote.bit && en.Blob == 0 {
		e.strays = append(e.strays, id)
	}
}

// strayBatch bounds how many entries one hold of the lock looks at.
const strayBatch = 1024

// settleStrays forgets the entries of old, noted before the last call, to which nothing refers, and the directories
// of old that no node has. It returns the entries noted since.
func (e *elsewhere) settleStrays(old []index.ID) (since []index.ID) {
	for len(old) > 0 {
		n := min(len(old), strayBatch)
		var g gone
		e.mu.Lock()
		for _, id := range old[:n] {
			if !e.mu.ix.Valid(id) {
				continue
			}
			// The number may belong to another entry by now. The same holds for that one.
			if en := e.mu.ix.At(id); en.Mode&modeType == modeDir {
				e.settleParentLocked(id, &g)
			} else {
				e.settleRemoteLocked(id, en, &g)
			}
		}
		e.mu.Unlock()
		e.finish(&g)
		old = old[n:]
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	since, e.strays = e.strays, nil
	return since
}

// remoteOnlyLocked reports whether an entry stands only for a file or directory of other nodes.
func (e *elsewhere) remoteOnlyLocked(id index.ID, en *index.Entry) bool {
	if e.remote == nil || en.Tiers != e.remote.bit || !e.mu.ix.Linked(id) {
		return false
	}
	if en.Mode&modeType == modeDir {
		return e.mu.ix.Children(id) == 0 && !e.drafts.waitsBelowLocked(id)
	}
	return e.hollowLocked(id, en) && en.Storing == 0 && e.mu.promotions[id] == nil
}

// elsewhereLocked reports whether only other nodes have a file or directory. A directory is this node's own as soon
// as something below it is committed here.
func (e *elsewhere) elsewhereLocked(id index.ID, en *index.Entry) bool {
	if en.Mode&modeType == modeDir {
		return en.Tiers&e.remoteBit() != 0
	}
	return e.farLocked(id, en)
}

// settleRemoteLocked forgets an entry that stands only for a file or directory of other nodes when nothing refers to
// it any more, and then the directories above. A pinned entry stays, because no other node knows of the pin.
func (e *elsewhere) settleRemoteLocked(id index.ID, en *index.Entry, g *gone) {
	for e.remote != nil && en.Lookups == 0 && en.Opens == 0 && en.Flags&flagPinned == 0 && id != index.Root && e.remoteOnlyLocked(id, en) {
		parent := e.mu.ix.Parent(id)
		e.forgetRemoteLocked(id, en, g)
		id, en = parent, e.mu.ix.At(parent)
	}
}

// forgetRemoteLocked takes an entry that remoteOnlyLocked reports out of the index, and its name out of the kernel's
// cache.
func (e *elsewhere) forgetRemoteLocked(id index.ID, en *index.Entry, g *gone) {
	ix := e.mu.ix
	e.copies.clearTiersLocked(id, en, en.Tiers)
	isDir := en.Mode&modeType == modeDir
	if !isDir {
		e.mu.hollow--
	}
	if en.Lookups > 0 {
		g.names = append(g.names, goneName{parent: ix.Parent(id), id: id, name: ix.Name(id)})
	}
	ix.Unlink(id)
	if !isDir {
		e.classifyLocked(id, en)
	}
	e.reapLocked(id, en, g)
}

// lostDirLocked follows the loss of a directory by all other nodes. The entry stays for as long as something is in
// the directory.
func (e *elsewhere) lostDirLocked(id index.ID, en *index.Entry, g *gone) {
	if e.remoteOnlyLocked(id, en) && en.Opens == 0 {
		parent := e.mu.ix.Parent(id)
		e.forgetRemoteLocked(id, en, g)
		e.settleLostLocked(parent, g)
	}
}

// settleLostLocked takes away directories that no node has, from id upwards, now that something in them is gone.
func (e *elsewhere) settleLostLocked(id index.ID, g *gone) {
	for id != index.Root {
		en := e.mu.ix.At(id)
		if !e.remoteOnlyLocked(id, en) {
			return
		}
		if _, ok := e.locate(e.mu.ix.Path(id)); ok {
			e.settleRemoteLocked(id, en, g)
			return
		}
		parent := e.mu.ix.Parent(id)
		e.forgetRemoteLocked(id, en, g)
		id = parent
	}
}

// settleParentLocked is settleLostLocked for a directory that may have gone meanwhile.
func (e *elsewhere) settleParentLocked(dir index.ID, g *gone) {
	if e.remote != nil && e.mu.ix.Valid(dir) && e.mu.ix.Linked(dir) {
		e.settleLostLocked(dir, g)
	}
}

// leaveRemoteLocked follows the rename of a block: its copy on other nodes keeps the path from.
func (e *elsewhere) leaveRemoteLocked(en *index.Entry, from string) {
	if en.Tiers&e.remote.bit != 0 {
		key, _ := block.ParseKey(from)
		e.far.Unwatch(key)
		en.Tiers &^= e.remote.bit
	}
}

// ownDirsLocked makes the directories above an entry this node's own.
func (e *elsewhere) ownDirsLocked(id index.ID) {
	if e.remote == nil {
		return
	}
	for p := e.mu.ix.Parent(id); p != index.Root && p != 0; p = e.mu.ix.Parent(p) {
		en := e.mu.ix.At(p)
		if en.Tiers&e.remote.bit == 0 {
			return // and so are the directories above
		}
		e.ownDirLocked(p, en)
	}
}

// ownDirLocked makes a directory of other nodes this node's own. It gets a new version, because the version of the
// other nodes may have been removed while this one was being filled.
func (e *elsewhere) ownDirLocked(id index.ID, en *index.Entry) {
	e.copies.clearTiersLocked(id, en, e.remote.bit)
	en.Seq = e.nextSeqLocked()
	e.dirEventLocked(event.DirCreated, id)
}

// dirEventLocked adds an event of a directory, if there is a Remote tier.
func (e *elsewhere) dirEventLocked(kind event.Kind, id index.ID) {
	if e.remote == nil {
		return
	}
	e.events.Add(event.Event{Time: e.opts.Now(), Kind: kind, Key: e.keyLocked(id)})
}

// buryLocked makes the versions of a name on other nodes void, if the name was unlinked or has expired. The caller
// still holds the lock, so that no look-up finds on other nodes what is gone here.
func (e *elsewhere) buryLocked(id index.ID, reason fate.Reason) {
	if e.remote == nil {
		return
	}
	path := e.mu.ix.Path(id)
	switch reason {
	case fate.ReasonUnlink:
		e.far.Bury([]driver.Grave{{Path: path, Seq: e.nextSeqLocked()}})
	case fate.ReasonExpired: // a version that another node stored meanwhile stays
		e.far.Bury([]driver.Grave{{Path: path, Seq: e.mu.ix.At(id).Seq + 1}})
	}
	// publishedLocked decides about replaced versions. Lost versions stay on other nodes. Versions removed on
	// another node have a grave already.
}

// replacesLocked notes that a version is about to take a name from a holder, or that the version itself was
// committed before. Versions that existed when it was begun are void then. Versions that this node has made since
// are void, too, wherever their copies are.
func (f *File) replacesLocked(holder *index.Entry) {
	f.replaces = true
	if holder.Flags&flagFetched == 0 {
		f.begun = max(f.begun, holder.Seq)
	}
}

// publishedLocked follows the commit of a version. Versions of other nodes that existed when it was begun are
// replaced; with replaces set, that holds for versions not yet known here, too. A version that came meanwhile stays:
// two nodes that compute the same block at the same time do not remove each other's copy.
func (e *elsewhere) publishedLocked(id index.ID, en *index.Entry, begun uint64, replaces bool, g *gone) {
	if e.remote == nil || !e.mu.ix.Linked(id) {
		return
	}
	e.ownDirsLocked(id)
	path := e.mu.ix.Path(id)
	l, ok := e.locate(path)
	if ok && e.observeLocked(l.Seq) && en.Seq <= l.Seq {
		en.Seq = e.nextSeqLocked()
	}
	if replaces && !e.mu.room.Group(en.Group).Pinned() || ok && l.Seq <= begun { // other nodes are not told of raw files
		g.graves = append(g.graves, driver.Grave{Path: path, Seq: min(begun, en.Seq-1) + 1})
	}
}

// learnAttrs takes over the attributes that the holder of a block has sent.
func (e *elsewhere) learnAttrs(p *promotion, a *driver.Attrs) {
	if a == nil || e.remote == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	en := e.loads.promotedEntryLocked(p)
	if en == nil || en.Seq != a.Seq || en.Tiers != e.remote.bit {
		return
	}
	en.Mode, en.UID, en.GID = modeRegular|a.Mode&0o7777, a.UID, a.GID
	en.Mtime, en.Ctime = a.Mtime, max(a.Mtime, en.Ctime)
	if a.Expires != 0 && en.Expires != a.Expires {
		en.Expires = a.Expires
		e.mu.expiries.Add(a.Expires, p.id)
	}
}

// otherElsewhereLocked reports whether other nodes have another version than the entry en.
func (e *elsewhere) otherElsewhereLocked(id index.ID, en *index.Entry) bool {
	l, ok := e.locate(e.mu.ix.Path(id))
	return ok && l.Seq != en.Seq
}

// emptyElsewhere fails with ErrNotEmpty if other nodes have something in a directory that is to be removed. It asks
// them, so it blocks, for removeWait at most.
func (e *elsewhere) emptyElsewhere(ctx context.Context, parent index.ID, name string) error {
	if e.remote == nil {
		return nil
	}
	var g gone
	path := ""
	e.mu.Lock()
	id := e.findLocked(parent, name)
	if id != 0 && e.mu.ix.At(id).Mode&modeType == modeDir && e.mu.ix.Children(id) == 0 { // else the caller finds out
		path = e.mu.ix.Path(id)
	}
	e.tellOutdatedLocked(&g)
	e.mu.Unlock()
	e.finish(&g)
	if path == "" {
		return nil
	}
	if _, known := e.locate(path); !known {
		return nil
	}
	found := false
	asking, cancel := context.WithTimeout(ctx, removeWait)
	defer cancel()
	err := e.far.List(asking, path, func(name string, _ *driver.Located) bool {
		_, found = e.locate(path + "/" + name)
		return !found
	})
	switch {
	case found:
		return block.ErrNotEmpty
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	}
	return nil // a node out of reach learns of the grave later, and keeps a directory that is not empty
}
