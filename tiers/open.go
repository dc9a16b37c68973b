package tiers

import (
	"context"
	"errors"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
)

// Opened is a file open for reading.
type Opened struct {
	ID    index.ID
	Blob  BlobID
	Size  int64
	Write *Handle // not nil if the file is being written: read through it
	// Shared: somebody has it open for writing on the same inode, so that the
	// kernel must not open it by itself.
	Shared bool
}

// OpenRead opens a file for reading and pins it until CloseRead. A file that
// another process is writing under its final name is not there yet. It marks the
// block as recently used.
//
// A block that is not in memory is promoted first: OpenRead waits for that, up to
// PromoteTimeout, or, with nonblock set, begins it and fails with ErrPending.
//
// It fails with ErrIsDir; with ErrStale if the name must be looked up again because
// it means something else by now, which then fails with ErrNotFound if the block
// is gone; with ErrNotFound if no tier can give it; with ctx's error.
func (e *Engine) OpenRead(ctx context.Context, id index.ID, tid uint32, nonblock bool) (Opened, error) {
	o, hollow, err := e.openRead(id, tid, true)
	if !hollow {
		return o, err
	}
	return e.openHollow(ctx, id, tid, nonblock)
}

// ErrHollow: the block is in no memory, so that an open has to wait.
var ErrHollow = errors.New("block is not in memory")

// OpenHot is OpenRead for what is in memory. It does not wait; of other blocks it
// says ErrHollow.
func (e *Engine) OpenHot(id index.ID, tid uint32) (Opened, error) {
	o, hollow, err := e.openRead(id, tid, true)
	if hollow {
		return o, ErrHollow
	}
	return o, err
}

// OpenLater is OpenRead for a block of which OpenHot said ErrHollow. It does not wait,
// but calls then when the open can be answered, from any goroutine and possibly
// before it returns; then must not block. Where it succeeds, file is the block's file,
// open until then returns, or nil.
func (e *Engine) OpenLater(id index.ID, tid uint32, then func(o Opened, file *os.File, err error)) {
	deadline, late := e.openDeadline(id)
	if late {
		then(Opened{}, nil, block.ErrNotFound)
		return
	}
	e.promoteLater(id, deadline, func(file *os.File, err error) {
		if errors.Is(err, ErrStale) {
			o, hollow, err := e.openRead(id, tid, true) // it may have come up in between
			if hollow {
				err = ErrStale
			}
			then(o, nil, err)
			return
		}
		if err != nil {
			then(Opened{}, nil, missError(err))
			return
		}
		o, _, err := e.openRead(id, tid, false)
		e.CloseRead(id) // what promoteLater pinned it with
		then(o, file, err)
	})
}

func (e *Engine) openHollow(ctx context.Context, id index.ID, tid uint32, nonblock bool) (Opened, error) {
	deadline, late := noDeadline, false
	if !nonblock { // else nobody waits
		deadline, late = e.openDeadline(id)
	}
	if late {
		return Opened{}, block.ErrNotFound
	}
	err := e.promoteWithin(ctx, id, nonblock, deadline)
	if errors.Is(err, ErrStale) {
		o, hollow, err := e.openRead(id, tid, true) // it may have come up in between
		if hollow {
			err = ErrStale
		}
		return o, err
	}
	if err != nil {
		return Opened{}, missError(err)
	}
	o, _, err := e.openRead(id, tid, false)
	e.CloseRead(id) // what promote pinned it with
	return o, err
}

