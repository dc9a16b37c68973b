package names

import (
	"cmp"
	"context"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/state"
)

// A name that only other nodes have is not in the index until a process asks for it. Then the name gets an entry
// whose only tier is the Remote: a file is nonresident, a directory has that bit. The entry goes when the kernel forgets
// it, because it can be made again at any time. It also goes when no other node has the name any more; the tier
// tells of that.
//
// A directory becomes this node's own, and is announced to the other nodes, when something below it does. A directory
// that a process of this node uses stays in the index, and becomes this node's own when no other node has it any more
// although none has removed it: the processes that use it need not notice that its maker stopped, died or was cut off.
// mkdir of a directory that is there is a look-up for kvfs, so each look-up of a directory is a use.

// FindLocked returns the child of parent called name, 0 if there is none here, elsewhere or in a Finder. g gets the name if
// that means another entry than before.
func (nm *Names) FindLocked(parent index.ID, name string, g *state.Gone) index.ID {
	id := nm.Mu.Ix.Lookup(parent, name)
	if id == 0 && nm.IsLinkLocked(catalog.Name{Parent: parent, Name: name}) {
		return nm.links.names[catalog.Name{Parent: parent, Name: name}]
	}
	if nm.Remote == nil && (id != 0 || len(nm.Finders) == 0) {
		return id
	}
	if id == 0 {
		return nm.seekChildLocked(parent, name)
	}
	if en := nm.Mu.Ix.At(id); en.Tiers() == nm.Remote.Bit && !en.InMemory() {
		return nm.renewLocked(id, en, g)
	}
	return id
}

// renewLocked looks up again what other nodes have under the name of id, if its entry stands only for that. A later
// version gets an entry of its own, because the kernel may have opened this one.
func (nm *Names) renewLocked(id index.ID, en *index.Entry, g *state.Gone) index.ID {
	dir := en.IsDir()
	if !dir && !nm.remoteOnlyLocked(id, en) {
		return id
	}
	l, s := nm.latestLocked(nm.Mu.Ix.Path(id))
	switch {
	case s == nil || l.Seq < en.Seq() || l.Mode&state.ModeType != uint32(en.Mode()&state.ModeType), dir && (s != nm.Remote || l.Seq == en.Seq()):
		return id
	case dir:
		nm.learnLocked(id, en, &l)
		nm.ApplyLocked(catalog.Versioned{ID: id, Seq: l.Seq})
		return id
	case s == nm.Remote && l.Seq == en.Seq():
		nm.learnLocked(id, en, &l) // the attributes may have changed since
		return id
	}
	parent, name := nm.Mu.Ix.Parent(id), nm.Mu.Ix.Name(id)
	nm.forgetRemoteLocked(id, en, g)
	return nm.EnterLocked(parent, name, &l, s)
}

// learnLocked gives an entry the mode and the owner that other nodes know.
func (nm *Names) learnLocked(id index.ID, en *index.Entry, l *driver.Located) {
	a := catalog.AttrsOf(id, en)
	a.Mode, a.UID, a.GID = uint16(l.Mode&(state.ModeType|0o7777)), l.UID, l.GID
	nm.ApplyLocked(&a)
}

// WalkLocked returns the entry at a path, 0 if there is none. It enters those that FindLocked finds on the way.
func (nm *Names) WalkLocked(path string, g *state.Gone) index.ID {
	if nm.Remote == nil && len(nm.Finders) == 0 {
		return nm.Mu.Ix.Walk(path)
	}
	id := index.Root
	for more := path != ""; more && id != 0; {
		var name string
		name, path, more = strings.Cut(path, "/")
		id = nm.FindLocked(id, name, g)
	}
	return id
}

// Plausible reports whether a version number of another node can be right. A number that cannot is counted and
// ignored.
func (nm *Names) Plausible(seq uint64) bool {
	if seq <= block.MaxSeq {
		return true
	}
	if nm.implausible.Add(1) == 1 {
		nm.Log.Warn("version number of another node that no clock gives: it and all others like it are ignored", zap.Uint64("version", seq))
	}
	return false
}

