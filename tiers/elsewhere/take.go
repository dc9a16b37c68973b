package elsewhere

import (
	"cmp"
	"context"
	"strings"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// Take copies a block that the Remote tier has to this node, as the holder of the block asks, and has it copied to
// the tiers below that are not Remote. It blocks until the block is in memory. It makes room as any promotion does:
// blocks that are leased or have no other copy stay. An older version that this node has stays until the new one is
// here.
//
// It fails with ErrExist if this node has this version or a later one, or if another file has the name; with
// ErrNoSpace; with ErrNotFound if the Remote tier cannot give the block; with ErrInvalid if h is no file; or with
// ctx's error.
func (ln *lending) Take(ctx context.Context, h *Holding) error {
	if err := block.CheckPath(h.Path); err != nil {
		return err
	}
	if ln.Remote == nil || h.Mode&state.ModeType != state.ModeRegular || h.Size < 0 || !ln.elsewhere.plausible(h.Seq) {
		return &block.Error{Op: "take", Err: block.ErrInvalid}
	}
	var p state.Fetched
	if ln.hasOlder(h) {
		var err error
		if p, err = ln.lower.FetchAside(ctx, state.Wanted{Path: h.Path, Seq: h.Seq, Size: h.Size, Sum: h.Sum}); err != nil {
			return state.BringError("take", err)
		}
	}
	id, landed, err := ln.enterTaken(h, p)
	if err != nil {
		return err
	}
	defer ln.names.Forget(id, 1)
	if landed {
		err = p.Enter()
	} else {
		err = ln.lower.PromoteTaken(ctx, id)
	}
	if err != nil {
		return state.BringError("take", err)
	}
	ln.cascadeTaken(id, h.Seq)
	ln.writing.CloseRead(id) // gives back the pin of the promotion
	return nil
}

// enterTaken enters the block h, and counts a reference to the entry so that it stays. p is the block if it was fetched
// already, else nil. It becomes that of the entry, which landed reports; otherwise it is given up.
func (ln *lending) enterTaken(h *Holding, p state.Fetched) (id index.ID, landed bool, err error) {
	var g state.Gone
	ln.Mu.Lock()
	ln.elsewhere.observeLocked(h.Seq)
	if id, err = ln.takeLocked(h, p != nil, &g); err == nil {
		ln.Mu.Ix.At(id).Lookups++
		landed = p != nil && p.LandLocked(id)
	}
	ln.Mu.Unlock()
	ln.Finish(&g)
	if p != nil && !landed {
		p.Drop(state.ErrStale)
	}
	return id, landed, err
}

// cascadeTaken copies a block to the tiers of this node, if the entry still has the version seq.
func (ln *lending) cascadeTaken(id index.ID, seq uint64) {
	ln.Mu.Lock()
	defer ln.Mu.Unlock()
	en := ln.Mu.Ix.At(id)
	if !ln.Mu.Ix.Linked(id) || en.Seq != seq {
		return
	}
	for _, s := range ln.Tiers {
		if s != ln.Remote {
			ln.lower.CascadeToLocked(s, id, en)
		}
	}
}

// hasOlder reports whether this node itself has a version that is to give way to the block h.
func (ln *lending) hasOlder(h *Holding) bool {
	ln.Mu.Lock()
	defer ln.Mu.Unlock()
	id := ln.Mu.Ix.Walk(h.Path)
	return id != 0 && ln.outdoneLocked(ln.Mu.Ix.At(id), h)
}

// outdoneLocked reports whether an entry gives way to the block h.
func (ln *lending) outdoneLocked(en *index.Entry, h *Holding) bool {
	return en.IsRegular() && en.Seq < h.Seq && en.Committed() &&
		!ln.Mu.Room.Group(en.Group).Pinned() && (en.InMemory() || ln.OwnTiers(en) != 0)
}

// takeLocked enters the block h and the directories above it. over says that it may replace an older version of this
// node's own. It looks for a grave, because one may have come since the offer: a grave is told of only once, and
// Supersede found nothing to drop then.
func (ln *lending) takeLocked(h *Holding, over bool, g *state.Gone) (index.ID, error) {
	if ln.Far.Buried(h.Path) > h.Seq {
		return 0, &block.Error{Op: "take", Err: block.ErrExist}
	}
	parent, rest := index.Root, h.Path
	for depth := 0; ; depth++ {
		name, tail, more := strings.Cut(rest, "/")
		id := ln.Mu.Ix.Lookup(parent, name)
		if !more {
			return ln.takeFileLocked(parent, name, id, h, over, g)
		}
		if id == 0 {
			l := driver.Located{Seq: h.Seq, Mode: state.ModeDir | 0o755, Mtime: h.Mtime}
			if depth < len(h.Dirs) {
				l.Mode, l.UID, l.GID = state.ModeDir|h.Dirs[depth].Mode&0o7777, h.Dirs[depth].UID, h.Dirs[depth].GID
			}
			id = ln.elsewhere.enterLocked(parent, name, &l, ln.Remote)
		}
		if en := ln.Mu.Ix.At(id); !en.IsDir() || en.IsTemp() {
			return 0, &block.Error{Op: "take", Err: block.ErrExist}
		}
		parent, rest = id, tail
	}
}

func (ln *lending) takeFileLocked(parent index.ID, name string, id index.ID, h *Holding, over bool, g *state.Gone) (index.ID, error) {
	if ln.NameFlagsLocked(parent, name) != 0 {
		return 0, &block.Error{Op: "take", Err: block.ErrExist}
	}
	if id != 0 {
		en := ln.Mu.Ix.At(id)
		switch {
		case ln.FarLocked(id, en) && en.Seq == h.Seq:
			return id, nil
		case over && ln.outdoneLocked(en, h), ln.FarLocked(id, en) && en.Seq < h.Seq:
			ln.Mu.Counters.Superseded++
			ln.names.DropNameLocked(id, en, event.Removed, fate.Cause{Reason: fate.ReasonReplaced}, g)
		default:
			return 0, &block.Error{Op: "take", Err: block.ErrExist}
		}
	}
	return ln.elsewhere.enterLocked(parent, name, &driver.Located{
		Seq: h.Seq, Size: h.Size, Mode: h.Mode, UID: h.UID, GID: h.GID, Mtime: h.Mtime,
	}, ln.Remote), nil
}

// Supersede drops this node's file or directory of a path if its version is below seq: another node has removed or
// replaced it. Open handles keep their bytes. If a known version replaced the file, a process that has just looked
// it up may still open it. A directory goes only if it is empty; else it is announced anew. A directory whose grave
// arrives before the graves of its files therefore stays, empty. The makers of graves see to the order. Where an
// exchange after a partition loses the order, an empty directory is the only harm.
func (ln *lending) Supersede(path string, dir bool, seq uint64) {
	var g state.Gone
	ln.Mu.Lock()
	if id := ln.Mu.Ix.Walk(path); ln.elsewhere.observeLocked(seq) && id != 0 && id != index.Root {
		ln.supersedeLocked(id, dir, seq, &g)
	}
	ln.Mu.Unlock()
	ln.Finish(&g)
}

func (ln *lending) supersedeLocked(id index.ID, dir bool, seq uint64, g *state.Gone) {
	en := ln.Mu.Ix.At(id)
	isDir := en.IsDir()
	switch {
	case isDir != dir, en.Seq >= seq, !en.Committed(), !isDir && ln.Mu.Room.Group(en.Group).Pinned():
	case !isDir:
		ln.Mu.Counters.Superseded++
		parent, reason := ln.Mu.Ix.Parent(id), fate.ReasonSuperseded
		if ln.Remote != nil {
			if l, ok := ln.elsewhere.Locate(ln.Mu.Ix.Path(id)); ok && l.Seq > en.Seq {
				reason = fate.ReasonReplaced
			}
		}
		ln.names.DropNameLocked(id, en, event.Removed, fate.Cause{Reason: reason}, g)
		ln.elsewhere.SettleParentLocked(parent, g)
	case ln.Mu.Ix.Children(id) == 0:
		if en.Lookups > 0 {
			g.Names = append(g.Names, state.GoneName{Parent: ln.Mu.Ix.Parent(id), ID: id, Name: ln.Mu.Ix.Name(id)})
		}
		ln.names.DropDirLocked(id, en, g)
	case ln.Remote == nil || en.Tiers&ln.Remote.Bit == 0:
		en.Seq = ln.NextSeqLocked()
		ln.DirEventLocked(event.DirCreated, id)
	}
}

// Observe raises the number that the next version gets above seq, of the node of that name, unless no clock gives seq.
func (ln *lending) Observe(seq uint64, from string) {
	ln.Mu.Lock()
	ln.elsewhere.observeOfLocked(seq, cmp.Or(from, "another node"))
	ln.Mu.Unlock()
}
