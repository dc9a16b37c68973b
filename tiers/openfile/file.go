package openfile

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/memory"
	"github.com/kvfs/kvfs/tiers/names"
	"github.com/kvfs/kvfs/tiers/policy"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/transfer"
)

// Files are the files that processes open, make, rename and remove. All methods may be called in parallel.
type Files struct {
	*state.State
	names    *names.Names
	memory   *memory.Memory
	transfer *transfer.Transfer

	records [64]sync.Mutex  // by id: orders writers of one record; taken before State.Mu
	touched []touch         // blocks read since the tiers were told; guarded by State.Mu
	guessed state.Allowance // bytes that speculate reserved
}

// New returns a Files.
func New(st *state.State, nm *names.Names, mem *memory.Memory, tr *transfer.Transfer) *Files {
	return &Files{State: st, names: nm, memory: mem, transfer: tr}
}

// File is the write side of one entry. It exists while the entry is open for writing. After that it
// exists for a temporary file until that is renamed or removed.
// Package draft has the states and the events between them. How the states show in an entry:
//
//	Seen     linked
//	Private  linked, FlagUncommitted
//	Gone     not linked
//
// The bytes of a File are one file of the primary tier, always the same one.
type File struct {
	catalog.Writing // what it costs; guarded by State.Mu

	e  *Files
	id index.ID // constant

	// growth serialises the calls that extend the reservation. It is taken before State.Mu, and may be
	// held while waiting for room.
	growth sync.Mutex

	// ends is held while a handle ends, so that one handle is the last. It is taken before commits.
	ends sync.Mutex

	// commits is held from the fstat of the bytes until the entry has its result, so that no commit uses
	// an older result. It is taken before State.Mu and the stripe of Files.records.
	commits sync.Mutex

	// Guarded by State.Mu.
	owner    state.Process // the process whose last close commits it
	hidden   bool          // another process renamed it: until it is committed, nobody finds it
	handles  []*Handle     // open
	file     *os.File      // the primary file, open for reading and writing; nil: not opened yet, or closed
	users    int           // calls that use file now
	burst    policy.Burst  // in which its version was committed
	warm     bool          // a rename may follow soon: file stays open until the next expiryTick
	done     bool          // closed for good: the last of users closes file
	guessed  int64         // the part of the charge that speculate reserved
	started  bool          // the file has got bytes, or room for them
	recorded bool          // not committed, but its primary file has a record that must go
	poisoned error         // a write failed: never commit
	emptied  bool          // poisoned, and its bytes are not needed: Settle is to remove them
	sync     bool          // fsync was called: the commit waits until the block is durable
	made     int64         // when the file was made; constant
	born     int64         // when the file was made, or last closed
	begun    uint64        // commit number when it was made: it replaces versions elsewhere up to that number
	replaces bool          // it replaces another version: versions elsewhere up to begun are void even if unknown here
}

// Handle is one open of a File for writing.
type Handle struct {
	File   *File
	by     state.Caller // the caller that opened it
	direct bool         // constant once the handle is given out
	silent bool         // constant: its open made a temporary file, so no Flush reports its closes

	// Guarded by State.Mu.
	closed  bool // its process has closed a descriptor and not written since
	flushed bool // its process has closed a descriptor; as far as writes show, the last one
	killed  bool // a signal was ending the last process to close a descriptor: that may be its process
}

// Direct reports whether the kernel may write by itself: room is reserved.
func (h *Handle) Direct() bool { return h.direct }

// Silent reports whether the open has made a temporary file: the engine need not know of its closes.
func (h *Handle) Silent() bool { return h.silent }

// Blob returns the primary file that holds the bytes.
func (h *Handle) Blob() driver.BlobID {
	h.File.e.Mu.Lock()
	defer h.File.e.Mu.Unlock()
	return driver.BlobID(h.File.e.Mu.Ix.At(h.File.id).Blob())
}

// ID returns the entry of the file.
func (h *Handle) ID() index.ID { return h.File.id }

// NewFileLocked makes the write side of an entry that has none.
func (fl *Files) NewFileLocked(id index.ID, en *index.Entry) *File {
	now := fl.Now()
	f := &File{e: fl, id: id, made: now, born: now, begun: fl.SeqNowLocked(), started: en.Size() > 0}
	fl.AddFileLocked(id, f, &f.Writing)
	return f
}

// fileLocked returns the write side of an entry, nil if it has none.
func (fl *Files) fileLocked(id index.ID) *File {
	f, _ := fl.Mu.Files[id].(*File)
	return f
}

// nameLocked returns the name of an entry, the zero Name if it has none.
func (fl *Files) nameLocked(id index.ID) catalog.Name {
	return catalog.Name{Parent: fl.Mu.Ix.Parent(id), Name: fl.Mu.Ix.Name(id)}
}

// HandlesLocked returns how many handles f has.
func (f *File) HandlesLocked() int { return len(f.handles) }

