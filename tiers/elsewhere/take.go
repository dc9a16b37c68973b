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
func (e *lending) Take(ctx context.Context, h *Holding) error {
	if err := block.CheckPath(h.Path); err != nil {
		return err
	}
	if e.Remote == nil || h.Mode&state.ModeType != state.ModeRegular || h.Size < 0 || !e.elsewhere.plausible(h.Seq) {
		return &block.Error{Op: "take", Err: block.ErrInvalid}
	}
	var p state.Fetched
	if e.hasOlder(h) {
		var err error
		if p, err = e.lower.FetchAside(ctx, state.Wanted{Path: h.Path, Seq: h.Seq, Size: h.Size, Sum: h.Sum}); err != nil {
			return state.BringError("take", err)
		}
	}
	id, landed, err := e.enterTaken(h, p)
	if err != nil {
		return err
	}
	defer e.names.Forget(id, 1)
	if landed {
		err = p.Enter()
	} else {
		err = e.lower.PromoteTaken(ctx, id)
	}
	if err != nil {
		return state.BringError("take", err)
	}
	e.cascadeTaken(id, h.Seq)
	e.writing.CloseRead(id) // gives back the pin of the promotion
	return nil
}

// enterTaken enters the block h, and counts a reference to the entry so that it stays. p is the block if it was fetched
// already, else nil. It becomes that of the entry, which landed reports; otherwise it is given up.
func (e *lending) enterTaken(h *Holding, p state.Fetched) (id index.ID, landed bool, err error) {
	var g state.Gone
	e.Mu.Lock()
	e.elsewhere.observeLocked(h.Seq)
	if id, err = e.takeLocked(h, p != nil, &g); err == nil {
		e.Mu.Ix.At(id).Lookups++
		landed = p != nil && p.LandLocked(id)
	}
	e.Mu.Unlock()
	e.Finish(&g)
	if p != nil && !landed {
		p.Drop(state.ErrStale)
	}
	return id, landed, err
}

// cascadeTaken copies a block to the tiers of this node, if the entry still has the version seq.
func (e *lending) cascadeTaken(id index.ID, seq uint64) {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	en := e.Mu.Ix.At(id)
	if !e.Mu.Ix.Linked(id) || en.Seq != seq {
		return
	}
	for _, s := range e.Tiers {
		if s != e.Remote {
			e.lower.CascadeToLocked(s, id, en)
		}
	}
}

// hasOlder reports whether this node itself has a version that is to give way to the block h.
func (e *lending) hasOlder(h *Holding) bool {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	id := e.Mu.Ix.Walk(h.Path)
	return id != 0 && e.outdoneLocked(e.Mu.Ix.At(id), h)
}

// outdoneLocked reports whether an entry gives way to the block h.
func (e *lending) outdoneLocked(en *index.Entry, h *Holding) bool {
	return en.IsRegular() && en.Seq < h.Seq && en.Committed() &&
		!e.Mu.Room.Group(en.Group).Pinned() && (en.InMemory() || e.OwnTiers(en) != 0)
}

// takeLocked enters the block h and the directories above it. over says that it may replace an older version of this
// node's own. It looks for a grave, because one may have come since the offer: a grave is told of only once, and
// Supersede found nothing to drop then.
func (e *lending) takeLocked(h *Holding, over bool, g *state.Gone) (index.ID, error) {
	if e.Far.Buried(h.Path) > h.Seq {
		return 0, &block.Error{Op: "take", Err: block.ErrExist}
	}
	parent, rest := index.Root, h.Path
	for depth := 0; ; depth++ {
		name, tail, more := strings.Cut(rest, "/")
		id := e.Mu.Ix.Lookup(parent, name)
		if !more {
			return e.takeFileLocked(parent, name, id, h, over, g)
		}
		if id == 0 {
			l := driver.Located{Seq: h.Seq, Mode: state.ModeDir | 0o755, Mtime: h.Mtime}
			if depth < len(h.Dirs) {
				l.Mode, l.UID, l.GID = state.ModeDir|h.Dirs[depth].Mode&0o7777, h.Dirs[depth].UID, h.Dirs[depth].GID
			}
			id = e.elsewhere.enterLocked(parent, name, &l, e.Remote)
		}
		if en := e.Mu.Ix.At(id); !en.IsDir() || en.IsTemp() {
			return 0, &block.Error{Op: "take", Err: block.ErrExist}
		}
		parent, rest = id, tail
	}
}

