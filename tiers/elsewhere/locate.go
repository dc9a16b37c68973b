package elsewhere

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
	"github.com/kvfs/kvfs/tiers/state"
)

// elsewhere is the room of names that other nodes have: finding, entering in the index and forgetting them.
type elsewhere struct {
	*core

	listings    listings      // leaf lock of its own
	implausible atomic.Uint64 // version numbers of other nodes that cannot be right

	// Guarded by State.Mu.
	outdated []state.GoneName // a look-up found that these names mean other entries; not yet told
	strays   []index.ID       // entries made for files and directories of other nodes, perhaps without a reference
}

// A name that only other nodes have is not in the index until a process asks for it. Then the name gets an entry
// whose only tier is the Remote: a file is hollow, a directory has that bit. The entry goes when the kernel forgets
// it, because it can be made again at any time. It also goes when no other node has the name any more; the tier
// tells of that.
//
// A directory becomes this node's own, and is announced to the other nodes, when something below it does. A directory
// that a process of this node uses stays in the index, and becomes this node's own when no other node has it any more
// although none has removed it: the processes that use it need not notice that its maker stopped, died or was cut off.
// mkdir of a directory that is there is a look-up for kvfs, so each look-up of a directory is a use.

// FindLocked returns the child of parent called name, 0 if there is none here, elsewhere or in a Finder.
func (el *elsewhere) FindLocked(parent index.ID, name string) index.ID {
	id := el.Mu.Ix.Lookup(parent, name)
	if el.Remote == nil && (id != 0 || len(el.Finders) == 0) {
		return id
	}
	if id == 0 {
		return el.seekChildLocked(parent, name)
	}
	if en := el.Mu.Ix.At(id); en.Tiers == el.Remote.Bit && !en.InMemory() {
		return el.renewLocked(id, en)
	}
	return id
}

// renewLocked looks up again what other nodes have under the name of id, if its entry stands only for that. A later
// version gets an entry of its own, because the kernel may have opened this one.
func (el *elsewhere) renewLocked(id index.ID, en *index.Entry) index.ID {
	dir := en.IsDir()
	if !dir && !el.remoteOnlyLocked(id, en) {
		return id
	}
	l, s := el.latestLocked(el.Mu.Ix.Path(id))
	switch {
	case s == nil || l.Seq < en.Seq || l.Mode&state.ModeType != uint32(en.Mode&state.ModeType), dir && (s != el.Remote || l.Seq == en.Seq):
		return id
	case dir:
		en.Mode, en.UID, en.GID, en.Seq = uint16(l.Mode&(state.ModeType|0o7777)), l.UID, l.GID, l.Seq
		return id
	case s == el.Remote && l.Seq == en.Seq:
		en.Mode = uint16(l.Mode & (state.ModeType | 0o7777)) // the attributes may have changed since
		el.ChownLocked(id, en, l.UID, l.GID)
		return id
	}
	parent, name := el.Mu.Ix.Parent(id), el.Mu.Ix.Name(id)
	var g state.Gone
	el.forgetRemoteLocked(id, en, &g)
	el.outdated = append(el.outdated, g.Names...)
	return el.enterLocked(parent, name, &l, s)
}

// TellOutdatedLocked moves the names that look-ups found to mean other entries to g. Every function that looks up
// calls it before it releases the lock.
func (el *elsewhere) TellOutdatedLocked(g *state.Gone) {
	g.Names = append(g.Names, el.outdated...)
	el.outdated = nil
}

// WalkLocked returns the entry at a path, 0 if there is none. It enters those that FindLocked finds on the way.
func (el *elsewhere) WalkLocked(path string) index.ID {
	if el.Remote == nil && len(el.Finders) == 0 {
		return el.Mu.Ix.Walk(path)
	}
	id := index.Root
	for more := path != ""; more && id != 0; {
		var name string
		name, path, more = strings.Cut(path, "/")
		id = el.FindLocked(id, name)
	}
	return id
}

// plausible reports whether a version number of another node can be right. A number that cannot is counted and
// ignored.
func (el *elsewhere) plausible(seq uint64) bool {
	if seq <= block.MaxSeq {
		return true
	}
	if el.implausible.Add(1) == 1 {
		el.Log.Warn("version number of another node that no clock gives: it and all others like it are ignored", zap.Uint64("version", seq))
	}
	return false
}

// RefusedSeqs returns how many version numbers of other nodes could not be right.
func (el *elsewhere) RefusedSeqs() uint64 { return el.implausible.Load() }

// observeLocked raises the number that the next version gets above seq, a number of another node. It returns false
// if seq cannot be right.
func (el *elsewhere) observeLocked(seq uint64) bool { return el.observeOfLocked(seq, "another node") }