// stateLocked describes an entry for package draft, as the caller's process sees it.
func (fl *Files) stateLocked(id index.ID, en *index.Entry, by *state.Caller) draft.File {
	s := draft.File{Kind: fl.Mu.Kind(en), Place: draft.Seen, Held: en.Opens() > 0}
	switch {
	case !fl.Mu.Ix.Linked(id):
		s.Place = draft.Gone
	case !en.Committed():
		s.Place = draft.Private
	}
	if f := fl.fileLocked(id); f != nil {
		s.Mine, s.Busy = f.MineLocked(*by), f.busyLocked(by.Proc()) != nil
	}
	return s
}

// MineLocked reports whether the caller finds f under its name although others do not.
func (f *File) MineLocked(by state.Caller) bool {
	return !f.hidden && (f.owner == by.Proc() || f.opensLocked(by.Proc()))
}

// opensLocked reports whether a process has f open for writing.
func (f *File) opensLocked(p state.Process) bool {
	return slices.ContainsFunc(f.handles, func(h *Handle) bool { return !h.closed && h.by.Proc() == p })
}

// busyLocked returns a handle by which another process than p has f open for writing, nil if there is none.
func (f *File) busyLocked(p state.Process) *Handle {
	if i := slices.IndexFunc(f.handles, func(h *Handle) bool { return !h.closed && h.by.Proc() != p }); i >= 0 {
		return f.handles[i]
	}
	return nil
}

// ownerWritesLocked reports whether the owner has f open for writing, besides h.
func (f *File) ownerWritesLocked(h *Handle) bool {
	return slices.ContainsFunc(f.handles, func(o *Handle) bool { return o != h && !o.closed && o.by.Proc() == f.owner })
}

// OpenLocked reports whether any process has a descriptor for writing f.
func (f *File) OpenLocked() bool {
	return slices.ContainsFunc(f.handles, func(h *Handle) bool { return !h.closed })
}

// directLocked reports whether the kernel may write f without the engine seeing it.
func (f *File) directLocked() bool {
	return slices.ContainsFunc(f.handles, func(h *Handle) bool { return h.direct })
}

// WithFile runs fn with the primary file, and keeps the file open meanwhile. It fails with
// os.ErrClosed if the last handle was released, else as fn does.
func (h *Handle) WithFile(fn func(file *os.File) error) error { return h.File.withFile(fn) }

func (f *File) withFile(fn func(file *os.File) error) error {
	f.e.Mu.Lock()
	if f.done || f.file == nil && f.e.fileLocked(f.id) != f { // the entry may belong to another file by now
		f.e.Mu.Unlock()
		return os.ErrClosed
	}
	f.users++
	file, blob := f.file, driver.BlobID(0)
	if file == nil {
		blob = driver.BlobID(f.e.Mu.Ix.At(f.id).Blob())
	}
	f.e.Mu.Unlock()
	defer f.unuse()
	if file == nil {
		opened, err := f.e.Primary.Open(blob)
		if err != nil {
			return err
		}
		f.e.Mu.Lock()
		surplus := f.file != nil
		if !surplus {
			f.file = opened
		}
		file = f.file
		f.e.Mu.Unlock()
		if surplus {
			opened.Close()
		}
	}
	return fn(file)
}

func (f *File) unuse() {
	f.e.Mu.Lock()
	f.users--
	f.unlock()
}

// Settle implements state.WriteSide.
func (f *File) Settle() (err error) {
	f.e.Mu.Lock()
	if f.emptied {
		f.emptied = false
		f.e.Mu.Unlock()
		err = f.giveUp()
		f.e.Mu.Lock()
	}
	f.done = f.done || f.e.Mu.Closed || f.e.fileLocked(f.id) != f
	f.unlock()
	return err
}

// unlock releases State.Mu. Then it closes the primary file if no call and no handle needs it open.
func (f *File) unlock() {
	var file *os.File
	if f.users == 0 && (f.done || len(f.handles) == 0 && !f.warm) {
		file, f.file = f.file, nil
	}
	f.e.Mu.Unlock()
	if file != nil {
		file.Close()
	}
}

// fstat returns the size in bytes and the time of last write (nanoseconds since the epoch) of the primary file.
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

// Refresh returns a, which has the size and times of the last commit, with the present ones.
func (f *File) Refresh(a state.Attr) state.Attr {
	size, mtime, err := f.fstat()
	if err != nil { // closed meanwhile: the entry has them
		f.e.Mu.Lock()
		if f.e.Mu.Ix.Valid(f.id) {
			en := f.e.Mu.Ix.At(f.id)
			size, mtime = en.Size(), en.Mtime()
		}
		f.e.Mu.Unlock()
	}
	a.Ctime = max(a.Ctime, mtime)
	a.Size, a.Mtime = size, mtime
	return a
}