func (e *lending) takeFileLocked(parent index.ID, name string, id index.ID, h *Holding, over bool, g *state.Gone) (index.ID, error) {
	if e.NameFlagsLocked(parent, name) != 0 {
		return 0, &block.Error{Op: "take", Err: block.ErrExist}
	}
	if id != 0 {
		en := e.Mu.Ix.At(id)
		switch {
		case e.FarLocked(id, en) && en.Seq == h.Seq:
			return id, nil
		case over && e.outdoneLocked(en, h), e.FarLocked(id, en) && en.Seq < h.Seq:
			e.Mu.Counters.Superseded++
			e.names.DropNameLocked(id, en, event.Removed, fate.Cause{Reason: fate.ReasonReplaced}, g)
		default:
			return 0, &block.Error{Op: "take", Err: block.ErrExist}
		}
	}
	return e.elsewhere.enterLocked(parent, name, &driver.Located{
		Seq: h.Seq, Size: h.Size, Mode: h.Mode, UID: h.UID, GID: h.GID, Mtime: h.Mtime,
	}, e.Remote), nil
}

// Supersede drops this node's file or directory of a path if its version is below seq: another node has removed or
// replaced it. Open handles keep their bytes. If a known version replaced the file, a process that has just looked
// it up may still open it. A directory goes only if it is empty; else it is announced anew. A directory whose grave
// arrives before the graves of its files therefore stays, empty. The makers of graves see to the order. Where an
// exchange after a partition loses the order, an empty directory is the only harm.
func (e *lending) Supersede(path string, dir bool, seq uint64) {
	var g state.Gone
	e.Mu.Lock()
	if id := e.Mu.Ix.Walk(path); e.elsewhere.observeLocked(seq) && id != 0 && id != index.Root {
		e.supersedeLocked(id, dir, seq, &g)
	}
	e.Mu.Unlock()
	e.Finish(&g)
}

func (e *lending) supersedeLocked(id index.ID, dir bool, seq uint64, g *state.Gone) {
	en := e.Mu.Ix.At(id)
	isDir := en.IsDir()
	switch {
	case isDir != dir, en.Seq >= seq, !en.Committed(), !isDir && e.Mu.Room.Group(en.Group).Pinned():
	case !isDir:
		e.Mu.Counters.Superseded++
		parent, reason := e.Mu.Ix.Parent(id), fate.ReasonSuperseded
		if e.Remote != nil {
			if l, ok := e.elsewhere.Locate(e.Mu.Ix.Path(id)); ok && l.Seq > en.Seq {
				reason = fate.ReasonReplaced
			}
		}
		e.names.DropNameLocked(id, en, event.Removed, fate.Cause{Reason: reason}, g)
		e.elsewhere.SettleParentLocked(parent, g)
	case e.Mu.Ix.Children(id) == 0:
		if en.Lookups > 0 {
			g.Names = append(g.Names, state.GoneName{Parent: e.Mu.Ix.Parent(id), ID: id, Name: e.Mu.Ix.Name(id)})
		}
		e.names.DropDirLocked(id, en, g)
	case e.Remote == nil || en.Tiers&e.Remote.Bit == 0:
		en.Seq = e.NextSeqLocked()
		e.DirEventLocked(event.DirCreated, id)
	}
}

// Observe raises the number that the next version gets above seq, of the node of that name, unless no clock gives seq.
func (e *lending) Observe(seq uint64, from string) {
	e.Mu.Lock()
	e.elsewhere.observeOfLocked(seq, cmp.Or(from, "another node"))
	e.Mu.Unlock()
}