// observeOfLocked is observeLocked with the name of the node that told seq, which the status shows while the number is ahead of the clock.
func (el *elsewhere) observeOfLocked(seq uint64, from string) bool {
	if !el.plausible(seq) {
		return false
	}
	if seq > max(el.Mu.Seq, uint64(el.Now()))+uint64(time.Second) {
		el.Mu.SeqFrom = from
	}
	el.Mu.Seq = max(el.Mu.Seq, seq)
	return true
}

// Locate asks the Remote for a path, and ignores an answer that cannot be right.
func (el *elsewhere) Locate(path string) (driver.Located, bool) { return el.right(el.Far.Locate(path)) }

// right returns what the Remote has said unless it cannot be right.
func (el *elsewhere) right(l driver.Located, ok bool) (driver.Located, bool) {
	kind := l.Mode & state.ModeType
	if !ok || kind != state.ModeDir && kind != state.ModeRegular || l.Size < 0 || !el.plausible(l.Seq) {
		return driver.Located{}, false
	}
	return l, true
}

// enterLocked makes an entry of the file or directory l that a tier has under a name: the Remote or a Finder.
func (el *elsewhere) enterLocked(parent index.ID, name string, l *driver.Located, s *state.Secondary) index.ID {
	ix := el.Mu.Ix
	id := ix.Alloc()
	en := ix.At(id)
	en.Mode, en.UID, en.GID = uint16(l.Mode&(state.ModeType|0o7777)), l.UID, l.GID
	en.Mtime, en.Atime, en.Ctime = l.Mtime, l.Mtime, l.Mtime
	en.Seq = l.Seq
	el.observeLocked(l.Seq)
	if s == el.Remote || !l.IsDir() {
		en.Tiers = s.Bit
	}
	if !l.IsDir() {
		en.Size = l.Size
		el.EnterGroupLocked(en, el.GroupOfLocked(parent))
		el.RecountLocked(state.Uncounted, state.Hollow)
	}
	ix.Link(id, parent, name)
	if l.IsDir() {
		el.MarkDirLocked(id, en)
	} else {
		el.ClassifyLocked(id, en)
	}
	if s != el.Remote {
		el.enterFoundLocked(id, en, l, s)
		return id
	}
	if !l.IsDir() {
		en.Flags |= index.FlagFetched
	}
	el.Far.Watch(el.KeyLocked(id))
	el.strays = append(el.strays, id)
	return id
}

// StrayLocked notes an entry that may stand, from now on, only for a file or directory of other nodes.
func (el *elsewhere) StrayLocked(id index.ID, en *index.Entry) {
	if el.Remote != nil && en.Tiers == el.Remote.Bit && !en.InMemory() {
		el.strays = append(el.strays, id)
	}
}

// strayBatch bounds how many entries one hold of the lock looks at.
const strayBatch = 1024

// SettleStrays forgets the entries of old, noted before the last call, to which nothing refers, and the directories
// of old that no node has. It returns the entries noted since.
func (el *elsewhere) SettleStrays(old []index.ID) (since []index.ID) {
	for len(old) > 0 {
		n := min(len(old), strayBatch)
		var g state.Gone
		el.Mu.Lock()
		for _, id := range old[:n] {
			if !el.Mu.Ix.Valid(id) {
				continue
			}
			// The number may belong to another entry by now. The same holds for that one.
			if en := el.Mu.Ix.At(id); en.IsDir() {
				el.SettleParentLocked(id, &g)
			} else {
				el.SettleRemoteLocked(id, en, &g)
			}
		}
		el.Mu.Unlock()
		el.Finish(&g)
		old = old[n:]
	}
	el.Mu.Lock()
	defer el.Mu.Unlock()
	since, el.strays = el.strays, nil
	return since
}

// remoteOnlyLocked reports whether an entry stands only for a file or directory of other nodes.
func (el *elsewhere) remoteOnlyLocked(id index.ID, en *index.Entry) bool {
	if el.Remote == nil || en.Tiers != el.Remote.Bit || !el.Mu.Ix.Linked(id) {
		return false
	}
	if en.IsDir() {
		return el.Mu.Ix.Children(id) == 0
	}
	return el.HollowLocked(id, en) && en.Storing == 0 && el.lower.PromotingLocked(id) == ""
}

// maxUsedDirs bounds the directories of other nodes that stay in the index because they are used.
const maxUsedDirs = 1 << 16