// openRead is OpenRead for what is in memory; else it reports that the block is
// hollow. hit: it was there without a promotion.
func (e *Engine) openRead(id index.ID, tid uint32, hit bool) (o Opened, hollow bool, err error) {
	e.withNames(tid, func(ow *owners) uint32 {
		hollow = false
		en := e.mu.ix.At(id)
		o, err = Opened{ID: id, Blob: BlobID(en.Blob), Size: en.Size}, nil
		f := e.mu.files[id]
		switch {
		case en.Mode&modeType == modeDir:
			err = block.ErrIsDir
		case en.Flags&flagUncommitted != 0 && f == nil:
			err = ErrStale // given up since the kernel looked it up
		case en.Flags&(flagUncommitted|flagTemp) == flagUncommitted:
			same, known := ow.knows(f.owner)
			if !known {
				return f.owner
			}
			if !same {
				err = ErrStale // the name means another version, or none, to this caller
			}
			if same && f.owner == tid && tid&(1<<threadBits-1) != 0 && f.base != 0 && !f.opened {
				f.forsaken = true // it was made for an open for writing
				if e.outdatedLocked(f, tid) {
					err = ErrStale
				}
			}
		case e.mu.ix.Linked(id) && e.expiredLocked(id):
			err = block.ErrNotFound
		case e.hollowLocked(id, en):
			hollow = true
			return 0
		case en.Blob == 0 && f == nil, !e.mu.ix.Linked(id) && f == nil && en.Opens == 0 && en.Flags&flagLimbo == 0:
			err = ErrStale // replaced or evicted since the kernel looked it up
		case e.lookAgainLocked(id, en, f, tid):
			err = ErrStale
		}
		if err != nil {
			return 0
		}
		if f != nil && f.shared {
			o.Shared = true
		} else if f != nil {
			o.Write = &Handle{File: f, tid: tid, direct: f.direct}
			if f.base != 0 {
				o.Blob = BlobID(e.mu.ix.At(f.base).Blob)
			}
		}
		e.lookedLocked(tid)
		en.Opens++
		en.Atime = e.now()
		e.mu.counters.Opened++
		if en.Opens == 1 {
			e.classifyLocked(id, en)
		}
		if en.Flags&flagPolicy != 0 {
			e.orderLocked(e.mu.groups[en.Group]).Touch(uint32(id))
		}
		e.readLocked(id, en, hit)
		return 0
	})
	if err == nil && o.Write != nil {
		if err = e.attach(o.Write.File, false); err != nil {
			e.CloseRead(id)
		}
	}
	return o, hollow, err
}

// maxTouched bounds the blocks that wait for the tiers to be told that they were
// read. What exceeds it keeps its place in their eviction order.
const maxTouched = 1 << 16

// readLocked follows the open of a block that is in memory: it counts it, and tells the tiers
// below.
func (e *Engine) readLocked(id index.ID, en *index.Entry, hit bool) {
	if hit {
		e.memoryHitLocked(en.Size)
	}
	if len(e.tiers) == 0 {
		return
	}
	if en.Tiers != 0 && en.Flags&flagTouched == 0 && len(e.mu.touched) < maxTouched {
		en.Flags |= flagTouched
		e.mu.touched = append(e.mu.touched, id)
	}
	if en.Flags&flagOnceSeen != 0 { // this is the second time
		en.Flags &^= flagOnceSeen
		e.cascadeLocked(id, en)
	}
}

// tellTouched passes on to the tiers which blocks were read.
func (e *Engine) tellTouched() {
	e.mu.Lock()
	touched := e.mu.touched
	e.mu.touched = nil
	e.mu.Unlock()
	for len(touched) > 0 {
		n := min(len(touched), recordBatch)
		e.tellSome(touched[:n])
		touched = touched[n:]
	}
}

// tellSome passes on to the tiers that some blocks were read.
func (e *Engine) tellSome(ids []index.ID) {
	keys := make([][]block.Key, len(e.tiers))
	e.mu.Lock()
	for _, id := range ids {
		if !e.mu.ix.Valid(id) || e.mu.ix.At(id).Flags&flagTouched == 0 {
			continue
		}
		en := e.mu.ix.At(id)
		en.Flags &^= flagTouched
		if !e.mu.ix.Linked(id) {
			continue
		}
		key := e.keyLocked(id)
		for i, s := range e.tiers {
			if en.Tiers&s.bit != 0 {
				keys[i] = append(keys[i], key)
			}
		}
	}
	e.mu.Unlock()
	for i, s := range e.tiers {
		if len(keys[i]) > 0 {
			s.tier.Touch(keys[i])
		}
	}
}

// CloseRead ends what OpenRead began.
func (e *Engine) CloseRead(id index.ID) {
	var g gone
	e.mu.Lock()
	en := e.mu.ix.At(id)
	en.Opens--
	e.settleLocked(id, en, &g)
	e.mu.Unlock()
	e.finish(&g)
}

