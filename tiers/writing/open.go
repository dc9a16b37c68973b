package writing

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/state"
)

// opens is the room of opens and creates. It decides which file a process gets, and whether in place or anew.
type opens struct {
	*core

	touched []index.ID      // blocks read since the tiers were told; guarded by State.Mu
	guessed state.Allowance // bytes that speculate reserved
}

// WriteOptions says how a file is opened for writing.
type WriteOptions struct {
	Truncate bool // O_TRUNC
	Append   bool // O_APPEND: the final size is unknown
}

// OpenWrite opens an existing file for writing. It opens in place, except where Truncate finds a block with bytes:
// then it makes a version of the caller's process, which takes the name when it is committed (package draft). An
// open cannot answer with another file than it was asked for. So OpenWrite then fails with ErrStale, and the next
// look-up by that thread finds the version.
//
// If another tier is copying the file, OpenWrite waits for that, for tornWait at most.
//
// It also fails with ErrIsDir, ErrNotFound, ErrNoSpace, ErrQuota or ctx's error.
func (e *opens) OpenWrite(ctx context.Context, id index.ID, by state.Caller, o WriteOptions) (*Handle, error) {
	return e.openWrite(ctx, &writeOpen{id: id, by: by, WriteOptions: o})
}

// writeOpen is an open for writing.
type writeOpen struct {
	WriteOptions
	id      index.ID
	by      state.Caller
	creates *CreateOptions // not nil: the open may be answered with another file

	empty  bool          // the file has no bytes
	failed bool          // the file could not be brought into memory
	blob   driver.BlobID // an empty file, for a version that may have to be made
	file   *os.File      // the open file of blob; else nil
	used   bool          // the version has been made
}

// openWrite is OpenWrite.
func (e *opens) openWrite(ctx context.Context, o *writeOpen) (*Handle, error) {
	for tries := 0; ; tries++ {
		h, hollow, err := e.tryOpenWrite(ctx, o)
		if err != nil {
			return nil, err
		}
		if !hollow {
			switch err := e.beginWrite(ctx, o, h); {
			case err == nil:
				return h, nil
			case err != errAgain:
				return nil, err
			case tries >= renameTries:
				return nil, state.ErrStale
			}
			continue
		}
		switch err := e.lower.PromoteWithin(ctx, o.by.Waits, o.id, false, state.NoDeadline); {
		case err == nil:
			defer e.CloseRead(o.id) // gives back the pin of promote
		case errors.Is(err, state.ErrStale) && tries < renameTries: // the block may have come up in between
		case o.Truncate && !o.failed && ctx.Err() == nil:
			o.failed = true
		default:
			return nil, state.MissError(err)
		}
	}
}

// tryOpenWrite is openWriteLocked, and makes the file that a version needs. The steps outside the lock remain.
func (e *opens) tryOpenWrite(ctx context.Context, o *writeOpen) (h *Handle, hollow bool, err error) {
	for {
		g := e.NewGone()
		e.Mu.Lock()
		e.drafts.catchUpLocked(o.id)
		e.drafts.hearLocked(o.id, &o.by)
		h, hollow, err = e.openWriteLocked(o, g)
		e.Mu.Unlock()
		e.Finish(g)
		if err != errNeedsFile {
			break
		}
		if o.blob, o.file, err = e.space.CreateFile(ctx, o.by.Waits); err != nil {
			return nil, false, err
		}
	}
	switch {
	case o.file != nil && !o.used:
		e.Discard(o.blob, o.file)
		o.file = nil
	case o.file != nil && err != nil: // the kernel comes back for it
		o.file.Close()
	}
	return h, hollow, err
}

// errNeedsFile says that a version is to be made and has no file yet.
var errNeedsFile = errors.New("a version needs a file")

// BlankLocked reports whether a file has no bytes.
func (e *opens) BlankLocked(id index.ID, en *index.Entry) bool {
	if f := e.fileLocked(id); f != nil {
		return !f.started
	}
	return en.Size == 0
}

// openWriteLocked does what package draft says about an open. hollow says that the block must be promoted first.
func (e *opens) openWriteLocked(o *writeOpen, g *state.Gone) (h *Handle, hollow bool, err error) {
	en := e.Mu.Ix.At(o.id)
	if en.Mode&state.ModeType == state.ModeDir {
		return nil, false, block.ErrIsDir
	}
	o.empty = e.BlankLocked(o.id, en)
	if !o.Truncate && e.promisedLocked(o.id) { // its thread has gone on to something else
		e.drafts.dropLocked(e.fileLocked(o.id), fate.Cause{}, g)
		return nil, false, state.ErrStale
	}
	s := e.drafts.stateLocked(o.id, en, &o.by, o.empty)
	action := o.action(&s, e.HollowLocked(o.id, en), e.Remote != nil && e.FarLocked(o.id, en))
	switch {
	case s.Place == draft.Seen && e.ExpiredLocked(o.id):
		return nil, false, block.ErrNotFound
	case action == draft.LookAgain, s.Place == draft.Gone && (en.Blob == 0 || o.Truncate && e.heirLocked(o.id) != 0):
		return nil, false, e.promiseHeirLocked(o)
	case action == draft.Anew:
		h, err = e.openAnewLocked(o, &s)
		return h, false, err
	case e.HollowLocked(o.id, en):
		return nil, true, nil
	case en.Blob == 0:
		return nil, false, block.ErrNotFound
	}
	return e.openInPlaceLocked(o, en, g), false, nil
}

