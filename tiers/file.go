package tiers

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
)

// ErrStale asks the caller to look the name up again: its process now has a
// version of its own there. The FUSE front answers ESTALE, upon which the kernel
// repeats the look-up by itself.
var ErrStale = errors.New("name must be looked up again")

// File is the write side of one entry: it exists from the first open for
// writing until the last such handle is closed, and for temporary files until
// they are renamed or removed.
//
// States of an entry that has a File:
//
//	uncommitted, linked   a new file; others do not see it unless its name is temporary
//	uncommitted, shadow   a new version of a name that another entry still holds
//	alias                 a shadow that shares the bytes of its base until the first write;
//	                      outdated: the base has lost the name, which means no alias then
//	shared                committed, linked: like an alias, but on the block's own inode (fork.go)
//	committed, linked     renamed or flushed while handles for writing remain
//	unlinked              removed while open
type File struct {
	e  *Engine
	id index.ID // constant

	// growth serialises what replaces file or extends the reservation; it is
	// taken before Engine.mu and may be held while waiting for room.
	growth sync.Mutex

	// Guarded by Engine.mu; file and base change under growth too.
	direct   bool     // writes may go to the file without passing WriteAt; constant while handles exist
	file     *os.File // the bytes, open for reading and writing; of the base while an alias
	base     index.ID // alias: the entry that the bytes belong to; else 0
	owner    uint32   // thread that created this version
	charge   int64    // bytes charged for it: reserved or used, whichever is more
	guessed  int64    // of it, what speculate reserved
	writers  int      // open handles for writing
	closed   int      // of them, those whose process closed a descriptor and has not written since
	opened   bool     // alias: has been open for writing
	emptied  bool     // alias: opened to start empty, so nobody may be given the bytes of the base any more
	hidden   bool     // alias: made to be emptied; until then only its owner is shown it
	forsaken bool     // alias: its owner has gone on to something else before it was open
	shared   bool     // works on a committed block, until the first write
	shadow   bool
	name     nameKey    // shadow: the name it will take
	promised int64      // shadow: when a look-up last told the kernel about it
	poisoned error      // a write failed: never commit
	users    int        // moments of use without a handle; see useLocked
	done     bool       // closed with the last of them
	retired  []*os.File // replaced while in use: closed with the last of them
	started  bool       // bytes were accepted
	sync     bool       // fsync was called: the commit waits until the block is durable
	born     int64      // when it was made, or last closed
	begun    uint64     // commit number when it was made: versions elsewhere up to it are replaced by it
	replaces bool       // it takes the place of another version: those are void even if not known of
}

// Handle is one open of a File for writing, or for reading while it is being
// written.
type Handle struct {
	File   *File
	Write  bool
	tid    uint32 // thread that opened it
	direct bool   // constant once the handle is given out

	// Guarded by Engine.mu.
	closed bool // its process closed a descriptor and has not written since
	killed bool // the last to close one was being ended by a signal, and may have been its process
}

// Direct reports whether reads and writes may go straight to the primary file:
// its space is reserved, and all handles agree.
func (h *Handle) Direct() bool { return h.direct }

// Blob returns the primary file that holds the bytes now.
func (h *Handle) Blob() BlobID {
	h.File.e.mu.Lock()
	defer h.File.e.mu.Unlock()
	return h.File.blobLocked()
}

func (f *File) blobLocked() BlobID {
	id := f.id
	if f.base != 0 {
		id = f.base
	}
	return BlobID(f.e.mu.ix.At(id).Blob)
}

// WithBlob is WithFile, and tells which blob the file is: another may take its place as soon
// as it is known.
func (h *Handle) WithBlob(fn func(blob BlobID, file *os.File) error) error {
	h.File.e.mu.Lock()
	file, blob := h.File.useLocked(), h.File.blobLocked()
	h.File.e.mu.Unlock()
	if file == nil {
		return os.ErrClosed
	}
	defer h.File.unuse()
	return fn(blob, file)
}

