package tiers

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
)

// opens is the room of opens and creates: which file a process gets, in place or anew.
type opens struct {
	*core

	touched []index.ID // read since the tiers were told; guarded by core.mu
}

// Opened is a file open for reading.
type Opened struct {
	ID   index.ID
	Blob driver.BlobID
	Size int64 // bytes; of a file that is being written, those at its last commit
}

// OpenRead opens a file for reading and pins it until CloseRead. It marks the
// block as recently used.
//
// A block that is not in memory is promoted first: OpenRead waits for that, up to
// PromoteTimeout, or, with nonblock set, begins it and fails with ErrPending.
//
// It fails with ErrIsDir; with ErrStale if the name must be looked up again because
// it means something else to the caller, which then fails with ErrNotFound if the block
// is gone; with ErrNotFound if no tier can give it; with ctx's error.
func (e *opens) OpenRead(ctx context.Context, id index.ID, by Caller, nonblock bool) (Opened, error) {
	o, hollow, err := e.openRead(id, by, true)
	if !hollow {
		return o, err
	}
	return e.openHollow(ctx, id, by, nonblock)
}

// ErrHollow: the block is in no memory, so that an open has to wait.
var ErrHollow = errors.New("block is not in memory")

// OpenHot is OpenRead for what is in memory. It does not wait; of other blocks it
// says ErrHollow.
func (e *opens) OpenHot(id index.ID, by Caller) (Opened, error) {
	o, hollow, err := e.openRead(id, by, true)
	if hollow {
		return o, ErrHollow
	}
	return o, err
}