// RefusedSeqs returns how many version numbers of other nodes could not be right.
func (nm *Names) RefusedSeqs() uint64 { return nm.implausible.Load() }

// ObserveLocked raises the number that the next version gets above seq, a number of another node. It returns false
// if seq cannot be right.
func (nm *Names) ObserveLocked(seq uint64) bool { return nm.observeOfLocked(seq, "another node") }

// observeOfLocked is ObserveLocked with the name of the node that told seq, which the status shows while the number is ahead of the clock.
func (nm *Names) observeOfLocked(seq uint64, from string) bool {
	if !nm.Plausible(seq) {
		return false
	}
	if seq > max(nm.Mu.Seq, uint64(nm.Now()))+uint64(time.Second) {
		nm.Mu.SeqFrom = from
	}
	nm.Mu.Seq = max(nm.Mu.Seq, seq)
	return true
}

// Locate asks the Remote for a path, and ignores an answer that cannot be right.
func (nm *Names) Locate(path string) (driver.Located, bool) { return nm.right(nm.Far.Locate(path)) }

// right returns what the Remote has said unless it cannot be right.
func (nm *Names) right(l driver.Located, ok bool) (driver.Located, bool) {
	kind := l.Mode & state.ModeType
	if !ok || kind != state.ModeDir && kind != state.ModeRegular || l.Size < 0 || !nm.Plausible(l.Seq) {
		return driver.Located{}, false
	}
	return l, true
}

// EnterLocked makes an entry of the file or directory l that a tier has under a name: the Remote or a Finder.
func (nm *Names) EnterLocked(parent index.ID, name string, l *driver.Located, s *state.Secondary) index.ID {
	nm.ObserveLocked(l.Seq)
	attrs := catalog.Attrs{
		Mode: uint16(l.Mode & (state.ModeType | 0o7777)), UID: l.UID, GID: l.GID, Mtime: l.Mtime, Atime: l.Mtime, Ctime: l.Mtime,
	}
	var id index.ID
	if l.IsDir() {
		x := catalog.CreatedDir{Attrs: attrs, Parent: parent, Name: name, Seq: l.Seq}
		if s == nm.Remote {
			x.Tiers = s.Bit
		}
		id = nm.ApplyLocked(&x).ID
	} else {
		id = nm.ApplyLocked(&catalog.CreatedFile{
			Attrs: attrs, Parent: parent, Name: name, Tiers: s.Bit, Seq: l.Seq, Size: l.Size, Fetched: s == nm.Remote, News: s != nm.Remote,
			Unread: true,
		}).ID
	}
	if s != nm.Remote {
		nm.enterFoundLocked(id, l)
		return id
	}
	nm.Far.Watch(nm.KeyLocked(id))
	nm.strays = append(nm.strays, id)
	return id
}

// StrayLocked notes an entry that may stand, from now on, only for a file or directory of other nodes.
func (nm *Names) StrayLocked(id index.ID, en *index.Entry) {
	if nm.Remote != nil && en.Tiers() == nm.Remote.Bit && !en.InMemory() {
		nm.strays = append(nm.strays, id)
	}
}

// strayBatch bounds how many entries one hold of the lock looks at.
const strayBatch = 1024

// SettleStrays forgets the entries of old, noted before the last call, to which nothing refers, and the directories
// of old that no node has. It returns the entries noted since.
func (nm *Names) SettleStrays(old []index.ID) (since []index.ID) {
	for len(old) > 0 {
		n := min(len(old), strayBatch)
		var g state.Gone
		nm.Mu.Lock()
		for _, id := range old[:n] {
			if !nm.Mu.Ix.Valid(id) {
				continue
			}
			// The number may belong to another entry by now. The same holds for that one.
			if en := nm.Mu.Ix.At(id); en.IsDir() {
				nm.SettleParentLocked(id, &g)
			} else {
				nm.SettleRemoteLocked(id, en, &g)
			}
		}
		nm.Mu.Unlock()
		nm.Finish(&g)
		old = old[n:]
	}
	nm.Mu.Lock()
	defer nm.Mu.Unlock()
	since, nm.strays = nm.strays, nil
	return since
}