// WithFile runs fn with the primary file, which stays open meanwhile. It fails
// with os.ErrClosed if the handle was released, else as fn does.
func (h *Handle) WithFile(fn func(file *os.File) error) error {
	h.File.e.mu.Lock()
	file := h.File.useLocked()
	h.File.e.mu.Unlock()
	if file == nil {
		return os.ErrClosed
	}
	defer h.File.unuse()
	return fn(file)
}

// CreateOptions describes a file to be made.
type CreateOptions struct {
	Parent    index.ID
	Name      string
	Mode      uint32 // permission bits
	UID, GID  uint32
	TID       uint32 // thread that asks
	Exclusive bool   // O_EXCL: fail with ErrExist if any version of the name is there
	Truncate  bool   // O_TRUNC
}

// Create makes a file that its own process sees at once and others from its
// commit on, counts one reference by the kernel, and opens it for writing. If
// the group's block size is known, that much is reserved before Create returns,
// so that no write can fail for lack of space. If that would have to wait, the
// first byte waits instead, up to WriteTimeout.
//
// It fails with ErrExist, ErrNotDir, ErrNotFound, ErrReserved, ErrInvalid,
// ErrNameTooLong, ErrQuota (a pinned group is full), or ctx's error.
func (e *Engine) Create(ctx context.Context, o CreateOptions) (Attr, *Handle, error) {
	blob, file, err := e.primary.Create()
	if err != nil {
		return Attr{}, nil, err
	}
	f := &File{e: e, file: file, owner: o.TID, born: e.now()}
	var a Attr
	var existing index.ID
	var expect int64
	var g gone
	e.withNames(o.TID, func(ow *owners) uint32 {
		e.dropExpiredLocked(o.Parent, o.Name, &g)
		id, unknown := e.findExistingLocked(&o, ow)
		if unknown != 0 {
			return unknown
		}
		if err = e.checkNewLocked(o.Parent, o.Name); err == nil && id != 0 {
			existing, err = id, e.takeExistingLocked(id, &o)
			return 0
		}
		if err != nil {
			return 0
		}
		gr := e.mu.groups[e.groupOfLocked(o.Parent, o.Name)]
		if ok, _ := e.quotaLocked(gr, pageBytes, false, &g); !ok && gr.opts.Pinned {
			err = block.ErrQuota
		} else {
			a, expect = e.createLocked(f, blob, &o)
		}
		return 0
	})
	e.finish(&g)
	if err != nil || existing != 0 {
		e.discard(blob, file)
	}
	switch {
	case err != nil:
		return Attr{}, nil, err
	case existing != 0:
		return e.openExisting(ctx, existing, &o)
	}
	h := &Handle{File: f, Write: true, tid: o.TID}
	// If room cannot be made at once, the daemon sees the first byte and waits
	// there, for no more than the file turns out to need.
	if expect > 0 && e.speculate(f, expect) {
		e.mu.Lock()
		if e.mu.ix.At(f.id).Opens == 1 { // all handles of a version agree
			f.direct, h.direct = true, true
		}
		e.mu.Unlock()
	}
	return a, h, nil
}

// findExistingLocked finds what a CREATE meets: the caller's own view of the name,
// or, unless it is to start anew, what another process is writing there.
func (e *Engine) findExistingLocked(o *CreateOptions, ow *owners) (id index.ID, unknown uint32) {
	id, _, unknown = e.resolveLocked(o.Parent, o.Name, ow)
	if id != 0 || unknown != 0 || o.Truncate && !o.Exclusive {
		return id, unknown
	}
	return e.mu.ix.Lookup(o.Parent, o.Name), 0
}

// takeExistingLocked counts a reference by the kernel to what a CREATE met.
func (e *Engine) takeExistingLocked(id index.ID, o *CreateOptions) error {
	en := e.mu.ix.At(id)
	switch {
	case o.Exclusive:
		return block.ErrExist
	case en.Mode&modeType == modeDir:
		return block.ErrIsDir
	}
	en.Lookups++
	return nil
}

// openExisting opens what a CREATE met: the kernel did not know of it.
func (e *Engine) openExisting(ctx context.Context, id index.ID, o *CreateOptions) (Attr, *Handle, error) {
	h, err := e.OpenWrite(ctx, id, o.TID, o.Truncate)
	if err != nil {
		e.Forget(id, 1)
		return Attr{}, nil, err
	}
	return e.Attr(id), h, nil
}

