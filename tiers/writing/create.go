package writing

import (
	"context"
	"errors"
	"os"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// CreateOptions describes a file to be made.
type CreateOptions struct {
	Parent    index.ID
	Name      string
	Mode      uint32 // permission bits
	UID, GID  uint32
	By        state.Caller
	Exclusive bool // O_EXCL: fail with ErrExist if there is a file, also a private one
	Truncate  bool // O_TRUNC
}

// Create makes a file, counts one reference by the kernel, and opens the file for writing. Its own
// process finds a block at once, and others find it from its commit on. All find other files at once.
// If the group's block size is known, Create reserves that much, so that no write can fail for lack of
// space. If the reservation would have to wait, the first byte waits instead, up to WriteTimeout.
//
// If the file exists already, Create opens it as OpenWrite does.
//
// It fails with ErrExist, ErrNotDir, ErrNotFound, ErrReserved, ErrInvalid,
// ErrNameTooLong, ErrQuota (a pinned group is full), or ctx's error.
func (e *opens) Create(ctx context.Context, o CreateOptions) (state.Attr, *Handle, error) {
	for tries := 0; ; tries++ {
		a, h, met, err := e.create(ctx, &o)
		if !met || tries == renameTries || !errors.Is(err, block.ErrNotFound) && !errors.Is(err, state.ErrStale) {
			return a, h, err
		} // else the file that it met is gone meanwhile
	}
}

// create is one try of Create. met: the file existed already.
func (e *opens) create(ctx context.Context, o *CreateOptions) (a state.Attr, h *Handle, met bool, err error) {
	blob, file, err := e.space.CreateFile(ctx, o.By.Waits)
	if err != nil {
		return a, nil, false, err
	}
	var existing index.ID
	var expect int64
	g := e.NewGone()
	e.Mu.Lock()
	e.StoresLocked(o.Parent, o.Name, o.By.Proc(), e.Now())
	e.names.DropExpiredLocked(o.Parent, o.Name, g)
	existing, err = e.findExistingLocked(o)
	b := e.Mu.Room.Group(e.GroupOfLocked(o.Parent)).Bill()
	switch {
	case err != nil || existing != 0:
	case b.Group.Pinned() && !e.space.QuotaLocked(b, state.PageBytes, false, g):
		err = block.ErrQuota
	default:
		a, h, expect = e.createLocked(o, blob)
		h.File.file = file
	}
	e.elsewhere.TellOutdatedLocked(g)
	e.Mu.Unlock()
	e.Finish(g)
	if err != nil || existing != 0 {
		e.Discard(blob, file)
	}
	switch {
	case err != nil:
		return a, nil, false, err
	case existing != 0:
		a, h, err = e.openExisting(ctx, existing, o)
		return a, h, true, err
	}
	if e.Plain.Name(o.Name) {
		expect = 0 // the file is no block
	}
	e.expect(h, expect)
	return a, h, false, e.recordPlain(h.File)
}

// findExistingLocked finds the file that a CREATE opens, and counts a reference by the kernel to it.
// It returns 0 if the CREATE is to make the file.
func (e *opens) findExistingLocked(o *CreateOptions) (index.ID, error) {
	if err := e.names.CheckNewLocked(o.Parent, o.Name); err != nil {
		return 0, err
	}
	id, _ := e.names.ResolveLocked(o.Parent, o.Name, o.By)
	if id == 0 {
		id = e.Mu.Ix.Lookup(o.Parent, o.Name) // a file that another process hides there
	}
	if id == 0 {
		return 0, nil
	}
	en := e.Mu.Ix.At(id)
	switch {
	case o.Exclusive:
		return 0, block.ErrExist
	case en.Mode&state.ModeType == state.ModeDir:
		return 0, block.ErrIsDir
	}
	en.Lookups++
	return id, nil
}

// openExisting opens a file that a CREATE met. The kernel did not know of the file.
func (e *opens) openExisting(ctx context.Context, id index.ID, o *CreateOptions) (state.Attr, *Handle, error) {
	h, err := e.openWrite(ctx, &writeOpen{id: id, by: o.By, WriteOptions: WriteOptions{Truncate: o.Truncate}, creates: o})
	if err == nil && h.ID() != id {
		e.Mu.Lock()
		e.Mu.Ix.At(h.ID()).Lookups++
		e.Mu.Unlock()
	}
	if err != nil || h.ID() != id {
		e.names.Forget(id, 1)
	}
	if err != nil {
		return state.Attr{}, nil, err
	}
	return e.names.Attr(h.ID()), h, nil
}

// createLocked enters a new file under its name and opens it. It also returns how many bytes to reserve
// for the file.
func (e *opens) createLocked(o *CreateOptions, blob driver.BlobID) (state.Attr, *Handle, int64) {
	f, en := e.newLocked(o, blob)
	e.InheritGroupLocked(o.Parent, en)
	e.seatLocked(en)
	h := &Handle{File: f, by: o.By.After(), silent: e.KindLocked(en) == draft.Temp}
	f.handles = []*Handle{h}
	en.Lookups, en.Opens = 1, 1
	e.ClassifyLocked(f.id, en)
	return e.names.AttrLocked(f.id, en), h, state.ChargeOf(e.Mu.Room.Group(en.Group).BlockBytes())
}

// newLocked enters a new file under its name, which is free. The file is private.
func (e *opens) newLocked(o *CreateOptions, blob driver.BlobID) (*File, *index.Entry) {
	ix := e.Mu.Ix
	id := ix.Alloc()
	en := ix.At(id)
	now := e.Now()
	en.Mode, en.UID, en.GID = uint16(state.ModeRegular|o.Mode&0o7777), o.UID, o.GID
	en.Mtime, en.Atime, en.Ctime = now, now, now
	en.Blob = uint64(blob)
	en.Accounts[state.OfCgroup] = e.Mu.Room.OfCgroup(o.By.Cgroup)
	e.EnterGroupLocked(en, e.GroupOfLocked(o.Parent))
	en.Flags = state.FlagUncommitted | e.NameFlagsLocked(o.Parent, o.Name)
	f := e.drafts.NewFileLocked(id, en)
	f.owner = o.By.Proc()
	ix.Link(id, o.Parent, o.Name)
	e.ChangedLocked(o.Parent)
	e.ClassifyLocked(id, en)
	return f, en
}

// seatLocked shows a new file to all processes, unless it is a block. It reports whether the file was private until now.
func (e *opens) seatLocked(en *index.Entry) bool {
	if en.Flags&state.FlagUncommitted == 0 || e.KindLocked(en) == draft.Block {
		return false
	}
	en.Flags &^= state.FlagUncommitted
	en.Seq = e.NextSeqLocked()
	e.RecountLocked(state.Uncounted, state.Resident)
	return true
}

// expect reserves the size of the group's blocks. If room cannot be made at once, the daemon sees the
// first byte. That byte waits for room, and only for as much as the file turns out to need.
func (e *opens) expect(h *Handle, bytes int64) {
	if bytes > 0 && e.speculate(h.File, bytes) {
		e.Mu.Lock()
		h.direct, h.File.started = true, true
		e.Mu.Unlock()
	}
}

// recordPlain writes the record of a file that is never committed, so that a later process adopts the file.
func (e *opens) recordPlain(f *File) error {
	e.Mu.Lock()
	plain := e.KindLocked(e.Mu.Ix.At(f.id)) != draft.Block
	e.Mu.Unlock()
	if !plain {
		return nil
	}
	return f.withFile(func(file *os.File) error { return e.drafts.WriteRecord(f.id, file) })
}