// remoteOnlyLocked reports whether an entry stands only for a file or directory of other nodes.
func (nm *Names) remoteOnlyLocked(id index.ID, en *index.Entry) bool {
	if nm.Remote == nil || en.Tiers() != nm.Remote.Bit || !nm.Mu.Ix.Linked(id) {
		return false
	}
	if en.IsDir() {
		return nm.Mu.Ix.Children(id) == 0
	}
	return nm.NonresidentLocked(id, en) && en.Storing() == 0 && nm.Copies.PromotingLocked(id) == ""
}

// maxUsedDirs bounds the directories of other nodes that stay in the index because they are used.
const maxUsedDirs = 1 << 16

// UseDirLocked notes that a process of this node uses an entry, which matters for a directory of other nodes.
func (nm *Names) UseDirLocked(id index.ID, en *index.Entry) {
	if !en.IsDir() || en.Tiers()&nm.RemoteBit() == 0 || en.Used() || nm.Mu.UsedDirs() >= maxUsedDirs {
		return
	}
	nm.ApplyLocked(catalog.Used{ID: id})
}

// keptLocked makes a directory that other nodes have lost this node's own, with those above it, if it is in use. It keeps
// its version, so that a removal that this node learns of later removes it.
func (nm *Names) keptLocked(id index.ID, en *index.Entry) bool {
	if !en.Used() || nm.Far.Buried(nm.Mu.Ix.Path(id)) > en.Seq() {
		return false
	}
	for ; id != index.Root; id = nm.Mu.Ix.Parent(id) {
		if en = nm.Mu.Ix.At(id); en.Tiers()&nm.Remote.Bit == 0 {
			break
		}
		nm.ClearTiersLocked(id, en, nm.Remote.Bit, 0)
		if nm.Far.Buried(nm.Mu.Ix.Path(id)) > en.Seq() {
			nm.ApplyLocked(catalog.Versioned{ID: id, Seq: nm.NextSeqLocked()})
		}
		nm.DirEventLocked(event.DirCreated, id)
	}
	return true
}

// ElsewhereLocked reports whether only other nodes have a file or directory. A directory is this node's own as soon
// as something below it is committed here.
func (nm *Names) ElsewhereLocked(id index.ID, en *index.Entry) bool {
	if en.IsDir() {
		return en.Tiers()&nm.RemoteBit() != 0
	}
	return nm.FarLocked(id, en)
}

// SettleRemoteLocked forgets an entry that stands only for a file or directory of other nodes when nothing refers to
// it any more, and then the directories above. A pinned entry stays, because no other node knows of the pin, and so does
// a directory that is used.
func (nm *Names) SettleRemoteLocked(id index.ID, en *index.Entry, g *state.Gone) {
	for nm.Remote != nil && en.Lookups() == 0 && en.Opens() == 0 && en.Flags()&(index.FlagPinned|index.FlagUsed) == 0 && id != index.Root && nm.remoteOnlyLocked(id, en) {
		parent := nm.Mu.Ix.Parent(id)
		nm.forgetRemoteLocked(id, en, g)
		id, en = parent, nm.Mu.Ix.At(parent)
	}
}

// forgetRemoteLocked takes an entry that remoteOnlyLocked reports out of the index, and its name out of the kernel's
// cache.
func (nm *Names) forgetRemoteLocked(id index.ID, en *index.Entry, g *state.Gone) {
	nm.ClearTiersLocked(id, en, en.Tiers(), 0)
	nm.ChangeLocked(catalog.Removed{ID: id}, nil, g)
	nm.ReapLocked(id, en, g)
}

// ForgetOnlyLocked is forgetRemoteLocked for an entry that remoteOnlyLocked may not report. Then it does nothing.
func (nm *Names) ForgetOnlyLocked(id index.ID, en *index.Entry, g *state.Gone) {
	if nm.remoteOnlyLocked(id, en) {
		nm.forgetRemoteLocked(id, en, g)
	}
}

// LostDirLocked follows the loss of a directory by all other nodes. The entry stays for as long as something is in
// the directory, and as long as it is used.
func (nm *Names) LostDirLocked(id index.ID, en *index.Entry, g *state.Gone) {
	if nm.remoteOnlyLocked(id, en) && en.Opens() == 0 && !nm.keptLocked(id, en) {
		parent := nm.Mu.Ix.Parent(id)
		nm.forgetRemoteLocked(id, en, g)
		nm.settleLostLocked(parent, g)
	}
}