// UseDirLocked notes that a process of this node uses an entry, which matters for a directory of other nodes.
func (el *elsewhere) UseDirLocked(en *index.Entry) {
	if !en.IsDir() || en.Tiers&el.RemoteBit() == 0 || en.Used() || el.Mu.UsedDirs >= maxUsedDirs {
		return
	}
	en.Flags |= index.FlagUsed
	el.Mu.UsedDirs++
}

// keptLocked makes a directory that other nodes have lost this node's own, with those above it, if it is in use. It keeps
// its version, so that a removal that this node learns of later removes it.
func (el *elsewhere) keptLocked(id index.ID, en *index.Entry) bool {
	if !en.Used() || el.Far.Buried(el.Mu.Ix.Path(id)) > en.Seq {
		return false
	}
	for ; id != index.Root; id = el.Mu.Ix.Parent(id) {
		if en = el.Mu.Ix.At(id); en.Tiers&el.Remote.Bit == 0 {
			break
		}
		el.ClearTiersLocked(id, en, el.Remote.Bit)
		if el.Far.Buried(el.Mu.Ix.Path(id)) > en.Seq {
			en.Seq = el.NextSeqLocked()
		}
		el.DirEventLocked(event.DirCreated, id)
	}
	return true
}

// ElsewhereLocked reports whether only other nodes have a file or directory. A directory is this node's own as soon
// as something below it is committed here.
func (el *elsewhere) ElsewhereLocked(id index.ID, en *index.Entry) bool {
	if en.IsDir() {
		return en.Tiers&el.RemoteBit() != 0
	}
	return el.FarLocked(id, en)
}

// SettleRemoteLocked forgets an entry that stands only for a file or directory of other nodes when nothing refers to
// it any more, and then the directories above. A pinned entry stays, because no other node knows of the pin, and so does
// a directory that is used.
func (el *elsewhere) SettleRemoteLocked(id index.ID, en *index.Entry, g *state.Gone) {
	for el.Remote != nil && en.Lookups == 0 && en.Opens == 0 && en.Flags&(index.FlagPinned|index.FlagUsed) == 0 && id != index.Root && el.remoteOnlyLocked(id, en) {
		parent := el.Mu.Ix.Parent(id)
		el.forgetRemoteLocked(id, en, g)
		id, en = parent, el.Mu.Ix.At(parent)
	}
}

// forgetRemoteLocked takes an entry that remoteOnlyLocked reports out of the index, and its name out of the kernel's
// cache.
func (el *elsewhere) forgetRemoteLocked(id index.ID, en *index.Entry, g *state.Gone) {
	ix := el.Mu.Ix
	el.ClearTiersLocked(id, en, en.Tiers)
	isDir := en.IsDir()
	if !isDir {
		el.RecountLocked(state.Hollow, state.Uncounted)
	}
	if en.Lookups > 0 {
		g.Names = append(g.Names, state.GoneName{Parent: ix.Parent(id), ID: id, Name: ix.Name(id)})
	}
	ix.Unlink(id)
	if !isDir {
		el.ClassifyLocked(id, en)
	}
	el.names.ReapLocked(id, en, g)
}

// ForgetOnlyLocked is forgetRemoteLocked for an entry that remoteOnlyLocked may not report. Then it does nothing.
func (el *elsewhere) ForgetOnlyLocked(id index.ID, en *index.Entry, g *state.Gone) {
	if el.remoteOnlyLocked(id, en) {
		el.forgetRemoteLocked(id, en, g)
	}
}

// LostDirLocked follows the loss of a directory by all other nodes. The entry stays for as long as something is in
// the directory, and as long as it is used.
func (el *elsewhere) LostDirLocked(id index.ID, en *index.Entry, g *state.Gone) {
	if el.remoteOnlyLocked(id, en) && en.Opens == 0 && !el.keptLocked(id, en) {
		parent := el.Mu.Ix.Parent(id)
		el.forgetRemoteLocked(id, en, g)
		el.settleLostLocked(parent, g)
	}
}

// settleLostLocked takes away directories that no node has, from id upwards, now that something in them is gone.
func (el *elsewhere) settleLostLocked(id index.ID, g *state.Gone) {
	for id != index.Root {
		en := el.Mu.Ix.At(id)
		if !el.remoteOnlyLocked(id, en) {
			return
		}
		if _, ok := el.Locate(el.Mu.Ix.Path(id)); ok {
			el.SettleRemoteLocked(id, en, g)
			return
		}
		if el.keptLocked(id, en) {
			return
		}
		parent := el.Mu.Ix.Parent(id)
		el.forgetRemoteLocked(id, en, g)
		id = parent
	}
}

// SettleParentLocked is settleLostLocked for a directory that may have gone meanwhile.
func (el *elsewhere) SettleParentLocked(dir index.ID, g *state.Gone) {
	if el.Remote != nil && el.Mu.Ix.Valid(dir) && el.Mu.Ix.Linked(dir) {
		el.settleLostLocked(dir, g)
	}
}