// settleLocked follows the close of a handle.
func (e *Engine) settleLocked(id index.ID, en *index.Entry, g *gone) {
	if en.Opens > 0 {
		return
	}
	if f := e.mu.files[id]; f != nil && e.mu.ix.Linked(id) && en.Flags&flagUncommitted == 0 {
		// Committed, and the last handle is closed: the write side ends, and
		// what was reserved beyond the size is free again.
		e.addUsedLocked(en, chargeOf(en.Size)-f.charge)
		delete(e.mu.files, id)
		g.files = append(g.files, f)
		e.cascadeLocked(id, en)
		e.signalSpaceLocked() // it can be evicted now
	} else if f != nil && f.shadow && f.writers == 0 && (f.base != 0 || f.poisoned != nil) {
		if f.poisoned == nil && e.now()-f.promised < promiseGrace {
			return // an open of it may be on its way; else runExpiry takes it
		}
		e.releaseBaseLocked(f, g)
		e.dropShadowLocked(id, g)
		return
	}
	e.classifyLocked(id, en)
	e.reapLocked(id, en, g)
}

// OpenWrite opens an existing file for writing, emptying it first if truncate is
// set.
//
// A committed block is never changed under its readers: the caller's process
// gets a version of its own, which takes the name when it is committed. Where
// that needs an inode of its own, OpenWrite fails with ErrStale, and the next
// look-up by that process finds the version. Without truncate the version shares
// the bytes until the first write (fork.go). In pinned groups, which hold raw
// files, writes go in place.
//
// Other errors: ErrIsDir, ErrNoSpace, ErrQuota, ctx's error.
func (e *Engine) OpenWrite(ctx context.Context, id index.ID, tid uint32, truncate bool) (*Handle, error) {
	return e.openWrite(ctx, id, tid, truncate, 0)
}

// openWrite is OpenWrite for a caller that has held of the file's Opens itself.
func (e *Engine) openWrite(ctx context.Context, id index.ID, tid uint32, truncate bool, held uint32) (*Handle, error) {
	deadline := e.opts.Now().Add(closeGrace)
	for {
		var o writeOpen
		e.withNames(tid, func(ow *owners) uint32 {
			o = writeOpen{id: id, tid: tid, truncate: truncate, held: held, late: !e.opts.Now().Before(deadline)}
			if other, unknown := e.supersededLocked(id, truncate, ow); other || unknown != 0 {
				o.err = ErrStale
				return unknown
			}
			return e.openWriteLocked(&o, ow)
		})
		switch {
		case o.hollow:
			if err := e.promote(ctx, id, false); err != nil {
				return nil, missError(err)
			}
			h, err := e.openWrite(ctx, id, tid, truncate, held+1)
			e.CloseRead(id) // what promote pinned it with
			return h, err
		case o.wait != nil:
			if err := waitSpace(ctx, o.wait, deadline.Sub(e.opts.Now())); err != nil {
				return nil, err
			}
		case o.version != nil:
			// Its bytes must be open before its base can go.
			if err := e.attach(o.version, false); err != nil {
				e.log.Debug("version without bytes", zap.Error(err))
			}
			e.Forget(o.version.id, 1)
			return nil, ErrStale
		case o.err != nil:
			return nil, o.err
		default:
			return e.beginWrite(ctx, &o)
		}
	}
}

// closeGrace bounds the wait for the kernel to release handles that were closed
// already.
const closeGrace = 100 * time.Millisecond

// writeOpen is one attempt to open for writing: what is asked, and, in the order
// in which they count, what came of it.
type writeOpen struct {
	id       index.ID
	tid      uint32
	truncate bool
	held     uint32 // of the file's Opens: the caller's own
	late     bool   // do not wait any more

	hollow  bool            // to be promoted first
	wait    <-chan struct{} // try again after this, or after closeGrace
	version *File           // made for this process, to be looked up
	err     error
	h       *Handle
	expect  int64 // bytes to reserve
}

