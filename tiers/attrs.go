package tiers

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
)

// attrs is the room of attributes. It sets them, keeps their records in the tiers, and tells kernels of changes.
type attrs struct {
	*core

	records [64]sync.Mutex // by id: orders writers of one record; taken before core.mu
}

// Truncate sets the size of the bytes of h. It reserves room if they grow, and
// fails with ErrNoSpace, ErrQuota or ErrTooLarge.
func (h *Handle) Truncate(ctx context.Context, size int64) error {
	err := h.truncate(ctx, size)
	if err == nil {
		h.File.e.attrs.tellSize(h.File.id, size)
	}
	return err
}

func (h *Handle) truncate(ctx context.Context, size int64) error {
	f := h.File
	if err := f.prepare(ctx, h, size, false); err != nil {
		return err
	}
	err := h.WithFile(func(file *os.File) error {
		defer f.e.tellFreed(file)
		return file.Truncate(size)
	})
	if err == nil {
		f.shrunk(size)
	}
	if err == nil && size == 0 {
		f.emptied()
		if size, _, err := f.fstat(); err == nil && size > 0 { // a process has written meanwhile
			f.begin(h)
		}
	}
	return err
}

// shrunk is called when f has been truncated. What fsync found of a file that is no block yet, or has no bytes now,
// is not there any more if that was more.
func (f *File) shrunk(size int64) {
	f.e.mu.Lock()
	if f.synced > size && (size == 0 || f.e.mu.ix.At(f.id).Flags&flagUncommitted != 0) {
		f.synced = -1
	}
	if f.kept > size {
		f.kept = -1
	}
	f.e.mu.Unlock()
}

// emptied is called when f has lost its bytes in place. The next byte hides f, so from now on no kernel may
// answer a look-up of f by itself.
func (f *File) emptied() {
	var g gone
	f.e.mu.Lock()
	f.started = false
	ix := f.e.mu.ix
	if en := ix.At(f.id); en.Lookups > 0 && draft.Hides(f.e.drafts.stateLocked(f.id, en, &Caller{}, true)) {
		g.names = append(g.names, goneName{parent: ix.Parent(f.id), id: f.id, name: ix.Name(f.id)})
	}
	f.e.mu.Unlock()
	f.e.finish(&g)
}

// Allocate reserves room for length bytes at off, as fallocate(2). The size
// grows to cover them unless keep is set. It fails as Truncate does.
func (h *Handle) Allocate(ctx context.Context, off, length int64, keep bool) error {
	f := h.File
	if keep {
		return f.reserveTo(ctx, off+length)
	}
	if err := f.prepare(ctx, h, off+length, false); err != nil {
		return err
	}
	size, _, err := f.fstat()
	if err != nil || size >= off+length {
		return err
	}
	if err := h.WithFile(func(file *os.File) error { return file.Truncate(off + length) }); err != nil {
		return err
	}
	f.e.attrs.tellSize(f.id, off+length)
	return nil
}

// PunchHole frees the pages of a range and keeps the size, as fallocate(2) with FALLOC_FL_PUNCH_HOLE.
func (h *Handle) PunchHole(_ context.Context, off, length int64) error {
	return h.WithFile(func(file *os.File) error {
		defer h.File.e.tellFreed(file)
		return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, length)
	})
}

// TruncateName sets the size of a file that the caller does not have open for writing, as
// truncate(2). It fails as OpenWrite and Truncate do.
func (e *attrs) TruncateName(ctx context.Context, id index.ID, by Caller, size int64) error {
	h, err := e.opens.OpenWrite(ctx, id, by, WriteOptions{Append: true})
	if err != nil {
		return err
	}
	err = h.truncate(ctx, size) // the commit tells the kernels
	e.drafts.Release(h)
	return err
}

// Change says which attributes SetAttr sets.
type Change struct {
	Mode         *uint32 // permission bits
	UID, GID     *uint32
	Atime, Mtime *int64 // nanoseconds since the epoch
}

// SetAttr changes attributes. Setting the time of last access marks the block as recently used.
// Other nodes do not learn of the other changes. So SetAttr first promotes a block that only other nodes
// have, and waits for that. It fails as the promotion does, or with ErrNoSpace.
func (e *attrs) SetAttr(id index.ID, c Change) (Attr, error) {
	record := c.Mode != nil || c.UID != nil || c.GID != nil || c.Mtime != nil
	if record {
		done, err := e.makeOwn("setattr", id)
		if err != nil {
			return Attr{}, err
		}
		defer done()
	}
	e.mu.Lock()
	en := e.mu.ix.At(id)
	e.changeLocked(id, en, &c)
	isDir := en.Mode&modeType == modeDir
	blob, f := driver.BlobID(en.Blob), e.mu.files[id]
	onFile := c.Mtime != nil && !isDir && !e.hollowLocked(id, en)
	if c.Mtime != nil && !onFile {
		en.Mtime = *c.Mtime
	}
	e.mu.Unlock()
	var err error
	if onFile {
		err = e.setMtime(id, f, blob, *c.Mtime)
	}
	if record {
		e.tellAttrs(id)
	}
	if err == nil && record {
		err = e.writeRecord(id, nil)
		e.recordCopies(id)
		if isDir {
			e.recordCopiesBelow(id)
		}
	}
	return e.names.Attr(id), err
}