// OpenLater is OpenRead for a block of which OpenHot said ErrHollow. It does not wait,
// but calls then when the open can be answered, from any goroutine and possibly
// before it returns; then must not block. Where it succeeds, file is the block's file,
// open until then returns, or nil.
func (e *opens) OpenLater(id index.ID, by Caller, then func(o Opened, file *os.File, err error)) {
	deadline, late := e.lookups.openDeadline(id)
	if late {
		then(Opened{}, nil, block.ErrNotFound)
		return
	}
	e.loads.promoteLater(id, deadline, func(file *os.File, err error) {
		if errors.Is(err, ErrStale) {
			o, hollow, err := e.openRead(id, by, true) // it may have come up in between
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
		o, _, err := e.openRead(id, by, false)
		e.CloseRead(id) // what promoteLater pinned it with
		then(o, file, err)
	})
}

func (e *opens) openHollow(ctx context.Context, id index.ID, by Caller, nonblock bool) (Opened, error) {
	deadline, late := noDeadline, false
	if !nonblock { // else no caller waits
		deadline, late = e.lookups.openDeadline(id)
	}
	if late {
		return Opened{}, block.ErrNotFound
	}
	err := e.loads.promoteWithin(ctx, by.Waits, id, nonblock, deadline)
	if errors.Is(err, ErrStale) {
		o, hollow, err := e.openRead(id, by, true) // it may have come up in between
		if hollow {
			err = ErrStale
		}
		return o, err
	}
	if err != nil {
		return Opened{}, missError(err)
	}
	o, _, err := e.openRead(id, by, false)
	e.CloseRead(id) // what promote pinned it with
	return o, err
}

// openRead is OpenRead for what is in memory; else it reports that the block is
// hollow. hit: it was there without a promotion.
func (e *opens) openRead(id index.ID, by Caller, hit bool) (o Opened, hollow bool, err error) {
	var g gone
	defer e.finish(&g)
	e.mu.Lock()
	defer e.mu.Unlock()
	en := e.mu.ix.At(id)
	if en.Size == 0 {
		e.drafts.catchUpLocked(id)
		e.drafts.hearLocked(id, &by)
		en = e.mu.ix.At(id)
	}
	linked := e.mu.ix.Linked(id)
	switch {
	case en.Mode&modeType == modeDir:
		return o, false, block.ErrIsDir
	case linked && e.expiredLocked(id):
		return o, false, block.ErrNotFound
	case linked && en.Flags&flagUncommitted == 0 && en.Blob != 0: // the hot path
	case e.hollowLocked(id, en):
		return o, true, nil
	case e.promisedLocked(id): // its thread has gone on to something else
		e.drafts.dropVersionLocked(e.mu.files[id], &g)
		return o, false, ErrStale
	case draft.Access(e.drafts.stateLocked(id, en, &by, false), false, by.Told) == draft.LookAgain:
		return o, false, ErrStale
	case en.Blob == 0:
		return o, false, block.ErrNotFound
	}
	en.Opens++
	en.Atime = e.now()
	e.mu.counters.Opened++
	if en.Opens == 1 {
		e.classifyLocked(id, en)
	}
	if en.Flags&flagPolicy != 0 {
		e.mu.room.Order(en.Group).Touch(uint32(id))
	}
	e.readLocked(id, en, hit)
	return Opened{ID: id, Blob: driver.BlobID(en.Blob), Size: en.Size}, false, nil
}

// promisedLocked reports whether a version waits for an open for writing that has yet to come.
func (e *opens) promisedLocked(id index.ID) bool {
	f := e.mu.files[id]
	return f != nil && f.promised != 0
}

// maxTouched bounds the blocks that wait for the tiers to be told that they were
// read. What exceeds it keeps its place in their eviction order.
const maxTouched = 1 << 16

// readLocked follows the open of a block that is in memory: it counts it, and tells the tiers
// below.
func (e *opens) readLocked(id index.ID, en *index.Entry, hit bool) {
	if hit {
		e.mu.tally.hit(en.Size)
	}
	if len(e.tiers) == 0 {
		return
	}
	if en.Tiers != 0 && en.Flags&flagTouched == 0 && len(e.touched) < maxTouched {
		en.Flags |= flagTouched
		e.touched = append(e.touched, id)
	}
	if en.Flags&flagOnceSeen != 0 { // this is the second time
		en.Flags &^= flagOnceSeen
		e.copies.cascadeLocked(id, en)
	}
}

// tellTouched passes on to the tiers which blocks were read.
func (e *opens) tellTouched() {
	e.mu.Lock()
	touched := e.touched
	e.touched = nil
	e.mu.Unlock()
	for len(touched) > 0 {
		n := min(len(touched), recordBatch)
		e.tellSome(touched[:n])
		touched = touched[n:]
	}
}

// tellSome passes on to the tiers that some blocks were read.
func (e *opens) tellSome(ids []index.ID) {
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
func (e *opens) CloseRead(id index.ID) {
	var g gone
	e.mu.Lock()
	en := e.mu.ix.At(id)
	en.Opens--
	e.closedLocked(id, en, &g)
	e.mu.Unlock()
	e.finish(&g)
}

// closedLocked follows the end of a handle.
func (e *opens) closedLocked(id index.ID, en *index.Entry, g *gone) {
	if en.Opens > 0 {
		return
	}
	e.classifyLocked(id, en)
	e.reapLocked(id, en, g)
}

// WriteOptions says how a file is opened for writing.
type WriteOptions struct {
	Truncate bool // O_TRUNC
	Append   bool // O_APPEND: the size is not known
}

// OpenWrite opens an existing file for writing: in place, or, where Truncate finds a block with
// bytes, as a version of the caller's process that takes the name when it is committed (package
// draft). As an open cannot answer with another file than it was asked for, OpenWrite then fails with
// ErrStale, and the next look-up by that thread finds the version.
//
// A file that is being copied to another tier is waited for, a moment.
//
// Other errors: ErrIsDir, ErrNotFound, ErrNoSpace, ErrQuota, ctx's error.
func (e *opens) OpenWrite(ctx context.Context, id index.ID, by Caller, o WriteOptions) (*Handle, error) {
	return e.openWrite(ctx, &writeOpen{id: id, by: by, WriteOptions: o})
}

// writeOpen is an open for writing.
type writeOpen struct {
	WriteOptions
	id      index.ID
	by      Caller
	creates *CreateOptions // it may be answered with another file; else nil

	empty  bool          // the file has no bytes
	failed bool          // it could not be brought into memory
	blob   driver.BlobID // an empty file, in case that a version has to be made
	file   *os.File      // that; else nil
	used   bool          // it has been made
}

// openWrite is OpenWrite.
func (e *opens) openWrite(ctx context.Context, o *writeOpen) (*Handle, error) {
	for tries := 0; ; tries++ {
		var g gone
		e.mu.Lock()
		e.drafts.catchUpLocked(o.id)
		e.drafts.hearLocked(o.id, &o.by)
		h, hollow, err := e.openWriteLocked(o, &g)
		e.mu.Unlock()
		e.finish(&g)
		switch {
		case err == errNeedsFile:
			if o.blob, o.file, err = e.space.createFile(ctx, o.by.Waits); err == nil {
				continue
			}
		case o.file != nil && !o.used:
			e.discard(o.blob, o.file)
			o.file = nil
		case o.file != nil && err != nil: // the kernel comes back for it
			o.file.Close()
		}
		if err != nil {
			return nil, err
		}
		if !hollow {
			err := e.beginWrite(ctx, o, h)
			switch {
			case err == errAgain && tries < renameTries:
				continue
			case err == errAgain:
				err = ErrStale
			}
			if err != nil {
				return nil, err
			}
			return h, nil
		}
		switch err := e.loads.promote(ctx, o.by.Waits, o.id, false); {
		case err == nil:
			defer e.CloseRead(o.id) // what promote pinned it with
		case errors.Is(err, ErrStale) && tries < renameTries: // it may have come up in between
		case o.Truncate && !o.failed && ctx.Err() == nil:
			o.failed = true
		default:
			return nil, missError(err)
		}
	}
}

// errNeedsFile: a version is to be made, and there is no file for it yet.
var errNeedsFile = errors.New("a version needs a file")

// blankLocked reports whether a file has no bytes.
func (e *opens) blankLocked(id index.ID, en *index.Entry) bool {
	if f := e.mu.files[id]; f != nil {
		return !f.started
	}
	return en.Size == 0
}

// openWriteLocked does what package draft says about an open.
func (e *opens) openWriteLocked(o *writeOpen, g *gone) (h *Handle, hollow bool, err error) {
	en := e.mu.ix.At(o.id)
	if en.Mode&modeType == modeDir {
		return nil, false, block.ErrIsDir
	}
	o.empty = e.blankLocked(o.id, en)
	if !o.Truncate && e.promisedLocked(o.id) { // its thread has gone on to something else
		e.drafts.dropVersionLocked(e.mu.files[o.id], g)
		return nil, false, ErrStale
	}
	s := e.drafts.stateLocked(o.id, en, &o.by, o.empty)
	action := o.action(&s, e.hollowLocked(o.id, en), e.remote != nil && e.farLocked(o.id, en))
	switch {
	case s.Place == draft.Seen && e.expiredLocked(o.id):
		return nil, false, block.ErrNotFound
	case action == draft.LookAgain, s.Place == draft.Gone && (en.Blob == 0 || o.Truncate && e.heirLocked(o.id) != 0):
		return nil, false, e.promiseHeirLocked(o)
	case action == draft.Anew:
		h, err = e.openAnewLocked(o, en, &s)
		return h, false, err
	case e.hollowLocked(o.id, en):
		return nil, true, nil
	case en.Blob == 0:
		return nil, false, block.ErrNotFound
	}
	return e.openInPlaceLocked(o, en, g), false, nil
}

// action returns what the open of a file in state s does. hollow: it is in no memory; far: nor on this node.
func (o *writeOpen) action(s *draft.File, hollow, far bool) draft.Action {
	action := draft.Access(*s, o.Truncate, o.by.Told)
	if o.creates != nil {
		action = draft.Create(s, false, o.Truncate)
	}
	if o.Truncate && action == draft.InPlace && hollow && (!o.empty || o.failed || far) {
		return draft.Anew // to bring up what is not wanted would take longer
	}
	return action
}

// openAnewLocked makes a version of a file in state s. It fails with errNeedsFile if o has no file for it, and
// with ErrStale if o cannot be answered with a version.
func (e *opens) openAnewLocked(o *writeOpen, en *index.Entry, s *draft.File) (*Handle, error) {
	switch {
	case o.by.Told && o.creates == nil:
		return nil, ErrStale // its kernel does not come back for a version
	case o.file == nil:
		return nil, errNeedsFile
	}
	k := nameKey{e.mu.ix.Parent(o.id), e.mu.ix.Name(o.id)}
	if f := e.mu.files[o.id]; f != nil && f.waits {
		k = f.name
	} else if f != nil && s.Kind == draft.Temp {
		f.passOnLocked()
	}
	h := e.anewLocked(o, en, k)
	if h == nil {
		return nil, ErrStale
	}
	if s.Place != draft.Seen && !s.Mine { // to the caller the name is new
		en := e.mu.ix.At(h.ID())
		en.Mode, en.UID, en.GID, en.Expires = modeRegular|o.creates.Mode&0o7777, o.creates.UID, o.creates.GID, 0
		en.Flags &^= flagPinned
	}
	return h, nil
}

// openInPlaceLocked opens the file that is there.
func (e *opens) openInPlaceLocked(o *writeOpen, en *index.Entry, g *gone) *Handle {
	if en.Flags&flagLimbo != 0 {
		en.Opens++ // so that it stays
		e.drafts.leaveLimboLocked(o.id, g)
		en.Opens--
	}
	f := e.mu.files[o.id]
	if f == nil {
		f = e.drafts.newFileLocked(o.id, en)
		f.replaces = true
		e.attrs.attrsChangedLocked(o.id, en, g) // they change from now on
	}
	return e.openedLocked(o, f)
}

// anewLocked makes a version of the name k, like base. It is open if o can be answered with it; else
// it is promised to the caller, and the result is nil.
func (e *opens) anewLocked(o *writeOpen, base *index.Entry, k nameKey) *Handle {
	o.used = true
	f := e.drafts.versionLocked(k, base, &o.by, o.blob)
	if o.creates != nil {
		f.file = o.file
		return e.openedLocked(o, f)
	}
	f.promised = max(o.by.Thread, 1)
	return nil
}

// promiseHeirLocked makes a version of what has replaced the file that is opened to be emptied: else the
// kernel, which looks again only once, would be told to do so twice. Create looks again by itself. It
// returns ErrStale.
func (e *opens) promiseHeirLocked(o *writeOpen) error {
	heir := e.heirLocked(o.id)
	k := e.mu.formerly[o.id]
	if o.creates != nil || !o.Truncate || o.by.Told || heir == 0 || e.drafts.ownVersionLocked(k, &o.by) != 0 {
		return ErrStale
	}
	en := e.mu.ix.At(heir)
	if en.Mode&modeType != modeRegular || draft.Access(e.drafts.stateLocked(heir, en, &o.by, e.blankLocked(heir, en)), true, false) != draft.Anew {
		return ErrStale
	}
	if o.file == nil {
		return errNeedsFile
	}
	e.anewLocked(o, en, k)
	return ErrStale
}

// heirLocked returns what has replaced a file, 0 if nothing has.
func (e *opens) heirLocked(id index.ID) index.ID {
	k, ok := e.mu.formerly[id]
	if !ok || !e.mu.ix.Valid(k.parent) {
		return 0
	}
	return e.mu.ix.Lookup(k.parent, k.name)
}

// openedLocked counts o among the handles of f.
func (e *opens) openedLocked(o *writeOpen, f *File) *Handle {
	en := e.mu.ix.At(f.id)
	if o.Truncate {
		f.poisoned = nil
		if e.kindLocked(en) == draft.Temp {
			f.owner = o.by.process()
		}
	}
	if f.promised != 0 {
		f.promised, f.begun = 0, e.seqNowLocked()
	}
	f.asked, f.left = false, false
	h := &Handle{File: f, by: o.by.after()}
	h.direct = !o.empty && !o.Append && !o.Truncate && en.Flags&flagPlain == 0 // its bytes have their room already
	f.handles = append(f.handles, h)
	en.Opens++
	e.classifyLocked(f.id, en)
	return h
}

// errAgain: meanwhile the file has lost its name, or got another time, or the version that was to be emptied
// has become a block that all see.
var errAgain = errors.New("the file has changed")

// beginWrite does what an open for writing does outside the lock. If it fails, h is released. It fails with
// errAgain if the open has to be decided anew.
func (e *opens) beginWrite(ctx context.Context, o *writeOpen, h *Handle) error {
	err := h.WithFile(func(*os.File) error { return nil }) // opened now, it stays though its name goes
	if errors.Is(err, block.ErrNotFound) {
		err = errAgain
	}
	if err == nil {
		err = e.settleCopies(ctx, o.by.Waits, h.ID())
	}
	if err != nil {
		e.drafts.Release(h)
		if err == errAgain {
			return err
		}
		return missError(err)
	}
	if !o.Truncate {
		return nil
	}
	if h.ID() == o.id {
		if err := h.restart(ctx, o.empty); err != nil {
			e.drafts.Release(h)
			return err
		}
	}
	e.mu.Lock()
	en := e.mu.ix.At(h.ID())
	bytes := chargeOf(e.mu.room.Group(en.Group).BlockBytes()) - h.File.charge
	seen := e.kindLocked(en) == draft.Plain || en.Flags&flagUncommitted == 0 && en.Flags&flagTemp == 0
	e.mu.Unlock()
	if !seen { // else its first byte hides it, or its size is not known
		e.expect(h, bytes)
	}
	return nil
}

// restart empties the file that h has been opened to empty. empty: there was nothing in it, so that only its
// time of last write changes. It fails with errAgain if another thread
// of its process has committed it meanwhile: nothing is taken from a block that all see.
func (h *Handle) restart(ctx context.Context, empty bool) error {
	f := h.File
	if empty {
		return h.WithFile(func(file *os.File) error {
			return futimens(int(file.Fd()), []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_NOW}})
		})
	}
	f.commits.Lock()
	defer f.commits.Unlock()
	f.e.mu.Lock()
	s := f.e.drafts.stateLocked(f.id, f.e.mu.ix.At(f.id), &h.by, false)
	f.e.mu.Unlock()
	if s.Kind == draft.Block && s.Place == draft.Seen {
		return errAgain
	}
	err := h.truncate(ctx, 0)
	if err != nil {
		f.poison(err)
	}
	return err
}