// openWriteLocked decides how o can be opened.
func (e *Engine) openWriteLocked(o *writeOpen, ow *owners) (unknown uint32) {
	en := e.mu.ix.At(o.id)
	f := e.mu.files[o.id]
	pinned := e.mu.groups[en.Group].opts.Pinned
	uncommitted := en.Flags&flagUncommitted != 0
	isBlock := !uncommitted && en.Size > 0 && e.mu.ix.Linked(o.id) // a committed block
	switch {
	case en.Mode&modeType == modeDir:
		o.err = block.ErrIsDir
		return 0
	case e.hollowLocked(o.id, en) && !o.truncate:
		o.hollow = true
		return 0
	case e.hollowLocked(o.id, en):
		o.version = e.replaceLocked(o.id, o.tid, o.truncate) // its bytes are not wanted
		return 0
	case e.replacedLocked(o, en, f):
		return 0
	case f != nil && f.base != 0 && (f.opened || o.truncate) && f.writers == 0 && en.Opens > 0:
		// Its process wrote nothing yet, or closed it, and still reads it: what it reads is
		// the block, which stays as it is; nor does the kernel take two files for one inode.
		f.forsaken = f.forsaken || !f.opened
		if e.outdatedLocked(f, o.tid) {
			o.err = ErrStale
		} else {
			o.version = e.replaceLocked(f.base, o.tid, o.truncate)
		}
		return 0
	case f != nil && uncommitted && o.truncate && f.base == 0:
		// Each process that starts a file anew gets its own version, so that
		// two of them never mix under one fixed temporary name.
		same, known := ow.knows(f.owner)
		if !known {
			return f.owner
		}
		if !same {
			o.version = e.replaceLocked(o.id, o.tid, o.truncate)
			return 0
		}
	case f != nil && uncommitted && o.truncate && en.Opens == 0:
		f.direct = e.mu.groups[en.Group].expectBytes() > 0
	case isBlock && f != nil && !f.shared && en.Opens == uint32(f.closed) && !o.late:
		o.wait = e.mu.space // closed; the kernel is about to release it
		return 0
	case isBlock && (o.truncate || !pinned && (f != nil && !f.shared || f == nil && en.Opens > o.held)):
		o.version = e.replaceLocked(o.id, o.tid, o.truncate)
		return 0
	case f == nil:
		// On the same inode. Writes go in place in pinned groups, and in an
		// empty file, which prepare hides from others at its first byte.
		f = &File{e: e, id: o.id, owner: o.tid, charge: chargeOf(en.Size), born: e.now(), begun: e.seqNowLocked(), replaces: true}
		f.shared = isBlock && !pinned
		f.direct = en.Size > 0 && !f.shared
		f.started = f.direct
		e.mu.files[o.id] = f
	}
	e.enterWriterLocked(o, en, f)
	return 0
}

// enterWriterLocked counts o among the handles of f.
func (e *Engine) enterWriterLocked(o *writeOpen, en *index.Entry, f *File) {
	if o.truncate {
		f.poisoned = nil
	}
	e.lookedLocked(o.tid)
	en.Opens++
	f.writers++
	f.opened = true
	f.emptied = f.emptied || o.truncate
	if f.shadow {
		e.forsakeLocked(f.name, o.tid)
	}
	e.classifyLocked(o.id, en)
	o.h = &Handle{File: f, Write: true, tid: o.tid, direct: f.direct}
	if f.direct && en.Flags&flagUncommitted != 0 {
		o.expect = chargeOf(e.mu.groups[en.Group].expectBytes()) - f.charge
	}
}

// replacedLocked reports whether o is of what is gone or replaced: its bytes may still have
// readers, or be the base of a version, so nobody may begin to write them.
func (e *Engine) replacedLocked(o *writeOpen, en *index.Entry, f *File) bool {
	switch {
	case en.Blob == 0 && (f == nil || f.base == 0), en.Flags&flagLimbo != 0, f == nil && !e.mu.ix.Linked(o.id):
	case e.lookAgainLocked(o.id, en, f, o.tid):
	default:
		return false
	}
	if heir := e.heirLocked(o.id, en); heir != 0 && o.truncate {
		o.version = e.replaceLocked(heir, o.tid, o.truncate)
	} else {
		o.err = ErrStale
	}
	return true
}