// OwnDirsLocked makes the directories above an entry this node's own.
func (el *elsewhere) OwnDirsLocked(id index.ID) {
	if el.Remote == nil {
		return
	}
	for p := el.Mu.Ix.Parent(id); p != index.Root && p != 0; p = el.Mu.Ix.Parent(p) {
		en := el.Mu.Ix.At(p)
		if en.Tiers&el.Remote.Bit == 0 {
			return // and so are the directories above
		}
		el.OwnDirLocked(p, en)
	}
}

// OwnDirLocked makes a directory of other nodes this node's own. It gets a new version, because the version of the
// other nodes may have been removed while this one was being filled.
func (el *elsewhere) OwnDirLocked(id index.ID, en *index.Entry) {
	el.ClearTiersLocked(id, en, el.Remote.Bit)
	en.Seq = el.NextSeqLocked()
	el.DirEventLocked(event.DirCreated, id)
}

// BuryLocked makes the versions of a name on other nodes void, if the name was unlinked or has expired. The caller
// still holds the lock, so that no look-up finds on other nodes what is gone here.
func (el *elsewhere) BuryLocked(id index.ID, reason fate.Reason) {
	if el.Remote == nil {
		return
	}
	path := el.Mu.Ix.Path(id)
	switch reason {
	case fate.ReasonUnlink:
		el.Far.Bury([]driver.Grave{{Path: path, Seq: el.NextSeqLocked()}})
	case fate.ReasonExpired: // a version that another node stored meanwhile stays
		el.Far.Bury([]driver.Grave{{Path: path, Seq: el.Mu.Ix.At(id).Seq + 1}})
	}
	// PublishedLocked decides about replaced versions. Lost versions stay on other nodes. Versions removed on
	// another node have a grave already.
}

// PublishedLocked follows the commit of a version. Versions of other nodes that existed when it was begun are
// replaced; with replaces set, that holds for versions not yet known here, too. A version that came meanwhile stays:
// two nodes that compute the same block at the same time do not remove each other's copy.
func (el *elsewhere) PublishedLocked(id index.ID, en *index.Entry, begun uint64, replaces bool, g *state.Gone) {
	if el.Remote == nil || !el.Mu.Ix.Linked(id) {
		return
	}
	el.OwnDirsLocked(id)
	path := el.Mu.Ix.Path(id)
	l, ok := el.Locate(path)
	// It is not asked for: the look-up before has made an entry of what others had, and raised the numbers above its.
	if ok && el.observeLocked(l.Seq) && en.Seq <= l.Seq {
		en.Seq = el.NextSeqLocked()
	}
	if replaces && !el.Mu.Room.Group(en.Group).Pinned() || ok && l.Seq <= begun { // other nodes are not told of raw files
		g.Graves = append(g.Graves, driver.Grave{Path: path, Seq: min(begun, en.Seq-1) + 1})
	}
}

// OtherElsewhereLocked reports whether other nodes or Finders have another version than the entry en, or a copy that it
// does not have, or may have one as far as this node knows without asking.
func (el *elsewhere) OtherElsewhereLocked(id index.ID, en *index.Entry) bool {
	path := el.Mu.Ix.Path(id)
	l, s := el.latestLocked(path)
	if s == nil {
		return el.Asker != nil && el.Asker.Unknown(path)
	}
	return en.Tiers&s.Bit == 0 || l.Seq != en.Seq
}

// EmptyElsewhere fails with ErrNotEmpty if other nodes have something in a directory that is to be removed. It asks
// them, so it blocks, for removeWait at most.
func (el *elsewhere) EmptyElsewhere(ctx context.Context, parent index.ID, name string) error {
	if el.Remote == nil {
		return nil
	}
	var g state.Gone
	path := ""
	var unknown []string
	el.Mu.Lock()
	id := el.FindLocked(parent, name)
	if id != 0 && el.Mu.Ix.At(id).IsDir() && el.Mu.Ix.Children(id) == 0 { // else the caller finds out
		path, unknown = el.Mu.Ix.Path(id), el.UnknownDirsLocked(id)
	}
	el.TellOutdatedLocked(&g)
	el.Mu.Unlock()
	el.Finish(&g)
	if path == "" {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, removeWait)
	defer cancel()
	el.Ask(asking, unknown)
	if _, known := el.Locate(path); !known {
		return nil
	}
	found := false
	err := el.Far.List(asking, path, func(name string, said *driver.Located) bool {
		_, found = el.listed(path+"/"+name, said)
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
