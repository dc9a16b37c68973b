package tiers

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/kvfs/kvfs/tiers/event"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
)

// drafts is the room of files that are being written: versions, the names that they wait for, and commits.
type drafts struct {
	*core

	limbo limbo // replaced blocks that can still be opened; guarded by core.mu
}

// ErrStale asks the caller to look the name up again: it means another file to its process. The
// FUSE front answers ESTALE, upon which the kernel repeats the look-up by itself, once.
var ErrStale = errors.New("name must be looked up again")

// File is the write side of one entry. It exists while the entry is open for writing, and after
// that while the entry waits for a rename: for temporary files until they are renamed or removed.
// Package draft has the states and what leads from one to the next. How they show in an entry:
//
//	Seen     linked
//	Hidden   linked, flagUncommitted
//	Waits    File.waits, flagUncommitted
//	Gone     neither linked nor waiting
//
// Its bytes are one file of the primary tier from its first day to its last.
type File struct {
	e  *core
	id index.ID // constant

	// growth serialises what extends the reservation; it is taken before core.mu and may be
	// held while waiting for room.
	growth sync.Mutex

	// ends is held while a handle ends, so that one of them is the last. Before commits.
	ends sync.Mutex

	// commits is held from the look at the bytes until the entry has them, so that no commit takes an
	// older look. Before core.mu and the stripe of attrs.records.
	commits sync.Mutex

	// Guarded by core.mu.
	owner    Process   // whose version it is
	handles  []*Handle // open
	file     *os.File  // the bytes, open for reading and writing; nil: not opened yet, or closed
	users    int       // calls that use file just now
	warm     bool      // a rename may follow soon: file stays open until the next round
	done     bool      // closed with the last of them, for good
	charge   int64     // bytes charged for it: reserved or used, whichever is more
	guessed  int64     // of it, what speculate reserved
	started  bool      // it may have bytes
	wasEmpty bool      // Hidden: all saw it, empty, before
	waits    bool      // for the name
	asked    bool      // Waits: it was closed, and has asked for the name
	left     bool      // its owner died while it wrote it under a shared temporary name
	recorded bool      // not committed, but there is a record of it, which has to go
	name     nameKey   // that, while it waits
	promised uint32    // Waits: thread that was told to look for it, and has yet to open it; else 0
	poisoned error     // a write failed: never commit
	sync     bool      // fsync was called: the commit waits until the block is durable
	synced   int64     // bytes that fsync committed while it was written first
	born     int64     // when it was made, or last closed
	begun    uint64    // commit number when it was made: versions elsewhere up to it are replaced by it
	replaces bool      // it takes the place of another version: those are void even if not known of
}

// Handle is one open of a File for writing.
type Handle struct {
	File   *File
	by     Caller // who opened it
	direct bool   // constant once the handle is given out
	silent bool   // constant: its open made a temporary file, so that no Flush tells of its closes

	// Guarded by core.mu.
	closed bool // its process closed a descriptor and has not written since
	killed bool // the last to close one was being ended by a signal, and may have been its process
}

// Direct reports whether the kernel may write by itself: room is reserved, and the file is not one
// that its first byte hides.
func (h *Handle) Direct() bool { return h.direct }

// Silent reports whether the open has made a temporary file: nobody needs to know of closes.
func (h *Handle) Silent() bool { return h.silent }

// Blob returns the primary file that holds the bytes.
func (h *Handle) Blob() driver.BlobID {
	h.File.e.mu.Lock()
	defer h.File.e.mu.Unlock()
	return driver.BlobID(h.File.e.mu.ix.At(h.File.id).Blob)
}

// ID returns the entry that is being written.
func (h *Handle) ID() index.ID { return h.File.id }

// newFileLocked makes the write side of an entry that has none.
func (e *drafts) newFileLocked(id index.ID, en *index.Entry) *File {
	f := &File{e: e.core, id: id, charge: chargeOf(en.Size), born: e.now(), begun: e.seqNowLocked(), started: en.Size > 0}
	e.mu.files[id] = f
	e.writing.Store(int64(len(e.mu.files)))
	return f
}

// dropFileLocked ends the write side of an entry.
func (e *drafts) dropFileLocked(f *File) {
	delete(e.mu.files, f.id)
	e.writing.Store(int64(len(e.mu.files)))
}