// giveUp empties a file after a failed write, unless a process has begun anew with the file.
func (f *File) giveUp() error {
	f.commits.Lock() // a process that begins anew also empties it under this lock, before it writes
	defer f.commits.Unlock()
	f.e.Mu.Lock()
	failed := f.poisoned != nil
	f.e.Mu.Unlock()
	if !failed {
		return nil
	}
	return f.withFile(func(file *os.File) error { return file.Truncate(0) })
}

// ReadAt reads from the bytes of h at off, as pread does. It reads less than
// len(p) only at the end of the file.
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

// requestBytes is the size of the pieces into which a front cuts long writes. A shorter first piece is the whole write.
const requestBytes = 1 << 20

// AtEnd is the offset with which WriteAt appends, wherever the end is by then.
const AtEnd = -1

// WriteAt writes all of p at off. It reserves the space first, and may wait for it.
// Once it has failed, the file can never be committed. It fails with ErrNoSpace,
// ErrQuota, ErrTooLarge, or an error of the file system.
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
	err := f.prepare(ctx, end, len(p) >= requestBytes)
	if err == nil {
		h.goesOn(true)
		n := 0
		err = h.WithFile(func(file *os.File) error {
			return f.e.memory.WithRoom(ctx, nil, func() error { return writeAll(file, p, off, &n) })
		})
	}
	if err != nil {
		f.fail(err) // also if the mount ended: an earlier part of the same write may be in the file
		return 0, err
	}
	return len(p), nil
}

// writeAll writes p from *n on, and adds the bytes written to *n.
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

// closedByLocked notes that a process has closed a descriptor of h. goesOn: the process has another descriptor of the
// file. If all its handles are closed, that descriptor is a duplicate, of any of them: so all count as open again. Once
// the process has no other descriptor, each of them is closed. A handle that has not been closed yet may be one whose
// open has not returned.
func (h *Handle) closedByLocked(p state.Process, goesOn bool) {
	if h.by.Proc() != p {
		return
	}
	h.closed, h.flushed = true, true
	open := goesOn && !h.File.opensLocked(p)
	for _, o := range h.File.handles {
		if o.by.Proc() == p && o.flushed && (open || !goesOn) {
			o.closed = !open
		}
	}
}

// goesOn notes that a descriptor is left after one of h was closed. wrote: h was written through it, so it is one of h,
// and its close is still to come.
func (h *Handle) goesOn(wrote bool) {
	h.File.e.Mu.Lock()
	h.closed, h.flushed = false, h.flushed && !wrote
	h.File.e.Mu.Unlock()
}

// poison makes sure that f is never committed. An err that only says that the
// caller did not wait changes nothing.
func (f *File) poison(err error) {
	if !errors.Is(err, context.Canceled) {
		f.fail(err)
	}
}

// fail makes sure that f is never committed.
func (f *File) fail(err error) {
	f.e.Mu.Lock()
	if f.poisoned == nil {
		f.poisoned = err
	}
	f.e.Mu.Unlock()
}

// growStep is the smallest growth of a reservation with an unknown final size, in
// bytes, so that a stream of small writes does not take the lock each time.
const growStep = 1 << 20

// prepare makes room for end bytes in f. It may wait for room.
// more: further bytes will follow. Then the first call reserves the size of the group's blocks, so
// that no later write can fail.
func (f *File) prepare(ctx context.Context, end int64, more bool) error {
	e := f.e
	e.Mu.Lock()
	ready := end <= f.Charge() && (f.started || end == 0)
	e.Mu.Unlock()
	if ready {
		return nil
	}
	f.growth.Lock()
	defer f.growth.Unlock()
	e.Mu.Lock()
	started := f.started
	if !started && more {
		end = max(end, e.Mu.Room.Group(e.Mu.Ix.At(f.id).Group()).BlockBytes())
	}
	charge := f.Charge()
	e.Mu.Unlock()
	if want := catalog.ChargeOf(end) - charge; want > 0 {
		step := min(growStep, e.Opts.CapacityBytes/64) &^ (catalog.PageBytes - 1)
		if want >= step || !started || !e.memory.TryReserve(f.id, step) {
			if err := e.memory.Reserve(ctx, f.id, want, started); err != nil {
				return err
			}
		}
	}
	e.Mu.Lock()
	f.started = f.started || end > 0
	e.Mu.Unlock()
	return nil
}

// whole reports whether f is as long as the blocks of its group and has no hole. Then no write of f can have ended
// short, though the engine saw none of them.
func (f *File) whole(size int64) bool {
	f.e.Mu.Lock()
	expected := f.e.Mu.Room.Group(f.e.Mu.Ix.At(f.id).Group()).BlockBytes()
	f.e.Mu.Unlock()
	return size == expected && f.withFile(func(file *os.File) error {
		hole, err := unix.Seek(int(file.Fd()), 0, unix.SEEK_HOLE)
		if err == nil && hole < size {
			err = block.ErrNotFound
		}
		return err
	}) == nil
}