// action returns what the open of a file in state s does. hollow: not in memory; far: only other nodes have it.
func (o *writeOpen) action(s *draft.File, hollow, far bool) draft.Action {
	action := draft.Access(*s, o.Truncate, o.by.Told)
	if o.creates != nil {
		action = draft.Create(s, false, o.Truncate)
	}
	if o.Truncate && action == draft.InPlace && hollow && (!o.empty || o.failed || far) {
		return draft.Anew // a promotion of bytes that are not wanted would take longer
	}
	return action
}

// openAnewLocked makes a version of a file in state s. It fails with errNeedsFile if o has no file for it, and
// with ErrStale if o cannot be answered with a version.
func (e *opens) openAnewLocked(o *writeOpen, s *draft.File) (*Handle, error) {
	switch {
	case o.by.Told && o.creates == nil:
		return nil, state.ErrStale // its kernel does not come back for a version
	case o.file == nil:
		return nil, errNeedsFile
	}
	k := e.nameLocked(o.id)
	if f := e.fileLocked(o.id); f != nil && f.waits {
		k = f.name
	} else if f != nil && s.Kind == draft.Temp {
		f.passOnLocked()
	}
	h := e.anewLocked(o, o.id, k)
	if h == nil {
		return nil, state.ErrStale
	}
	if s.Place != draft.Seen && !s.Mine { // the name is new to the caller
		en := e.Mu.Ix.At(h.ID())
		en.Mode = uint16(state.ModeRegular | o.creates.Mode&0o7777)
		e.Mu.Ix.SetExpires(h.ID(), 0)
		e.ChownLocked(h.ID(), en, o.creates.UID, o.creates.GID)
		state.Pin(e.State, h.ID(), en, false)
	}
	return h, nil
}

// openInPlaceLocked opens the file that is there.
func (e *opens) openInPlaceLocked(o *writeOpen, en *index.Entry, g *state.Gone) *Handle {
	if en.Flags&state.FlagLimbo != 0 {
		en.Opens++ // so that the file stays
		e.drafts.LeaveLimboLocked(o.id, g)
		en.Opens--
	}
	f := e.fileLocked(o.id)
	if f == nil {
		f = e.drafts.NewFileLocked(o.id, en)
		f.replaces = true
		e.AttrsChangedLocked(o.id, en, g) // its attributes change from now on
	}
	return e.openedLocked(o, f)
}

// anewLocked makes a version of the name k, like base. The version is open if it can answer o. Else it is promised
// to the caller, and the result is nil.
func (e *opens) anewLocked(o *writeOpen, base index.ID, k state.NameKey) *Handle {
	o.used = true
	f := e.drafts.versionLocked(k, base, &o.by, o.blob)
	if o.creates != nil {
		f.file = o.file
		return e.openedLocked(o, f)
	}
	f.promised = max(o.by.Thread, 1)
	return nil
}

// promiseHeirLocked makes a version of the file that has replaced the file that o opens and empties. Without it the
// kernel would be told twice to look again, and it does so only once. Create looks again by itself.
// promiseHeirLocked returns ErrStale.
func (e *opens) promiseHeirLocked(o *writeOpen) error {
	heir := e.heirLocked(o.id)
	k := e.Mu.Formerly[o.id]
	if o.creates != nil || !o.Truncate || o.by.Told || heir == 0 || e.drafts.OwnVersionLocked(k, o.by) != 0 {
		return state.ErrStale
	}
	en := e.Mu.Ix.At(heir)
	if en.Mode&state.ModeType != state.ModeRegular || draft.Access(e.drafts.stateLocked(heir, en, &o.by, e.BlankLocked(heir, en)), true, false) != draft.Anew {
		return state.ErrStale
	}
	if o.file == nil {
		return errNeedsFile
	}
	e.anewLocked(o, heir, k)
	return state.ErrStale
}

// heirLocked returns the file that has replaced the file id, 0 if there is none.
func (e *opens) heirLocked(id index.ID) index.ID {
	k, ok := e.Mu.Formerly[id]
	if !ok || !e.Mu.Ix.Valid(k.Parent) {
		return 0
	}
	return e.Mu.Ix.Lookup(k.Parent, k.Name)
}