// createLocked enters a new uncommitted file under its name, or as a shadow if
// another entry holds that, and returns how much to reserve for it.
func (e *Engine) createLocked(f *File, blob BlobID, o *CreateOptions) (Attr, int64) {
	ix := e.mu.ix
	f.id = ix.Alloc()
	en := ix.At(f.id)
	now := e.now()
	en.Mode, en.UID, en.GID = modeRegular|o.Mode&0o7777, o.UID, o.GID
	en.Mtime, en.Atime, en.Ctime = now, now, now
	en.Blob, en.Lookups, en.Opens = uint64(blob), 1, 1
	en.Group = e.groupOfLocked(o.Parent, o.Name)
	en.Flags = flagUncommitted
	if e.isTempLocked(o.Parent, o.Name) {
		en.Flags |= flagTemp
	}
	f.writers, f.begun = 1, e.seqNowLocked()
	e.mu.files[f.id] = f
	if ix.Lookup(o.Parent, o.Name) == 0 {
		ix.Link(f.id, o.Parent, o.Name)
		e.changedLocked(o.Parent)
	} else {
		e.shadowLocked(f, nameKey{o.Parent, o.Name})
	}
	e.classifyLocked(f.id, en)
	expect := chargeOf(e.mu.groups[en.Group].expectBytes())
	a := e.attrLocked(f.id, en)
	if len(e.mu.shadows) > 0 && len(e.mu.shadows[nameKey{o.Parent, o.Name}]) > 0 {
		a.Stable = false
	}
	return a, expect
}

func (e *Engine) discard(blob BlobID, file *os.File) {
	file.Close()
	e.finish(&gone{blobs: []BlobID{blob}})
}

// isTempLocked reports whether a file of that name in parent is temporary.
func (e *Engine) isTempLocked(parent index.ID, name string) bool {
	return e.mu.ix.At(parent).Flags&flagTemp != 0 || e.temp.name(name)
}

// shadowLocked makes f wait to take the name from whoever holds it.
func (e *Engine) shadowLocked(f *File, k nameKey) {
	f.shadow, f.name = true, k
	e.mu.shadows[k] = append(e.mu.shadows[k], f.id)
}

// unshadowLocked takes f off the list of those that wait for a name.
func (e *Engine) unshadowLocked(f *File) {
	ids := e.mu.shadows[f.name]
	for i, id := range ids {
		if id == f.id {
			ids = append(ids[:i], ids[i+1:]...)
			break
		}
	}
	if len(ids) == 0 {
		delete(e.mu.shadows, f.name)
	} else {
		e.mu.shadows[f.name] = ids
	}
	f.shadow = false
}

// dropShadowLocked gives up a version that will never take its name.
func (e *Engine) dropShadowLocked(id index.ID, g *gone) {
	f := e.mu.files[id]
	e.unshadowLocked(f)
	if dir := f.name.parent; e.mu.ix.Valid(dir) {
		e.strayLocked(dir, e.mu.ix.At(dir))
	}
	e.dropNameLocked(id, e.mu.ix.At(id), BlockRemoved, "", g)
}

// fstat returns size and time of last write of the bytes.
func (f *File) fstat() (size, mtime int64, err error) {
	f.e.mu.Lock()
	file := f.useLocked()
	f.e.mu.Unlock()
	if file == nil {
		return 0, 0, os.ErrClosed
	}
	defer f.unuse()
	fi, err := file.Stat()
	if err != nil {
		return 0, 0, err
	}
	return fi.Size(), fi.ModTime().UnixNano(), nil
}

// refresh puts the present size and times into a.
func (f *File) refresh(a *Attr) {
	if size, mtime, err := f.fstat(); err == nil {
		if mtime > a.Ctime {
			a.Ctime = mtime
		}
		a.Size, a.Mtime = size, mtime
	}
}

// empty gives up the bytes of a file that nobody has open and that can never be
// committed.
func (f *File) empty() {
	f.e.mu.Lock()
	file := f.useLocked()
	f.e.mu.Unlock()
	if file == nil {
		return
	}
	defer f.unuse()
	if err := file.Truncate(0); err != nil {
		f.e.log.Warn("give up a failed write", zap.Error(err))
	}
}