// settleLostLocked takes away directories that no node has, from id upwards, now that something in them is gone.
func (nm *Names) settleLostLocked(id index.ID, g *state.Gone) {
	for id != index.Root {
		en := nm.Mu.Ix.At(id)
		if !nm.remoteOnlyLocked(id, en) {
			return
		}
		if _, ok := nm.Locate(nm.Mu.Ix.Path(id)); ok {
			nm.SettleRemoteLocked(id, en, g)
			return
		}
		if nm.keptLocked(id, en) {
			return
		}
		parent := nm.Mu.Ix.Parent(id)
		nm.forgetRemoteLocked(id, en, g)
		id = parent
	}
}

// SettleParentLocked is settleLostLocked for a directory that may have gone meanwhile.
func (nm *Names) SettleParentLocked(dir index.ID, g *state.Gone) {
	if nm.Remote != nil && nm.Mu.Ix.Valid(dir) && nm.Mu.Ix.Linked(dir) {
		nm.settleLostLocked(dir, g)
	}
}

// OwnDirsLocked makes the directories above an entry this node's own.
func (nm *Names) OwnDirsLocked(id index.ID) {
	if nm.Remote == nil {
		return
	}
	for p := nm.Mu.Ix.Parent(id); p != index.Root && p != 0; p = nm.Mu.Ix.Parent(p) {
		en := nm.Mu.Ix.At(p)
		if en.Tiers()&nm.Remote.Bit == 0 {
			return // and so are the directories above
		}
		nm.OwnDirLocked(p, en)
	}
}

// OwnDirLocked makes a directory of other nodes this node's own. It gets a new version, because the version of the
// other nodes may have been removed while this one was being filled.
func (nm *Names) OwnDirLocked(id index.ID, en *index.Entry) {
	nm.ClearTiersLocked(id, en, nm.Remote.Bit, 0)
	nm.ApplyLocked(catalog.Versioned{ID: id, Seq: nm.NextSeqLocked()})
	nm.DirEventLocked(event.DirCreated, id)
}

// BuryLocked makes the versions of a name on other nodes void, if the name was unlinked or has expired. The caller
// still holds the lock, so that no look-up finds on other nodes what is gone here.
func (nm *Names) BuryLocked(id index.ID, reason outcome.Reason) {
	if nm.Remote == nil {
		return
	}
	path := nm.Mu.Ix.Path(id)
	switch reason {
	case outcome.ReasonUnlink:
		nm.Far.Bury([]driver.Grave{{Path: path, Seq: nm.NextSeqLocked()}})
	case outcome.ReasonExpired: // a version that another node stored meanwhile stays
		nm.Far.Bury([]driver.Grave{{Path: path, Seq: nm.Mu.Ix.At(id).Seq() + 1}})
	}
	// PublishedLocked decides about replaced versions. Lost versions stay on other nodes. Versions removed on
	// another node have a grave already.
}

// PublishedLocked follows the commit of a version. Versions of other nodes that existed when it was begun are
// replaced; with replaces set, that holds for versions not yet known here, too. A version that came meanwhile stays:
// two nodes that compute the same block at the same time do not remove each other's copy.
func (nm *Names) PublishedLocked(id index.ID, en *index.Entry, begun uint64, replaces bool, g *state.Gone) {
	if nm.Remote == nil || !nm.Mu.Ix.Linked(id) {
		return
	}
	nm.OwnDirsLocked(id)
	path := nm.Mu.Ix.Path(id)
	l, ok := nm.Locate(path)
	// It is not asked for: the look-up before has made an entry of what others had, and raised the numbers above its.
	if ok && nm.ObserveLocked(l.Seq) && en.Seq() <= l.Seq {
		nm.ApplyLocked(catalog.Versioned{ID: id, Seq: nm.NextSeqLocked()})
	}
	if replaces && !nm.Mu.Room.Group(en.Group()).Pinned() || ok && l.Seq <= begun { // other nodes are not told of raw files
		g.Graves = append(g.Graves, driver.Grave{Path: path, Seq: min(begun, en.Seq()-1) + 1})
	}
}

