package tiers

import (
	"context"
	"errors"
	"os"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
)

// CreateOptions describes a file to be made.
type CreateOptions struct {
	Parent    index.ID
	Name      string
	Mode      uint32 // permission bits
	UID, GID  uint32
	By        Caller
	Exclusive bool // O_EXCL: fail with ErrExist if any version of the name is there
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
func (e *opens) Create(ctx context.Context, o CreateOptions) (Attr, *Handle, error) {
	for tries := 0; ; tries++ {
		a, h, met, err := e.create(ctx, &o)
		if !met || tries == renameTries || !errors.Is(err, block.ErrNotFound) && !errors.Is(err, ErrStale) {
			return a, h, err
		} // else the file that it met is gone meanwhile
	}
}

// create is one try of Create. met: the file existed already.
func (e *opens) create(ctx context.Context, o *CreateOptions) (a Attr, h *Handle, met bool, err error) {
	blob, file, err := e.space.createFile(ctx, o.By.Waits)
	if err != nil {
		return a, nil, false, err
	}
	var existing index.ID
	var expect int64
	var g gone
	e.mu.Lock()
	e.drafts.hearNameLocked(o.Parent, o.Name, &o.By)
	e.names.dropExpiredLocked(o.Parent, o.Name, &g)
	existing, err = e.findExistingLocked(o, &g)
	gr := e.mu.room.Group(e.groupOfLocked(o.Parent))
	switch {
	case err != nil || existing != 0:
	case gr.Pinned() && !e.space.quotaLocked(gr, pageBytes, false, &g):
		err = block.ErrQuota
	default:
		a, h, expect = e.createLocked(o, blob)
		h.File.file = file
	}
	e.elsewhere.tellOutdatedLocked(&g)
	e.mu.Unlock()
	e.finish(&g)
	if err != nil || existing != 0 {
		e.discard(blob, file)
	}
	switch {
	case err != nil:
		return a, nil, false, err
	case existing != 0:
		a, h, err = e.openExisting(ctx, existing, o)
		return a, h, true, err
	}
	if e.plain.Name(o.Name) {
		expect = 0 // the file is no block
	}
	e.expect(h, expect)
	return a, h, false, e.recordPlain(h.File)
}

// findExistingLocked finds the file that a CREATE opens, and counts a reference by the kernel to it.
// It returns 0 if the CREATE is to make the file.
func (e *opens) findExistingLocked(o *CreateOptions, g *gone) (index.ID, error) {
	if err := e.names.checkNewLocked(o.Parent, o.Name); err != nil {
		return 0, err
	}
	e.drafts.renounceLocked(nameKey{o.Parent, o.Name}, &o.By, g)
	id, _ := e.names.resolveLocked(o.Parent, o.Name, &o.By)
	if id == 0 {
		id = e.mu.ix.Lookup(o.Parent, o.Name) // a file that another process hides there
	}
	if id == 0 {
		return 0, nil
	}
	en := e.mu.ix.At(id)
	switch {
	case o.Exclusive:
		return 0, block.ErrExist
	case en.Mode&modeType == modeDir:
		return 0, block.ErrIsDir
	}
	en.Lookups++
	return id, nil
}

// openExisting opens a file that a CREATE met. The kernel did not know of the file.
func (e *opens) openExisting(ctx context.Context, id index.ID, o *CreateOptions) (Attr, *Handle, error) {
	h, err := e.openWrite(ctx, &writeOpen{id: id, by: o.By, WriteOptions: WriteOptions{Truncate: o.Truncate}, creates: o})
	if err == nil && h.ID() != id {
		e.mu.Lock()
		e.mu.ix.At(h.ID()).Lookups++
		e.mu.Unlock()
	}
	if err != nil || h.ID() != id {
		e.names.Forget(id, 1)
	}
	if err != nil {
		return Attr{}, nil, err
	}
	return e.names.Attr(h.ID()), h, nil
}

// createLocked enters a new file under its name and opens it. It also returns how many bytes to reserve
// for the file.
func (e *opens) createLocked(o *CreateOptions, blob driver.BlobID) (Attr, *Handle, int64) {
	ix := e.mu.ix
	id := ix.Alloc()
	en := ix.At(id)
	now := e.now()
	en.Mode, en.UID, en.GID = modeRegular|o.Mode&0o7777, o.UID, o.GID
	en.Mtime, en.Atime, en.Ctime = now, now, now
	en.Blob, en.Lookups, en.Opens = uint64(blob), 1, 1
	e.space.enterGroupLocked(en, e.groupOfLocked(o.Parent))
	en.Flags = flagUncommitted | e.nameFlagsLocked(o.Parent, o.Name)
	f := e.drafts.newFileLocked(id, en)
	f.owner = o.By.process()
	h := &Handle{File: f, by: o.By.after(), silent: e.kindLocked(en) == draft.Temp}
	f.handles = []*Handle{h}
	ix.Link(id, o.Parent, o.Name)
	if e.kindLocked(en) != draft.Block {
		en.Flags &^= flagUncommitted
		en.Seq = e.nextSeqLocked()
		e.mu.blocks++
	}
	e.names.changedLocked(o.Parent)
	e.classifyLocked(id, en)
	return e.names.attrLocked(id, en), h, chargeOf(e.mu.room.Group(en.Group).BlockBytes())
}

// expect reserves the size of the group's blocks. If room cannot be made at once, the daemon sees the
// first byte. That byte waits for room, and only for as much as the file turns out to need.
func (e *opens) expect(h *Handle, bytes int64) {
	if bytes > 0 && e.space.speculate(h.File, bytes) {
		e.mu.Lock()
		h.direct, h.File.started = true, true
		e.mu.Unlock()
	}
}

// recordPlain writes the record of a file that is never committed, so that a later process adopts the file.
func (e *opens) recordPlain(f *File) error {
	e.mu.Lock()
	plain := e.kindLocked(e.mu.ix.At(f.id)) != draft.Block
	e.mu.Unlock()
	if !plain {
		return nil
	}
	return f.withFile(func(file *os.File) error { return e.attrs.writeRecord(f.id, file) })
}

func (e *core) discard(blob driver.BlobID, file *os.File) {
	file.Close()
	e.finish(&gone{blobs: []driver.BlobID{blob}})
}

// nameFlagsLocked returns flagTemp and flagPlain as the name of a file demands.
func (e *core) nameFlagsLocked(parent index.ID, name string) (flags uint16) {
	if e.mu.ix.At(parent).Flags&flagTemp != 0 || e.temp.Name(name) {
		flags |= flagTemp
	}
	if e.plain.Name(name) {
		flags |= flagPlain
	}
	return flags
}