// useLocked returns the primary file for a moment in which the caller holds no
// handle, nil if it is closed. unuse ends that.
func (f *File) useLocked() *os.File {
	if f.file != nil {
		f.users++
	}
	return f.file
}

func (f *File) unuse() {
	f.e.mu.Lock()
	f.users--
	last := f.users == 0 && f.done
	var retired []*os.File
	if f.users == 0 {
		retired, f.retired = f.retired, nil
	}
	f.e.mu.Unlock()
	closeAll(retired)
	if last {
		f.closeFile()
	}
}

// swapLocked makes file the primary file. The caller closes what it returns.
func (f *File) swapLocked(file *os.File) (old []*os.File) {
	if f.file != nil {
		f.retired = append(f.retired, f.file)
	}
	f.file = file
	if f.users == 0 {
		old, f.retired = f.retired, nil
	}
	return old
}

func closeAll(files []*os.File) {
	for _, file := range files {
		file.Close()
	}
}

// closeFile closes the primary file now that nobody has f open, or leaves that to
// the last who uses it for a moment.
func (f *File) closeFile() {
	f.e.mu.Lock()
	f.done = true
	var file *os.File
	if f.users == 0 {
		file, f.file = f.file, nil
	}
	f.e.mu.Unlock()
	if file != nil {
		file.Close()
	}
}

// ReadAt reads from the bytes of h at off, as pread: short only at the end of
// the file.
func (h *Handle) ReadAt(p []byte, off int64) (n int, err error) {
	err = h.WithFile(func(file *os.File) error {
		for n < len(p) {
			m, err := unix.Pread(int(file.Fd()), p[n:], off+int64(n))
			if err == syscall.EINTR {
				continue
			}
			if err != nil || m == 0 {
				return err
			}
			n += m
		}
		return nil
	})
	return n, err
}

// WriteAt writes all of p at off, reserving the space first. Once it has failed,
// the file can never be committed. It fails with ErrNoSpace, ErrQuota,
// ErrTooLarge, or an error of the file system.
func (h *Handle) WriteAt(ctx context.Context, p []byte, off int64) (int, error) {
	f := h.File
	err := f.prepare(ctx, off+int64(len(p)), len(p) >= f.e.opts.RequestBytes)
	if err == nil {
		f.reopened(h)
		err = h.WithFile(func(file *os.File) error { return writeAll(file, p, off) })
	}
	if err != nil {
		f.fail(err) // also where the mount ended: an earlier part of the same write may have landed
		return 0, err
	}
	return len(p), nil
}

func writeAll(file *os.File, p []byte, off int64) error {
	for n := 0; n < len(p); {
		m, err := unix.Pwrite(int(file.Fd()), p[n:], off+int64(n))
		switch err {
		case nil:
			n += m
		case unix.EINTR:
		case unix.ENOSPC:
			return block.ErrNoSpace
		default:
			return err
		}
	}
	return nil
}

// reopened notes that h writes on after a descriptor of it was closed.
func (f *File) reopened(h *Handle) {
	f.e.mu.Lock()
	if h.closed {
		h.closed = false
		f.closed--
	}
	f.e.mu.Unlock()
}

// poison makes sure that f is never committed, unless err only says that the caller
// did not wait.
func (f *File) poison(err error) {
	if !errors.Is(err, context.Canceled) {
		f.fail(err)
	}
}

// fail makes sure that f is never committed.
func (f *File) fail(err error) {
	f.e.mu.Lock()
	if f.poisoned == nil {
		f.poisoned = err
	}
	f.e.mu.Unlock()
}

// growStep is the least by which a reservation of unknown final size grows, so
// that a stream of small writes does not take the lock each time.
const growStep = 1 << 20