// stateLocked tells package draft of an entry, as the caller's process sees it.
func (e *drafts) stateLocked(id index.ID, en *index.Entry, by *Caller, empty bool) draft.File {
	s := draft.File{Kind: e.kindLocked(en), Place: draft.Seen, Empty: empty}
	f := e.mu.files[id]
	switch {
	case f != nil && f.waits:
		s.Place = draft.Waits
	case !e.mu.ix.Linked(id):
		s.Place = draft.Gone
	case en.Flags&flagUncommitted != 0:
		s.Place = draft.Hidden
	}
	if f != nil {
		s.Mine, s.Busy = f.mineLocked(by), f.busyLocked(by.process())
		if s.Kind == draft.Temp && s.Place == draft.Seen { // it is everybody's: to have made it is nothing
			s.Mine = f.opensLocked(by.process())
		}
	}
	return s
}

// kindLocked is what the name of a file looks like.
func (e *core) kindLocked(en *index.Entry) draft.Kind {
	switch {
	case en.Mode&modeType == modeDir:
		return draft.Block
	case en.Flags&flagPlain != 0 || e.mu.room.Group(en.Group).Pinned():
		return draft.Plain
	case en.Flags&flagTemp != 0:
		return draft.Temp
	}
	return draft.Block
}

// mineLocked reports whether the caller finds f under its name though others do not.
func (f *File) mineLocked(by *Caller) bool {
	if f.promised != 0 {
		return by.Told && f.promisedLocked(by)
	}
	return f.owner == by.process() || f.opensLocked(by.process())
}

// passOnLocked has a temporary file, of which another process makes a version of its own, belong to a process
// that writes it.
func (f *File) passOnLocked() {
	if i := slices.IndexFunc(f.handles, func(h *Handle) bool { return !h.closed }); i >= 0 && !f.opensLocked(f.owner) {
		f.owner = f.handles[i].by.process()
	}
}

// opensLocked reports whether a process has f open for writing.
func (f *File) opensLocked(p Process) bool {
	return slices.ContainsFunc(f.handles, func(h *Handle) bool { return !h.closed && h.by.process() == p })
}

// promisedLocked reports whether f waits for an open by the caller's thread.
func (f *File) promisedLocked(by *Caller) bool {
	return f.promised == max(by.Thread, 1) && f.owner == by.process()
}

// busyLocked reports whether another process than p has f open for writing.
func (f *File) busyLocked(p Process) bool {
	return slices.ContainsFunc(f.handles, func(h *Handle) bool { return !h.closed && h.by.process() != p })
}

// ownerWritesLocked reports whether the owner has f open for writing, besides h.
func (f *File) ownerWritesLocked(h *Handle) bool {
	return slices.ContainsFunc(f.handles, func(o *Handle) bool { return o != h && !o.closed && o.by.process() == f.owner })
}

// actorLocked is a thread of the owner, nobody if it has f not open.
func (f *File) actorLocked() fate.Actor {
	for _, h := range f.handles {
		if h.by.process() == f.owner {
			return h.by.actor()
		}
	}
	return 0
}

// openLocked reports whether somebody has a descriptor to write f by.
func (f *File) openLocked() bool {
	return slices.ContainsFunc(f.handles, func(h *Handle) bool { return !h.closed })
}

// openForWritingLocked reports whether somebody has a descriptor to write an entry by.
func (e *core) openForWritingLocked(id index.ID) bool {
	f := e.mu.files[id]
	return f != nil && f.openLocked()
}

// directLocked reports whether the kernel may write f without the engine seeing it.
func (f *File) directLocked() bool {
	return slices.ContainsFunc(f.handles, func(h *Handle) bool { return h.direct })
}

// WithFile runs fn with the primary file, which stays open meanwhile. It fails with os.ErrClosed if
// the last handle was released, else as fn does.
func (h *Handle) WithFile(fn func(file *os.File) error) error { return h.File.withFile(fn) }

func (f *File) withFile(fn func(file *os.File) error) error {
	f.e.mu.Lock()
	if f.done || f.file == nil && f.e.mu.files[f.id] != f { // the entry may be another's by now
		f.e.mu.Unlock()
		return os.ErrClosed
	}
	f.users++
	file, blob := f.file, driver.BlobID(0)
	if file == nil {
		blob = driver.BlobID(f.e.mu.ix.At(f.id).Blob)
	}
	f.e.mu.Unlock()
	defer f.unuse()
	if file == nil {
		opened, err := f.e.primary.Open(blob)
		if err != nil {
			return err
		}
		f.e.mu.Lock()
		surplus := f.file != nil
		if !surplus {
			f.file = opened
		}
		file = f.file
		f.e.mu.Unlock()
		if surplus {
			opened.Close()
		}
	}
	return fn(file)
}

