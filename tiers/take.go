package tiers

import (
	"context"
	"errors"
	"strings"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
)

// Take makes a copy of a block that the Remote tier holds one of this node's own, as its
// holder asks, and has it copied to the tiers below that are not Remote. It blocks until
// that is in memory. Room is made for it as for any promotion: what is leased or has no
// other copy stays. It fails with ErrExist if this node has this version or a later one,
// or the name is taken by something else; ErrNoSpace; ErrNotFound if the Remote tier
// cannot give it; ErrInvalid for what is no file; or ctx's error.
func (e *Engine) Take(ctx context.Context, h *Holding) error {
	if err := block.CheckPath(h.Path); err != nil {
		return err
	}
	if e.remote == nil || h.Mode&modeType != modeRegular || h.Size < 0 {
		return &block.Error{Op: "take", Err: block.ErrInvalid}
	}
	e.Supersede(h.Path, false, h.Seq)
	var g gone
	e.mu.Lock()
	id, err := e.takeLocked(h, &g)
	if err == nil {
		e.mu.ix.At(id).Lookups++ // so that it stays
	}
	e.mu.Unlock()
	e.finish(&g)
	if err != nil {
		return err
	}
	defer e.Forget(id, 1)
	switch err := e.promote(ctx, id, false); {
	case errors.Is(err, block.ErrNoSpace), errors.Is(err, block.ErrTooLarge):
		return &block.Error{Op: "take", Tier: "memory", Err: block.ErrNoSpace}
	case err != nil:
		return missError(err)
	}
	e.mu.Lock()
	en := e.mu.ix.At(id)
	if e.mu.ix.Linked(id) && en.Seq == h.Seq {
		for _, s := range e.tiers {
			if s != e.remote {
				e.cascadeToLocked(s, id, en)
			}
		}
	}
	e.mu.Unlock()
	e.CloseRead(id) // what promote pinned it with
	return nil
}

// takeLocked enters a block that is offered, and the directories above it.
func (e *Engine) takeLocked(h *Holding, g *gone) (index.ID, error) {
	parent, rest := index.Root, h.Path
	for depth := 0; ; depth++ {
		name, tail, more := strings.Cut(rest, "/")
		id := e.mu.ix.Lookup(parent, name)
		if !more {
			return e.takeFileLocked(parent, name, id, h, g)
		}
		if id == 0 {
			l := Located{Seq: h.Seq, Mode: modeDir | 0o755, Mtime: h.Mtime}
			if depth < len(h.Dirs) {
				l.Mode, l.UID, l.GID = modeDir|h.Dirs[depth].Mode&0o7777, h.Dirs[depth].UID, h.Dirs[depth].GID
			}
			id = e.enterLocked(parent, name, &l)
		}
		if en := e.mu.ix.At(id); en.Mode&modeType != modeDir || en.Flags&flagTemp != 0 {
			return 0, &block.Error{Op: "take", Err: block.ErrExist}
		}
		parent, rest = id, tail
	}
}

func (e *Engine) takeFileLocked(parent index.ID, name string, id index.ID, h *Holding, g *gone) (index.ID, error) {
	if len(e.mu.shadows[nameKey{parent, name}]) > 0 || e.isTempLocked(parent, name) {
		return 0, &block.Error{Op: "take", Err: block.ErrExist}
	}
	if id != 0 {
		en := e.mu.ix.At(id)
		if !e.hollowLocked(id, en) || en.Tiers != e.remote.bit || en.Seq > h.Seq {
			return 0, &block.Error{Op: "take", Err: block.ErrExist}
		}
		if en.Seq == h.Seq {
			return id, nil
		}
		e.dropNameLocked(id, en, BlockRemoved, "superseded", g)
	}
	return e.enterLocked(parent, name, &Located{
		Seq: h.Seq, Size: h.Size, Mode: h.Mode, UID: h.UID, GID: h.GID, Mtime: h.Mtime,
	}), nil
}

// Supersede drops what this node has of a path below seq: it was removed or replaced
// elsewhere. Handles that are open keep their bytes. A directory goes only if it is
// empty; else it is announced anew.
func (e *Engine) Supersede(path string, dir bool, seq uint64) {
	var g gone
	e.mu.Lock()
	e.mu.seq = max(e.mu.seq, seq)
	if id := e.mu.ix.Walk(path); id != 0 && id != index.Root {
		en := e.mu.ix.At(id)
		isDir := en.Mode&modeType == modeDir
		switch {
		case isDir != dir, en.Seq >= seq, en.Flags&flagUncommitted != 0, e.mu.groups[en.Group].opts.Pinned:
		case !isDir:
			e.mu.counters.Superseded++
			parent := e.mu.ix.Parent(id)
			e.dropNameLocked(id, en, BlockRemoved, "superseded", &g)
			if e.remote != nil {
				e.settleLostLocked(parent, &g)
			}
		case e.mu.ix.Children(id) == 0 && !e.shadowedLocked(id):
			if en.Lookups > 0 {
				g.names = append(g.names, goneName{e.mu.ix.Parent(id), id, e.mu.ix.Name(id)})
			}
			e.dropDirLocked(id, en, &g)
		case e.remote == nil || en.Tiers&e.remote.bit == 0:
			en.Seq = e.nextSeqLocked()
			e.dirEventLocked(DirCreated, id)
		}
	}
	e.mu.Unlock()
	e.finish(&g)
}

// Observe raises the number that the next version gets above seq.
func (e *Engine) Observe(seq uint64) {
	e.mu.Lock()
	e.mu.seq = max(e.mu.seq, seq)
	e.mu.Unlock()
}