// openedLocked adds a handle for o to the handles of f.
func (e *opens) openedLocked(o *writeOpen, f *File) *Handle {
	en := e.Mu.Ix.At(f.id)
	if o.Truncate {
		f.poisoned = nil
		if e.KindLocked(en) == draft.Temp {
			f.owner = o.by.Proc()
		}
	}
	if f.promised != 0 {
		f.promised, f.begun = 0, e.SeqNowLocked()
	}
	f.asked, f.left = false, false
	h := &Handle{File: f, by: o.by.After()}
	h.direct = !o.empty && !o.Append && !o.Truncate && en.Flags&state.FlagPlain == 0 // its bytes have their room already
	f.handles = append(f.handles, h)
	en.Opens++
	e.ClassifyLocked(f.id, en)
	return h
}

// errAgain says that the file has meanwhile lost its name or got another time, or that the version to be emptied has
// become a block that all processes see.
var errAgain = errors.New("the file has changed")

// beginWrite does the steps of an open for writing outside the lock. If it fails, h is released. It fails with
// errAgain if the open has to be decided anew.
func (e *opens) beginWrite(ctx context.Context, o *writeOpen, h *Handle) error {
	err := h.WithFile(func(*os.File) error { return nil }) // open from now on, the file stays even if its name goes
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
		return state.MissError(err)
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
	e.Mu.Lock()
	en := e.Mu.Ix.At(h.ID())
	bytes := state.ChargeOf(e.Mu.Room.Group(en.Group).BlockBytes()) - h.File.charge
	seen := e.KindLocked(en) == draft.Plain || en.Flags&state.FlagUncommitted == 0 && en.Flags&state.FlagTemp == 0
	e.Mu.Unlock()
	if !seen { // else its first byte hides it, or its size is unknown
		e.expect(h, bytes)
	}
	return nil
}

// restart empties the file that h was opened to empty. empty says that the file has no bytes, so that only its time
// of last write changes. restart fails with errAgain if another thread of the process has committed the file
// meanwhile: a block that all processes see keeps its bytes.
func (h *Handle) restart(ctx context.Context, empty bool) error {
	f := h.File
	if empty {
		return h.WithFile(func(file *os.File) error {
			return state.Futimens(int(file.Fd()), []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_NOW}})
		})
	}
	f.commits.Lock()
	defer f.commits.Unlock()
	f.e.Mu.Lock()
	s := f.e.drafts.stateLocked(f.id, f.e.Mu.Ix.At(f.id), &h.by, false)
	f.e.Mu.Unlock()
	if s.Kind == draft.Block && s.Place == draft.Seen {
		return errAgain
	}
	err := h.truncate(ctx, 0)
	if err != nil {
		f.poison(err)
	}
	return err
}

// tornWait is how long an open for writing waits for a copy of the file that another tier is making. A copy that
// takes longer is removed and made again.
const tornWait = 100 * time.Millisecond

// settleCopies waits until other tiers have made their copies of a file. The writer's changes would be half in those
// copies. No more copies are begun, because the file is open.
func (e *opens) settleCopies(ctx context.Context, w state.Waiter, id index.ID) error {
	deadline := time.Now().Add(tornWait)
	for {
		e.Mu.Lock()
		busy := e.copyingLocked(id)
		left := time.Until(deadline)
		done := make(chan error, 1)
		switch {
		case busy != nil && left <= 0:
			busy.Torn = true
		case busy != nil:
			busy.Wait(done)
		}
		e.Mu.Unlock()
		if busy == nil {
			return nil
		}
		if left <= 0 {
			continue
		}
		state.Announce(w)
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

// copyingLocked returns a store of a file that a tier has begun and that is not yet known to be torn, nil if there
// is none.
func (e *opens) copyingLocked(id index.ID) *lane.Store {
	for _, s := range e.Tiers {
		for op := range s.BegunLocked() {
			if op.ID == id && !op.Torn {
				return op
			}
		}
	}
	return nil
}

// OpenBlob opens the primary file of a blob. It fails with ErrNotFound.
func (e *opens) OpenBlob(blob driver.BlobID) (*os.File, error) { return e.Primary.Open(blob) }

// Probe returns an empty file of the primary tier, for trying what the kernel can do with such files, and a function
// that closes and removes the file.
func (e *opens) Probe() (driver.BlobID, *os.File, func(), error) {
	blob, file, err := e.space.CreateFile(e.Ctx, nil)
	if err != nil {
		return 0, nil, nil, err
	}
	return blob, file, func() { e.Discard(blob, file) }, nil
}

// speculate reserves n bytes for f: the size of the other blocks of its group. It
// reports whether it could. All such guesses together take at most half of the
// capacity, so that a few thousand idle handles cannot keep out a real write.
func (e *opens) speculate(f *File, n int64) bool {
	e.Mu.Lock()
	ok := e.guessed.Take(n, e.Opts.CapacityBytes/2)
	if ok {
		f.guessed += n
	}
	e.Mu.Unlock()
	if ok && !e.space.TryReserve(f.id, f, n) {
		e.Mu.Lock()
		e.guessed.Give(n)
		f.guessed -= n
		e.Mu.Unlock()
		return false
	}
	return ok
}