func (f *File) unuse() {
	f.e.mu.Lock()
	f.users--
	file := f.idleLocked()
	f.e.mu.Unlock()
	if file != nil {
		file.Close()
	}
}

// idleLocked takes the primary file from f if nobody needs it open now. The caller closes it.
func (f *File) idleLocked() (file *os.File) {
	if f.users == 0 && (f.done || len(f.handles) == 0 && !f.warm) {
		file, f.file = f.file, nil
	}
	return file
}

// closeIdle closes the primary file if nobody needs it open now.
func (f *File) closeIdle() {
	f.e.mu.Lock()
	file := f.idleLocked()
	f.e.mu.Unlock()
	if file != nil {
		file.Close()
	}
}

// closeFile closes the primary file for good, or leaves that to the last call that uses it.
func (f *File) closeFile() {
	f.e.mu.Lock()
	f.done = true
	file := f.idleLocked()
	f.e.mu.Unlock()
	if file != nil {
		file.Close()
	}
}

// fstat returns size and time of last write of the bytes.
func (f *File) fstat() (size, mtime int64, err error) {
	err = f.withFile(func(file *os.File) error {
		var st unix.Stat_t
		if err := unix.Fstat(int(file.Fd()), &st); err != nil {
			return os.NewSyscallError("fstat", err)
		}
		size, mtime = st.Size, st.Mtim.Nano()
		return nil
	})
	return size, mtime, err
}

// refresh puts the present size and times into a, which has those of the last commit.
func (f *File) refresh(a *Attr) {
	size, mtime, err := f.fstat()
	if err != nil { // closed meanwhile: the entry has them
		f.e.mu.Lock()
		if f.e.mu.ix.Valid(f.id) {
			en := f.e.mu.ix.At(f.id)
			size, mtime = en.Size, en.Mtime
		}
		f.e.mu.Unlock()
	}
	a.Ctime = max(a.Ctime, mtime)
	a.Size, a.Mtime = size, mtime
}

// empty takes its bytes from a file that nobody has open.
func (f *File) empty() error {
	return f.withFile(func(file *os.File) error { return file.Truncate(0) })
}