// beginWrite does what an open for writing does outside the lock.
func (e *Engine) beginWrite(ctx context.Context, o *writeOpen) (*Handle, error) {
	err := e.attach(o.h.File, o.truncate)
	if err == nil && o.truncate {
		err = o.h.Truncate(ctx, 0)
	}
	if err == nil {
		err = e.reserve(ctx, o.id, o.h.File, o.expect, false)
	}
	if err != nil {
		o.h.File.poison(err)
		e.Release(o.h)
		return nil, err
	}
	return o.h, nil
}

// replaceLocked makes a shadow that will take id's name, after it is emptied if truncate is
// set. The caller has one reference to it, to be given back with Forget.
func (e *Engine) replaceLocked(id index.ID, tid uint32, truncate bool) *File {
	ix := e.mu.ix
	k := nameKey{ix.Parent(id), ix.Name(id)}
	if of := e.mu.files[id]; of != nil && of.shadow {
		k = of.name
	}
	f := &File{e: e, owner: tid, born: e.now(), begun: e.seqNowLocked(), hidden: truncate}
	f.id = ix.Alloc()
	ne, en := ix.At(f.id), ix.At(id)
	ne.Mode, ne.UID, ne.GID, ne.Group = en.Mode, en.UID, en.GID, en.Group
	ne.Mtime, ne.Atime, ne.Ctime = en.Mtime, en.Atime, en.Ctime
	ne.Size = en.Size // the kernel appends at the size that the look-up tells
	ne.Expires = en.Expires
	ne.Flags = flagUncommitted | en.Flags&(flagTemp|flagPinned)
	e.mu.files[f.id] = f
	e.forsakeLocked(k, tid)
	e.shadowLocked(f, k)
	f.base = id
	en.Opens++ // held until the shadow has its own bytes or goes
	e.classifyLocked(f.id, ne)
	e.classifyLocked(id, en)
	f.promised = f.born
	ne.Lookups = 1
	return f
}

// attach opens the bytes of a File that has none open: its own, its base's, or,
// if it is to start empty, new ones.
func (e *Engine) attach(f *File, truncate bool) error {
	e.mu.Lock()
	ready := e.mu.files[f.id] == f && f.file != nil && !((truncate || f.emptied) && f.base != 0)
	e.mu.Unlock()
	if ready { // without growth: a writer may hold that while it waits for room
		return nil
	}
	f.growth.Lock()
	defer f.growth.Unlock()
	e.mu.Lock()
	if e.mu.files[f.id] != f {
		e.mu.Unlock()
		return ErrStale // given up meanwhile
	}
	have, base := f.file != nil, f.base
	truncate = truncate || f.emptied // whoever comes first
	blob := BlobID(e.mu.ix.At(f.id).Blob)
	if base != 0 {
		blob = BlobID(e.mu.ix.At(base).Blob)
	}
	e.mu.Unlock()
	fresh := truncate && base != 0
	if have && !fresh {
		return nil
	}
	var file *os.File
	var err error
	if fresh {
		blob, file, err = e.primary.Create()
	} else {
		file, err = e.primary.Open(blob)
	}
	if err != nil {
		return err
	}
	var g gone
	e.mu.Lock()
	old := f.swapLocked(file)
	if fresh {
		e.mu.ix.At(f.id).Blob = uint64(blob)
		if !f.shadow && !e.mu.ix.Linked(f.id) {
			g.blobs = append(g.blobs, blob) // removed while open: the file goes with its last handle
		}
		e.releaseBaseLocked(f, &g)
	}
	e.mu.Unlock()
	closeAll(old)
	e.finish(&g)
	return nil
}

// OpenBlob opens the primary file of a blob. It fails with ErrNotFound.
func (e *Engine) OpenBlob(blob BlobID) (*os.File, error) { return e.primary.Open(blob) }

// Probe returns an empty file of the primary tier, to try on it what the kernel
// can do with such files, and a function that removes it.
func (e *Engine) Probe() (*os.File, func(), error) {
	blob, file, err := e.primary.Create()
	if err != nil {
		return nil, nil, err
	}
	return file, func() { e.discard(blob, file) }, nil
}