// changeLocked makes the changes of c to an entry, but for the time of modification. A new owner takes the setuid and
// setgid bits away, unless c sets the mode, too.
func (e *attrs) changeLocked(id index.ID, en *index.Entry, c *Change) {
	if c.Mode != nil {
		en.Mode = en.Mode&modeType | *c.Mode&0o7777
	} else if (c.UID != nil || c.GID != nil) && en.Mode&modeType == modeRegular {
		en.Mode &^= unix.S_ISUID
		if en.Mode&unix.S_IXGRP != 0 {
			en.Mode &^= unix.S_ISGID
		}
	}
	if c.UID != nil {
		en.UID = *c.UID
	}
	if c.GID != nil {
		en.GID = *c.GID
	}
	if c.Atime != nil {
		en.Atime = *c.Atime
		if en.Flags&flagPolicy != 0 {
			e.mu.room.Order(en.Group).Touch(uint32(id))
		}
	}
	en.Ctime = e.now()
}

// makeOwn gets a block or directory that only others have for this node, too. The block stays in
// memory until done is called. It waits for one promotion at most, that is up to PromoteTimeout.
func (e *attrs) makeOwn(op string, id index.ID) (done func(), err error) {
	done = func() {}
	for tries := 0; e.remote != nil; tries++ {
		e.mu.Lock()
		en := e.mu.ix.At(id)
		linked, far := e.mu.ix.Linked(id), e.farLocked(id, en)
		if linked && en.Mode&modeType == modeDir && en.Tiers&e.remote.bit != 0 {
			e.elsewhere.ownDirLocked(id, en)
			e.elsewhere.ownDirsLocked(id)
		}
		e.mu.Unlock()
		if !far {
			break
		}
		switch err := e.loads.promote(e.ctx, nil, id, false); {
		case err == nil:
			return func() { e.opens.CloseRead(id) }, nil
		case !errors.Is(err, ErrStale) || tries == renameTries: // else it is here or gone: the next try shows it
			return done, bringError(op, err)
		}
	}
	return done, nil
}

// setHollowMtime sets the time of a block that has left memory. It returns false if the
// block is gone, or back in memory.
func (e *attrs) setHollowMtime(id index.ID, ns int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	en := e.mu.ix.At(id)
	if !e.hollowLocked(id, en) {
		return false
	}
	en.Mtime = ns
	return true
}

// setMtime sets the time in the entry and on the primary file, because Adopt compares the two.
func (e *attrs) setMtime(id index.ID, f *File, blob driver.BlobID, ns int64) error {
	set := func(file *os.File) error {
		ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(ns)}
		return os.NewSyscallError("futimens", futimens(int(file.Fd()), ts))
	}
	err := os.ErrClosed
	if f != nil {
		f.commits.Lock() // or a commit that has read the old time already would restore it
		defer f.commits.Unlock()
		err = f.withFile(set)
	}
	if errors.Is(err, os.ErrClosed) { // no handle is open, or none any more
		file, openErr := e.primary.Open(blob)
		if errors.Is(openErr, block.ErrNotFound) && e.setHollowMtime(id, ns) {
			return nil
		}
		if openErr != nil {
			return openErr
		}
		defer file.Close()
		err = set(file)
	}
	if err != nil {
		return err
	}
	e.mu.Lock()
	if f := e.mu.files[id]; f == nil || len(f.handles) == 0 { // else the close of a handle sees the change
		e.mu.ix.At(id).Mtime = ns
	}
	e.mu.Unlock()
	return nil
}

// SetPinned pins a file, so that it is never evicted, or unpins it. It fetches a block that only others have first,
// as SetAttr does. It fails with ErrNotFound for a file that is not committed, and with ErrIsDir for a directory.
func (e *attrs) SetPinned(id index.ID, pinned bool) error {
	return e.change(id, func(en *index.Entry) {
		en.Flags &^= flagPinned
		if pinned {
			en.Flags |= flagPinned
		}
	})
}

// Pinned reports whether a file is pinned, by itself or by its group.
func (e *report) Pinned(id index.ID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	en := e.mu.ix.At(id)
	return en.Flags&flagPinned != 0 || en.Mode&modeType != modeDir && e.mu.room.Group(en.Group).Pinned()
}