// giveUp is empty for a file of which a write has failed, unless somebody has begun anew with it.
func (f *File) giveUp() error {
	f.commits.Lock() // who begins anew empties it under this, too, before it writes
	defer f.commits.Unlock()
	f.e.mu.Lock()
	failed := f.poisoned != nil
	f.e.mu.Unlock()
	if !failed {
		return nil
	}
	return f.empty()
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

// AtEnd is the offset by which WriteAt appends, wherever the end is by then.
const AtEnd = -1

// WriteAt writes all of p at off, reserving the space first. Once it has failed,
// the file can never be committed. It fails with ErrNoSpace, ErrQuota,
// ErrTooLarge, or an error of the file system.
func (h *Handle) WriteAt(ctx context.Context, p []byte, off int64) (int, error) {
	f := h.File
	end := off + int64(len(p))
	if off == AtEnd {
		size, _, err := f.fstat()
		if err != nil {
			return 0, err
		}
		end = size + int64(len(p))
	}
	err := f.prepare(ctx, h, end, len(p) >= f.e.opts.RequestBytes)
	if err == nil {
		h.goesOn()
		n := 0
		err = h.WithFile(func(file *os.File) error {
			return f.e.space.withRoom(ctx, nil, func() error { return writeAll(file, p, off, &n) })
		})
		f.begin(h) // it may have been emptied meanwhile
	}
	if err != nil {
		f.fail(err) // also where the mount ended: an earlier part of the same write may have landed
		return 0, err
	}
	return len(p), nil
}

// writeAll writes p from *n on, and counts on.
func writeAll(file *os.File, p []byte, off int64, n *int) error {
	for *n < len(p) {
		var m int
		var err error
		if off == AtEnd {
			m, err = unix.Pwritev2(int(file.Fd()), [][]byte{p[*n:]}, 0, unix.RWF_APPEND)
		} else {
			m, err = unix.Pwrite(int(file.Fd()), p[*n:], off+int64(*n))
		}
		switch err {
		case nil:
			*n += m
		case unix.EINTR:
		case unix.ENOSPC:
			return block.ErrNoSpace
		default:
			return err
		}
	}
	return nil
}

// closedByLocked notes that a process has closed a descriptor of h. goesOn: it has another one of the file. If that is of
// no handle that is still open, it is a duplicate, of any of them.
func (h *Handle) closedByLocked(p Process, goesOn bool) {
	if h.by.process() != p {
		return
	}
	h.closed = true
	if goesOn && !h.File.opensLocked(p) {
		for _, o := range h.File.handles {
			o.closed = o.closed && o.by.process() != p
		}
	}
}

// goesOn notes that h writes on after a descriptor of it was closed.
func (h *Handle) goesOn() {
	h.File.e.mu.Lock()
	h.closed = false
	h.File.e.mu.Unlock()
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

// prepare makes room for end bytes in f, and hides f if these are its first. more says that
// further bytes will follow: then the first call reserves the size that blocks of the group have, so
// that none of them can fail.
func (f *File) prepare(ctx context.Context, h *Handle, end int64, more bool) error {
	e := f.e
	e.mu.Lock()
	ready := end <= f.charge && (f.started || end == 0)
	e.mu.Unlock()
	if ready {
		return nil
	}
	f.growth.Lock()
	defer f.growth.Unlock()
	e.mu.Lock()
	started := f.started
	if !started && more {
		end = max(end, e.mu.room.Group(e.mu.ix.At(f.id).Group).BlockBytes())
	}
	charge := f.charge
	e.mu.Unlock()
	if want := chargeOf(end) - charge; want > 0 {
		step := min(growStep, e.opts.CapacityBytes/64) &^ (pageBytes - 1)
		if want >= step || !started || !e.space.tryReserve(f, step) {
			if err := e.space.reserve(ctx, f.id, f, want, started); err != nil {
				return err
			}
		}
	}
	if end > 0 {
		f.begin(h)
	}
	return nil
}

// begin notes that f has bytes, or is about to get them, from the process of h.
func (f *File) begin(h *Handle) { f.beginBy(h.by.process()) }

// beginBy is begin for a process; none: nobody knows whose they are, so that the last close commits.
func (f *File) beginBy(p Process) {
	var g gone
	f.e.mu.Lock()
	if !f.started {
		f.e.drafts.startLocked(f, p, &g)
	}
	f.e.mu.Unlock()
	f.e.finish(&g)
}

// reserveTo makes room for end bytes in f.
func (f *File) reserveTo(ctx context.Context, end int64) error {
	f.growth.Lock()
	defer f.growth.Unlock()
	f.e.mu.Lock()
	want, started := chargeOf(end)-f.charge, f.started
	f.e.mu.Unlock()
	return f.e.space.reserve(ctx, f.id, f, want, started)
}

// startLocked follows that f gets its first byte from a process.
func (e *drafts) startLocked(f *File, by Process, g *gone) {
	en := e.mu.ix.At(f.id)
	if !f.started && draft.Hides(e.stateLocked(f.id, en, &Caller{}, true)) {
		f.owner, f.wasEmpty = by, true
		e.attrs.nameLeftLocked(f.id, en, Process{}, g) // for all but its writer
		e.mu.blocks--
		en.Flags |= flagUncommitted
		e.classifyLocked(f.id, en)
		e.tierEventLocked(event.Changed, "", f.id, fate.Cause{Reason: fate.ReasonRewritten})
	}
	f.started = true
}

// catchUp follows that the kernel has written the first bytes of f by itself.
func (f *File) catchUp() {
	f.e.mu.Lock()
	unseen := !f.started && f.directLocked()
	f.e.mu.Unlock()
	if !unseen {
		return
	}
	if size, _, err := f.fstat(); err != nil || size == 0 {
		return
	}
	f.e.mu.Lock()
	writer := f.writerLocked()
	unseen = f.directLocked()
	f.e.mu.Unlock()
	if unseen {
		f.beginBy(writer)
	}
}

// writerLocked returns the process that has f open, none if several have: the kernel writes for all of them.
func (f *File) writerLocked() (p Process) {
	for i, h := range f.handles {
		if q := h.by.process(); i > 0 && q != p {
			return Process{}
		} else {
			p = q
		}
	}
	return p
}

// catchUpLocked is catchUp for the file of an entry, if it is being written. It gives the lock up meanwhile.
func (e *drafts) catchUpLocked(id index.ID) {
	if f := e.mu.files[id]; f != nil && !f.started && f.directLocked() {
		e.mu.Unlock()
		f.catchUp()
		e.mu.Lock()
	}
}
