package tiers

import (
	"context"
	"strings"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/transfer"
)

// Take copies a block that the Remote tier has to this node, as the holder of the block asks, and has it copied to
// the tiers below that are not Remote. It blocks until the block is in memory. It makes room as any promotion does:
// blocks that are leased or have no other copy stay. An older version that this node has stays until the new one is
// here.
//
// It fails with ErrExist if this node has this version or a later one, or if another file has the name; with
// ErrNoSpace; with ErrNotFound if the Remote tier cannot give the block; with ErrInvalid if h is no file; or with
// ctx's error.
func (e *Engine) Take(ctx context.Context, h *Holding) error {
	if err := block.CheckPath(h.Path); err != nil {
		return err
	}
	if e.st.Remote == nil || h.Mode&state.ModeType != state.ModeRegular || h.Size < 0 || !e.Names.Plausible(h.Seq) {
		return &block.Error{Op: "take", Err: block.ErrInvalid}
	}
	if err := e.mayTake(h); err != nil {
		return err
	}
	p, err := e.Transfer.FetchAside(ctx, transfer.Wanted{Path: h.Path, Seq: h.Seq, Size: h.Size, Sum: h.Sum})
	if err != nil {
		return state.BringError("take", err)
	}
	id, landed, err := e.enterTaken(h, p)
	if err != nil {
		return err
	}
	defer e.Names.Forget(id, 1)
	if landed {
		err = p.Enter()
	} else { // another process has it loaded
		err = e.Transfer.Promote(ctx, id, transfer.Want{})
	}
	if err != nil {
		return state.BringError("take", err)
	}
	e.cascadeTaken(id, h.Seq)
	e.Names.CloseRead(id) // gives back the pin of the promotion
	return nil
}

// enterTaken enters the block h, which is p, and counts a reference to the entry so that it stays. p becomes the block of
// the entry, which landed reports; otherwise it is given up.
func (e *Engine) enterTaken(h *Holding, p *transfer.Fetched) (id index.ID, landed bool, err error) {
	var g state.Gone
	e.st.Mu.Lock()
	e.Names.ObserveLocked(h.Seq)
	if id, err = e.takeLocked(h, &g); err == nil {
		e.st.ApplyLocked(catalog.Referred{ID: id})
		landed = p.LandLocked(id)
	}
	e.st.Mu.Unlock()
	e.st.Finish(&g)
	if !landed {
		p.Drop(state.ErrStale)
	}
	return id, landed, err
}

// cascadeTaken copies a block to the tiers of this node, if the entry still has the version seq.
func (e *Engine) cascadeTaken(id index.ID, seq uint64) {
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	en := e.st.Mu.Ix.At(id)
	if !e.st.Mu.Ix.Linked(id) || en.Seq() != seq {
		return
	}
	for _, s := range e.st.Tiers {
		if s != e.st.Remote {
			e.Transfer.CascadeToLocked(s, id, en)
		}
	}
}

// errTaken says that this node does not want the block that it is offered.
var errTaken = &block.Error{Op: "take", Err: block.ErrExist}

// mayTake fails with ErrExist if the name is known to be another file's, or the block is no later than what is here.
func (e *Engine) mayTake(h *Holding) error {
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	id := e.st.Mu.Ix.Walk(h.Path)
	if e.st.Far.Buried(h.Path) > h.Seq || id != 0 && !e.givesWayLocked(id, h) {
		return errTaken
	}
	return nil
}

// givesWayLocked reports whether an entry gives way to the block h, or stands for it.
func (e *Engine) givesWayLocked(id index.ID, h *Holding) bool {
	en := e.st.Mu.Ix.At(id)
	if e.st.FarLocked(id, en) {
		return en.Seq() <= h.Seq
	}
	return en.IsRegular() && en.Seq() < h.Seq && en.Committed() &&
		!e.st.Mu.Room.Group(en.Group()).Pinned() && (en.InMemory() || e.st.OwnTiers(en) != 0)
}

// takeLocked enters the block h and the directories above it. It looks for a grave, because one may have come since the
// offer: a grave is told of only once, and Supersede found nothing to drop then.
func (e *Engine) takeLocked(h *Holding, g *state.Gone) (index.ID, error) {
	if e.st.Far.Buried(h.Path) > h.Seq {
		return 0, errTaken
	}
	parent, rest := index.Root, h.Path
	for depth := 0; ; depth++ {
		name, tail, more := strings.Cut(rest, "/")
		id := e.st.Mu.Ix.Lookup(parent, name)
		if !more {
			return e.takeFileLocked(parent, name, id, h, g)
		}
		if id == 0 {
			l := driver.Located{Seq: h.Seq, Mode: state.ModeDir | 0o755, Mtime: h.Mtime}
			if depth < len(h.Dirs) {
				l.Mode, l.UID, l.GID = state.ModeDir|h.Dirs[depth].Mode&0o7777, h.Dirs[depth].UID, h.Dirs[depth].GID
			}
			id = e.Names.EnterLocked(parent, name, &l, e.st.Remote)
		}
		if en := e.st.Mu.Ix.At(id); !en.IsDir() || en.IsTemp() {
			return 0, errTaken
		}
		parent, rest = id, tail
	}
}

func (e *Engine) takeFileLocked(parent index.ID, name string, id index.ID, h *Holding, g *state.Gone) (index.ID, error) {
	switch {
	case e.st.Mu.NameFlags(parent, name) != 0 || id != 0 && !e.givesWayLocked(id, h):
		return 0, errTaken
	case id == 0:
	case e.st.Mu.Ix.At(id).Seq() == h.Seq:
		return id, nil
	default:
		e.st.Mu.Counters.Superseded++
		e.Names.DropNameLocked(id, e.st.Mu.Ix.At(id), outcome.Cause{Reason: outcome.ReasonReplaced}, g)
	}
	return e.Names.EnterLocked(parent, name, &driver.Located{
		Seq: h.Seq, Size: h.Size, Mode: h.Mode, UID: h.UID, GID: h.GID, Mtime: h.Mtime,
	}, e.st.Remote), nil
}