// prepare makes f own its bytes and have room for end bytes. more says that
// further bytes will follow: then the first call reserves the size that blocks
// of the group have, so that none of them can fail.
func (f *File) prepare(ctx context.Context, end int64, more bool) error {
	e := f.e
	e.mu.Lock()
	ready := f.base == 0 && !f.shared && end <= f.charge && f.started
	e.mu.Unlock()
	if ready {
		return nil
	}
	f.growth.Lock()
	defer f.growth.Unlock()
	e.mu.Lock()
	base, charge, started, shared := f.base, f.charge, f.started, f.shared
	en := e.mu.ix.At(f.id)
	size := en.Size
	var g gone
	if !started && !shared && en.Flags&flagUncommitted == 0 && end > 0 {
		e.uncommitLocked(f.id, en, &g)
	}
	if !started && more {
		end = max(end, e.mu.groups[en.Group].expectBytes())
	}
	if base != 0 {
		size = e.mu.ix.At(base).Size
	}
	e.mu.Unlock()
	e.finish(&g)
	if base != 0 || shared {
		end = max(end, size)
	}
	if shared {
		charge = 0 // what is charged now stays with the old version
	}
	if want := chargeOf(end) - charge; want > 0 {
		step := min(growStep, e.opts.CapacityBytes/64) &^ (pageBytes - 1)
		if want >= step || !started || !e.tryReserve(f, step) {
			if err := e.reserve(ctx, f.id, f, want, started); err != nil {
				return err
			}
		}
	}
	switch {
	case base != 0:
		if err := f.copyBase(size); err != nil {
			return err
		}
	case shared:
		if err := f.fork(size); err != nil {
			return err
		}
	}
	e.mu.Lock()
	f.started = true
	e.mu.Unlock()
	return nil
}

// uncommitLocked hides an empty file from other processes, because it is about to
// become a block.
func (e *Engine) uncommitLocked(id index.ID, en *index.Entry, g *gone) {
	if e.mu.ix.Linked(id) {
		e.nameLeftLocked(id, en, g) // for all but its writer
		e.mu.blocks--               // else it was counted out with its name
	}
	en.Flags |= flagUncommitted
	e.classifyLocked(id, en)
	if e.mu.ix.Linked(id) {
		e.tierEventLocked(BlockChanged, "", id, "rewritten")
	}
}

// copyBase gives an alias its own bytes. The caller holds growth and has
// reserved size bytes.
func (f *File) copyBase(size int64) error {
	e := f.e
	blob, file, err := f.copyBytes(size)
	if err != nil {
		return err
	}
	var g gone
	e.mu.Lock()
	e.mu.ix.At(f.id).Blob = uint64(blob)
	if !f.shadow && !e.mu.ix.Linked(f.id) {
		g.blobs = append(g.blobs, blob) // removed while open: the file goes with its last handle
	}
	old := f.swapLocked(file)
	e.releaseBaseLocked(f, &g)
	e.mu.Unlock()
	closeAll(old)
	e.finish(&g)
	return nil
}

// copyBytes makes a primary file with the first size bytes of f. The caller holds
// growth, so that f.file stays.
func (f *File) copyBytes(size int64) (BlobID, *os.File, error) {
	e := f.e
	blob, file, err := e.primary.Create()
	if err != nil {
		return 0, nil, err
	}
	e.mu.Lock()
	from := f.useLocked()
	e.mu.Unlock()
	if from == nil {
		e.discard(blob, file)
		return 0, nil, os.ErrClosed
	}
	defer f.unuse()
	if err := copyRange(file, from, size); err != nil {
		e.discard(blob, file)
		return 0, nil, err
	}
	return blob, file, nil
}

// releaseBaseLocked ends the hold of an alias on the entry it shares.
func (e *Engine) releaseBaseLocked(f *File, g *gone) {
	base := f.base
	f.base = 0
	if base == 0 {
		return
	}
	en := e.mu.ix.At(base)
	en.Opens--
	e.classifyLocked(base, en)
	e.reapLocked(base, en, g)
}

// copyRange copies size bytes between two tmpfs files inside the kernel.
func copyRange(dst, src *os.File, size int64) error {
	var from, to int64
	for from < size {
		n, err := unix.CopyFileRange(int(src.Fd()), &from, int(dst.Fd()), &to, int(min(size-from, 1<<30)), 0)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return os.NewSyscallError("copy_file_range", err)
		}
		if n == 0 {
			return nil // the source is shorter: what is missing reads as the hole it was
		}
	}
	return nil
}