// OtherElsewhereLocked reports whether other nodes or Finders have another version than the entry en, or a copy that it
// does not have, or may have one as far as this node knows without asking.
func (nm *Names) OtherElsewhereLocked(id index.ID, en *index.Entry) bool {
	path := nm.Mu.Ix.Path(id)
	l, s := nm.latestLocked(path)
	if s == nil {
		return nm.Asker != nil && nm.Asker.Unknown(path)
	}
	return en.Tiers()&s.Bit == 0 || l.Seq != en.Seq()
}

// EmptyElsewhere fails with ErrNotEmpty if other nodes have something in a directory that is to be removed. It asks
// them, so it blocks, for removeWait at most.
func (nm *Names) EmptyElsewhere(ctx context.Context, parent index.ID, name string) error {
	if nm.Remote == nil {
		return nil
	}
	var g state.Gone
	path := ""
	var unknown []string
	nm.Mu.Lock()
	id := nm.FindLocked(parent, name, &g)
	if id != 0 && nm.Mu.Ix.At(id).IsDir() && int64(nm.Mu.Ix.Children(id)) <= nm.Writers.Load() { // else the caller finds out
		path, unknown = nm.Mu.Ix.Path(id), nm.UnknownDirsLocked(id)
	}
	nm.Mu.Unlock()
	nm.Finish(&g)
	if path == "" {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, removeWait)
	defer cancel()
	nm.Ask(asking, unknown)
	if _, known := nm.Locate(path); !known {
		return nil
	}
	found := false
	err := nm.Far.List(asking, path, func(name string, said *driver.Located) bool {
		_, found = nm.listed(path+"/"+name, said)
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

// Supersede drops this node's file or directory of a path if its version is below seq: another node has removed or
// replaced it. Open handles keep their bytes. If a known version replaced the file, a process that has just looked
// it up may still open it. A directory goes only if it is empty; else it is announced anew. A directory whose grave
// arrives before the graves of its files therefore stays, empty. The makers of graves see to the order. Where an
// exchange after a partition loses the order, an empty directory is the only harm.
func (nm *Names) Supersede(path string, dir bool, seq uint64) {
	var g state.Gone
	nm.Mu.Lock()
	if id := nm.Mu.Ix.Walk(path); nm.ObserveLocked(seq) && id != 0 && id != index.Root {
		nm.supersedeLocked(id, dir, seq, &g)
	}
	nm.Mu.Unlock()
	nm.Finish(&g)
}

func (nm *Names) supersedeLocked(id index.ID, dir bool, seq uint64, g *state.Gone) {
	en := nm.Mu.Ix.At(id)
	isDir := en.IsDir()
	switch {
	case isDir != dir, en.Seq() >= seq, !en.Committed(), !isDir && nm.Mu.Room.Group(en.Group()).Pinned():
	case !isDir:
		nm.Mu.Counters.Superseded++
		parent, reason := nm.Mu.Ix.Parent(id), outcome.ReasonSuperseded
		if nm.Remote != nil {
			if l, ok := nm.Locate(nm.Mu.Ix.Path(id)); ok && l.Seq > en.Seq() {
				reason = outcome.ReasonReplaced
			}
		}
		nm.DropNameLocked(id, en, outcome.Cause{Reason: reason}, g)
		nm.SettleParentLocked(parent, g)
	case nm.Mu.Ix.Children(id) == 0:
		nm.DropDirLocked(id, en, nil, g)
	case nm.Remote == nil || en.Tiers()&nm.Remote.Bit == 0:
		nm.ApplyLocked(catalog.Versioned{ID: id, Seq: nm.NextSeqLocked()})
		nm.DirEventLocked(event.DirCreated, id)
	}
}

// Observe raises the number that the next version gets above seq, of the node of that name, unless no clock gives seq.
func (nm *Names) Observe(seq uint64, from string) {
	nm.Mu.Lock()
	nm.observeOfLocked(seq, cmp.Or(from, "another node"))
	nm.Mu.Unlock()
}