// tornWait is how long an open for writing waits for a copy of the file that another tier is making. One that
// takes longer is removed and made again.
const tornWait = 100 * time.Millisecond

// settleCopies waits until the copies of a file that other tiers are making are made: what its writer
// changes would be half in them. No more are begun, because it is open.
func (e *opens) settleCopies(ctx context.Context, w Waiter, id index.ID) error {
	deadline := time.Now().Add(tornWait)
	for {
		e.mu.Lock()
		busy := e.copyingLocked(id)
		left := time.Until(deadline)
		done := make(chan error, 1)
		switch {
		case busy != nil && left <= 0:
			busy.Torn = true
		case busy != nil:
			busy.Wait(done)
		}
		e.mu.Unlock()
		if busy == nil {
			return nil
		}
		if left <= 0 {
			continue
		}
		announce(w)
		t := time.NewTimer(left)
		select {
		case <-done:
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// copyingLocked returns a store of a file that a tier does, and that has not been found to be torn; nil if there is
// none.
func (e *opens) copyingLocked(id index.ID) *lane.Store {
	for _, s := range e.tiers {
		for op := range s.BegunLocked() {
			if op.ID == id && !op.Torn {
				return op
			}
		}
	}
	return nil
}

// OpenBlob opens the primary file of a blob. It fails with ErrNotFound.
func (e *opens) OpenBlob(blob driver.BlobID) (*os.File, error) { return e.primary.Open(blob) }

// Probe returns an empty file of the primary tier, to try on it what the kernel
// can do with such files, and a function that closes and removes it.
func (e *opens) Probe() (driver.BlobID, *os.File, func(), error) {
	blob, file, err := e.space.createFile(e.ctx, nil)
	if err != nil {
		return 0, nil, nil, err
	}
	return blob, file, func() { e.discard(blob, file) }, nil
}