// SetTTL sets the time that a file has left to live; 0 means for ever. It fails as SetPinned does.
func (e *attrs) SetTTL(id index.ID, ttl time.Duration) error {
	var at int64
	if ttl > 0 {
		at = e.now() + int64(ttl)
	}
	return e.change(id, func(en *index.Entry) {
		en.Expires = at
		if at != 0 {
			e.mu.expiries.Add(at, id)
		}
	})
}

// TTL returns the time that a file has left to live, 0 if for ever.
func (e *report) TTL(id index.ID) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if at := e.mu.ix.At(id).Expires; at != 0 {
		return max(time.Duration(at-e.now()), 1)
	}
	return 0
}

// change applies fn to a file under the lock and writes the record.
func (e *attrs) change(id index.ID, fn func(en *index.Entry)) error {
	if e.isDir(id) {
		return block.ErrIsDir
	}
	done, err := e.makeOwn("set", id)
	if err != nil {
		return err
	}
	defer done()
	e.mu.Lock()
	en := e.mu.ix.At(id)
	if f := e.mu.files[id]; !e.mu.ix.Linked(id) && (f == nil || !f.waits) {
		e.mu.Unlock()
		return block.ErrNotFound
	}
	fn(en)
	e.classifyLocked(id, en)
	e.mu.Unlock()
	e.recordCopies(id)
	return e.writeRecord(id, nil)
}

func (e *core) isDir(id index.ID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.ix.At(id).Mode&modeType == modeDir
}

// recordCopies has the tiers keep the present attributes of a file, and logs an event for other nodes.
func (e *attrs) recordCopies(id index.ID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if en := e.mu.ix.At(id); e.mu.ix.Linked(id) && en.Mode&modeType == modeDir {
		e.elsewhere.dirEventLocked(event.DirCreated, id)
	} else if e.remote != nil && e.mu.ix.Linked(id) && en.Flags&flagUncommitted == 0 {
		e.tierEventLocked(event.Changed, "", id, fate.Cause{})
	}
	if en := e.mu.ix.At(id); e.mu.ix.Linked(id) && en.Mode&modeType == modeRegular && en.Tiers|en.Storing != 0 {
		e.copies.updateCopiesLocked(id, en, e.keyLocked(id))
	}
}

// recordCopiesBelow has the tiers keep the present attributes of a directory. They
// keep them with every block below it.
func (e *attrs) recordCopiesBelow(dir index.ID) {
	var ids []index.ID
	e.mu.Lock()
	if len(e.tiers) > 0 && e.mu.ix.Linked(dir) {
		e.mu.ix.Descend(dir, func(id index.ID, en *index.Entry) bool {
			if en.Tiers|en.Storing != 0 {
				ids = append(ids, id)
			}
			return true
		})
	}
	e.mu.Unlock()
	for len(ids) > 0 {
		n := min(len(ids), recordBatch)
		e.mu.Lock()
		for _, id := range ids[:n] {
			if e.mu.ix.Valid(id) && e.mu.ix.Linked(id) {
				e.copies.updateCopiesLocked(id, e.mu.ix.At(id), e.keyLocked(id))
			}
		}
		e.mu.Unlock()
		ids = ids[n:]
	}
}

// recordBatch bounds the blocks for which one hold of the lock asks for updates.
const recordBatch = 1024

// Checksum returns the checksum of a committed block. If it is not known yet, Checksum reads the
// whole block. It fails with ErrNotFound, ErrIsDir or ErrPending (the block is being written).
func (e *attrs) Checksum(id index.ID) (block.Checksum, error) {
	e.mu.Lock()
	en := e.mu.ix.At(id)
	blob, seq, size := driver.BlobID(en.Blob), en.Seq, en.Size
	sum := block.Checksum{Sum: en.Sum, Valid: en.Flags&flagSum != 0}
	busy := en.Flags&flagUncommitted != 0 || e.openForWritingLocked(id)
	isDir := en.Mode&modeType == modeDir
	e.mu.Unlock()
	switch {
	case isDir:
		return sum, block.ErrIsDir
	case busy:
		return block.Checksum{}, block.ErrPending
	case sum.Valid:
		return sum, nil
	case blob == 0:
		return sum, block.ErrNotFound
	}
	file, err := e.primary.Open(blob)
	if err != nil {
		return sum, err
	}
	defer file.Close()
	d := block.NewChecksum()
	if _, err := io.Copy(d, io.NewSectionReader(file, 0, size)); err != nil {
		return sum, err
	}
	sum = block.Checksum{Sum: d.Sum64(), Valid: true}
	e.mu.Lock()
	if en := e.mu.ix.At(id); en.Seq == seq && en.Blob == uint64(blob) && en.Flags&flagUncommitted == 0 {
		en.Sum = sum.Sum
		en.Flags |= flagSum
	}
	e.mu.Unlock()
	return sum, e.writeRecord(id, file)
}

// futimens sets the times of an open file; x/sys has only the form with a path.
func futimens(fd int, ts []unix.Timespec) error {
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&ts[0])), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
