package openfile

import (
	"context"
	"errors"
	"os"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
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
func (fl *Files) Create(ctx context.Context, o CreateOptions) (state.Attr, *Handle, error) {
	for tries := 0; ; tries++ {
		a, h, met, err := fl.create(ctx, &o)
		if !met || tries == renameTries || !errors.Is(err, block.ErrNotFound) && !errors.Is(err, state.ErrStale) {
			return a, h, err
		} // else the file that it met is gone meanwhile
	}
}

// create is one try of Create. met: the file existed already.
func (fl *Files) create(ctx context.Context, o *CreateOptions) (a state.Attr, h *Handle, met bool, err error) {
	blob, file, err := fl.memory.CreateFile(ctx, o.By.Waits)
	if err != nil {
		return a, nil, false, err
	}
	var existing index.ID
	var expect int64
	g := fl.NewGone()
	fl.Mu.Lock()
	fl.StoresLocked(o.Parent, o.Name, o.By.Proc(), fl.Now())
	fl.names.DropExpiredLocked(o.Parent, o.Name, g)
	existing, err = fl.findExistingLocked(o, g)
	switch b := fl.Mu.Room.Group(fl.Mu.GroupOf(o.Parent)).Bill(); {
	case err != nil || existing != 0:
	case b.Group.Pinned() && !fl.memory.QuotaLocked(b, catalog.PageBytes, false, g):
		err = block.ErrQuota
	default:
		a, h, expect = fl.createLocked(o, blob)
		h.File.file = file
	}
	fl.Mu.Unlock()
	fl.Finish(g)
	if err != nil || existing != 0 {
		fl.Discard(blob, file)
	}
	switch {
	case err != nil:
		return a, nil, false, err
	case existing != 0:
		a, h, err = fl.openExisting(ctx, existing, o)
		return a, h, true, err
	}
	if fl.Plain.Name(o.Name) {
		expect = 0 // the file is no block
	}
	fl.expect(h, expect)
	return a, h, false, fl.recordPlain(h.File)
}

// findExistingLocked finds the file that a CREATE opens, and counts a reference by the kernel to it.
// It returns 0 if the CREATE is to make the file.
func (fl *Files) findExistingLocked(o *CreateOptions, g *state.Gone) (index.ID, error) {
	if err := fl.names.CheckNewLocked(o.Parent, o.Name); err != nil {
		return 0, err
	}
	id, _ := fl.names.ResolveLocked(o.Parent, o.Name, o.By, g)
	if id == 0 {
		id = fl.Mu.Ix.Lookup(o.Parent, o.Name) // a file that another process hides there
	}
	if id == 0 {
		return 0, nil
	}
	en := fl.Mu.Ix.At(id)
	switch {
	case o.Exclusive:
		return 0, block.ErrExist
	case en.IsDir():
		return 0, block.ErrIsDir
	}
	fl.ApplyLocked(catalog.Referred{ID: id})
	return id, nil
}

// openExisting opens a file that a CREATE met. The kernel did not know of the file.
func (fl *Files) openExisting(ctx context.Context, id index.ID, o *CreateOptions) (state.Attr, *Handle, error) {
	h, err := fl.openWrite(ctx, &writeOpen{id: id, by: o.By, WriteOptions: WriteOptions{Truncate: o.Truncate}, creates: o})
	if err == nil && h.ID() != id {
		fl.Mu.Lock()
		fl.ApplyLocked(catalog.Referred{ID: h.ID()})
		fl.Mu.Unlock()
	}
	if err != nil || h.ID() != id {
		fl.names.Forget(id, 1)
	}
	if err != nil {
		return state.Attr{}, nil, err
	}
	return fl.names.Attr(h.ID()), h, nil
}

// createLocked enters a new file under its name and opens it. It also returns how many bytes to reserve
// for the file.
func (fl *Files) createLocked(o *CreateOptions, blob driver.BlobID) (state.Attr, *Handle, int64) {
	f, en := fl.newLocked(o, blob, &catalog.CreatedFile{Inherit: true})
	fl.seatLocked(f.id, en)
	h := &Handle{File: f, by: o.By.After(), silent: fl.Mu.Kind(en) == draft.Temp}
	f.handles = []*Handle{h}
	fl.ApplyLocked(catalog.Referred{ID: f.id})
	fl.ApplyLocked(catalog.Opened{ID: f.id, N: 1})
	return fl.names.AttrLocked(f.id, en), h, catalog.ChargeOf(fl.Mu.Room.Group(en.Group()).BlockBytes())
}

// newLocked enters a new file under its name, which is free. The file is private. x has what o does not say.
func (fl *Files) newLocked(o *CreateOptions, blob driver.BlobID, x *catalog.CreatedFile) (*File, *index.Entry) {
	now := fl.Now()
	x.Attrs = catalog.Attrs{
		Mode: uint16(state.ModeRegular | o.Mode&0o7777), UID: o.UID, GID: o.GID, Mtime: now, Atime: now, Ctime: now,
	}
	x.Parent, x.Name, x.Blob, x.Cgroup = o.Parent, o.Name, uint64(blob), fl.Mu.Room.OfCgroup(o.By.Cgroup)
	id := fl.ApplyLocked(x).ID
	en := fl.Mu.Ix.At(id)
	f := fl.NewFileLocked(id, en)
	f.owner = o.By.Proc()
	return f, en
}

// seatLocked shows a new file to all processes, unless it is a block. It reports whether the file was private until now.
func (fl *Files) seatLocked(id index.ID, en *index.Entry) bool {
	if en.Committed() || fl.Mu.Kind(en) == draft.Block {
		return false
	}
	fl.ApplyLocked(catalog.Seated{ID: id, Seq: fl.NextSeqLocked()})
	return true
}

// expect reserves the size of the group's blocks. If room cannot be made at once, the daemon sees the
// first byte. That byte waits for room, and only for as much as the file turns out to need.
func (fl *Files) expect(h *Handle, bytes int64) {
	if bytes > 0 && fl.speculate(h.File, bytes) {
		fl.Mu.Lock()
		h.direct, h.File.started = true, true
		fl.Mu.Unlock()
	}
}

// recordPlain writes the record of a file that is never committed, so that a later process adopts the file.
func (fl *Files) recordPlain(f *File) error {
	fl.Mu.Lock()
	plain := fl.Mu.Kind(fl.Mu.Ix.At(f.id)) != draft.Block
	fl.Mu.Unlock()
	if !plain {
		return nil
	}
	return f.withFile(func(file *os.File) error { return fl.WriteRecord(f.id, file) })
}
