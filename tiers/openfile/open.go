package openfile

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/transfer"
)

// WriteOptions says how a file is opened for writing.
type WriteOptions struct {
	Truncate bool // O_TRUNC
	Append   bool // O_APPEND: the final size is unknown
}

// OpenWrite opens an existing file for writing. It opens in place, except where Truncate finds a block (package draft).
// If no process has that open, the entry becomes a private file without bytes. Else a new file takes the name. An open
// cannot answer with another file than it was asked for. So OpenWrite then fails with ErrStale, and the next look-up by
// that process finds the new file.
//
// If another tier is copying the file, OpenWrite waits for that, for tornWait at most.
//
// It also fails with ErrIsDir, ErrNotFound, ErrNoSpace, ErrQuota or ctx's error.
func (fl *Files) OpenWrite(ctx context.Context, id index.ID, by state.Caller, o WriteOptions) (*Handle, error) {
	return fl.openWrite(ctx, &writeOpen{id: id, by: by, WriteOptions: o})
}

// writeOpen is an open for writing.
type writeOpen struct {
	WriteOptions
	id      index.ID
	by      state.Caller
	creates *CreateOptions // not nil: the open may be answered with another file

	blob driver.BlobID // an empty file, for a file that may have to be made
	file *os.File      // the open file of blob; else nil
	used bool          // the file has been made
}

// openWrite is OpenWrite.
func (fl *Files) openWrite(ctx context.Context, o *writeOpen) (*Handle, error) {
	for tries := 0; ; tries++ {
		h, nonresident, err := fl.tryOpenWrite(ctx, o)
		if err != nil {
			return nil, err
		}
		if !nonresident {
			switch err := fl.beginWrite(ctx, o, h); {
			case err == nil:
				return h, nil
			case err != errAgain:
				return nil, err
			case tries >= renameTries:
				return nil, state.ErrStale
			}
			continue
		}
		switch err := fl.transfer.Promote(ctx, o.id, transfer.Want{Waits: o.by.Waits}); {
		case err == nil:
			defer fl.names.CloseRead(o.id) // gives back the pin of promote
		case errors.Is(err, state.ErrStale) && tries < renameTries: // the block may have come up in between
		default:
			return nil, state.MissError(err)
		}
	}
}

// tryOpenWrite is openWriteLocked, and makes the primary file that a new file needs. The steps outside the lock remain.
func (fl *Files) tryOpenWrite(ctx context.Context, o *writeOpen) (h *Handle, nonresident bool, err error) {
	if o.used {
		o.used, o.file = false, nil // of an earlier try
	}
	for {
		g := fl.NewGone()
		fl.Mu.Lock()
		h, nonresident, err = fl.openWriteLocked(o, g)
		fl.Mu.Unlock()
		fl.Finish(g)
		if err != errNeedsFile {
			break
		}
		if o.blob, o.file, err = fl.memory.CreateFile(ctx, o.by.Waits); err != nil {
			return nil, false, err
		}
	}
	switch {
	case o.file != nil && !o.used:
		fl.Discard(o.blob, o.file)
		o.file = nil
	case o.file != nil && err != nil: // the kernel comes back for it
		o.file.Close()
	}
	return h, nonresident, err
}

// errNeedsFile says that a file is to be made and has no primary file yet.
var errNeedsFile = errors.New("a new file needs a primary file")

// openWriteLocked does what package draft says about an open. nonresident says that the block must be promoted first.
func (fl *Files) openWriteLocked(o *writeOpen, g *state.Gone) (h *Handle, nonresident bool, err error) {
	en := fl.Mu.Ix.At(o.id)
	if en.IsDir() {
		return nil, false, block.ErrIsDir
	}
	if fl.names.LinkedLocked(o.id) { // else a writer of the temporary name would write the block
		fl.names.UnlinkLinkLocked(o.id, g)
		return nil, false, state.ErrStale
	}
	s := fl.stateLocked(o.id, en, &o.by)
	action := o.action(&s)
	switch {
	case s.Place == draft.Seen && fl.ExpiredLocked(o.id):
		return nil, false, block.ErrNotFound
	case action == draft.LookAgain:
		return nil, false, state.ErrStale
	case action == draft.Absent:
		return nil, false, block.ErrNotFound
	case (action == draft.Anew || action == draft.Replace) && o.file == nil:
		return nil, false, errNeedsFile
	case action == draft.Anew:
		return fl.openAnewLocked(o, en, g), false, nil
	case action == draft.Replace:
		h, err = fl.openReplacedLocked(o, &s, g)
		return h, false, err
	case fl.NonresidentLocked(o.id, en):
		return nil, true, nil
	case !en.InMemory():
		return nil, false, block.ErrNotFound
	}
	return fl.openInPlaceLocked(o, en, g), false, nil
}

// action returns what package draft says about the open of a file in state s.
func (o *writeOpen) action(s *draft.File) draft.Action {
	if o.creates != nil {
		return draft.Create(s, false, o.Truncate)
	}
	return draft.Access(*s, o.Truncate)
}

// openAnewLocked opens a block that no process has open, after it has become a private file without bytes.
func (fl *Files) openAnewLocked(o *writeOpen, en *index.Entry, g *state.Gone) *Handle {
	o.used = true
	fl.Mu.Counters.Removed++
	fl.names.RestartLocked(o.id, en, catalog.Restarted{
		ID: o.id, Blob: uint64(o.blob), Now: fl.Now(), Cgroup: fl.Mu.Room.OfCgroup(o.by.Cgroup),
		Why: outcome.Cause{Reason: outcome.ReasonReplaced, By: o.by.Actor()},
	}, g)
	f := fl.NewFileLocked(o.id, en)
	f.owner, f.file, f.replaces = o.by.Proc(), o.file, true
	return fl.openedLocked(o, f, g)
}

// openReplacedLocked makes a new file, which takes the name of the file of o. It fails with ErrStale if o cannot be
// answered with the new file. s is the state of the file that loses its name.
func (fl *Files) openReplacedLocked(o *writeOpen, s *draft.File, g *state.Gone) (*Handle, error) {
	o.used = true
	old := fl.Mu.Ix.At(o.id)
	k := fl.nameLocked(o.id)
	n := CreateOptions{Parent: k.Parent, Name: k.Name, Mode: uint32(old.Mode()), UID: old.UID(), GID: old.GID(), By: o.by}
	x := catalog.CreatedFile{Pinned: old.Pinned(), Expires: fl.Mu.Ix.Expires(o.id)}
	if s.Place == draft.Private { // the name is new to the caller
		n.Mode, n.UID, n.GID, x = o.creates.Mode, o.creates.UID, o.creates.GID, catalog.CreatedFile{Inherit: true}
	} else {
		fl.Mu.Counters.Removed++
	}
	seq := old.Seq()
	fl.names.DropNameLocked(o.id, old, outcome.Cause{Reason: outcome.ReasonReplaced, By: o.by.Actor()}, g)
	f, _ := fl.newLocked(&n, o.blob, &x)
	f.replaces, f.begun = s.Place == draft.Seen, max(f.begun, seq)
	if o.creates == nil {
		return nil, state.ErrStale // until it is opened, it is private, so that nobody renames an empty temporary file
	}
	f.file = o.file
	return fl.openedLocked(o, f, g), nil
}

// openInPlaceLocked opens the file that is there.
func (fl *Files) openInPlaceLocked(o *writeOpen, en *index.Entry, g *state.Gone) *Handle {
	f := fl.fileLocked(o.id)
	if f == nil {
		f = fl.NewFileLocked(o.id, en)
		f.replaces = true
		fl.TellAttrsLocked(o.id, g) // from now on they change
	}
	return fl.openedLocked(o, f, g)
}

// openedLocked adds a handle for o to the handles of f.
func (fl *Files) openedLocked(o *writeOpen, f *File, g *state.Gone) *Handle {
	en := fl.Mu.Ix.At(f.id)
	if fl.seatLocked(f.id, en) {
		g.Records = append(g.Records, f.id)
	}
	if o.Truncate {
		f.poisoned = nil
		if fl.Mu.Kind(en) == draft.Temp {
			f.owner = o.by.Proc()
		}
	}
	h := &Handle{File: f, by: o.by.After()}
	h.direct = f.started && !o.Append && !o.Truncate && !en.IsPlain() // its bytes have their room already
	f.handles = append(f.handles, h)
	fl.ApplyLocked(catalog.Opened{ID: f.id, N: 1})
	return h
}

// errAgain says that the file has meanwhile lost its name or got another time, or that the private file to be emptied
// has become a block that all processes see.
var errAgain = errors.New("the file has changed")

// beginWrite does the steps of an open for writing outside the lock. If it fails, h is released. It fails with
// errAgain if the open has to be decided anew.
func (fl *Files) beginWrite(ctx context.Context, o *writeOpen, h *Handle) error {
	err := h.WithFile(func(*os.File) error { return nil }) // open from now on, the file stays even if its name goes
	if errors.Is(err, block.ErrNotFound) {
		err = errAgain
	}
	if err == nil && !o.used {
		err = fl.settleCopies(ctx, o.by.Waits, h.ID())
	}
	if err != nil {
		fl.Release(h)
		if err == errAgain {
			return err
		}
		return state.MissError(err)
	}
	if !o.Truncate {
		return nil
	}
	if !o.used {
		if err := h.restart(ctx); err != nil {
			fl.Release(h)
			return err
		}
	}
	fl.Mu.Lock()
	en := fl.Mu.Ix.At(h.ID())
	bytes := catalog.ChargeOf(fl.Mu.Room.Group(en.Group()).BlockBytes()) - h.File.Charge()
	seen := fl.Mu.Kind(en) == draft.Plain || en.Committed() && !en.IsTemp()
	fl.Mu.Unlock()
	if !seen { // else its size is unknown
		fl.expect(h, bytes)
	}
	return nil
}

// restart empties the file that h was opened to empty. It fails with errAgain if another thread of the process has
// committed the file meanwhile: a block that all processes see keeps its bytes.
func (h *Handle) restart(ctx context.Context) error {
	f := h.File
	f.commits.Lock()
	defer f.commits.Unlock()
	f.e.Mu.Lock()
	en := f.e.Mu.Ix.At(f.id)
	s := f.e.stateLocked(f.id, en, &h.by)
	again, user := s.Kind == draft.Block && s.Place == draft.Seen, f.e.Mu.UserAttrs(f.id, en)
	if !again && user != "" {
		f.e.ApplyLocked(catalog.Attributed{ID: f.id})
	}
	f.e.Mu.Unlock()
	if again {
		return errAgain
	}
	var err error
	if user != "" { // a crash must not give the new bytes the attributes of the old ones
		err = f.e.WriteRecord(f.id, nil)
	}
	if err == nil {
		err = h.truncate(ctx, 0)
	}
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
func (fl *Files) settleCopies(ctx context.Context, w state.Waiter, id index.ID) error {
	deadline := time.Now().Add(tornWait)
	for {
		fl.Mu.Lock()
		busy := fl.copyingLocked(id)
		left := time.Until(deadline)
		done := make(chan error, 1)
		switch {
		case busy != nil && left <= 0:
			busy.Torn = true
		case busy != nil:
			busy.Wait(done)
		}
		fl.Mu.Unlock()
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
func (fl *Files) copyingLocked(id index.ID) *lane.Store {
	for _, s := range fl.Tiers {
		for op := range s.BegunLocked() {
			if op.ID == id && !op.Torn {
				return op
			}
		}
	}
	return nil
}

// OpenBlob opens the primary file of a blob. It fails with ErrNotFound.
func (fl *Files) OpenBlob(blob driver.BlobID) (*os.File, error) { return fl.Primary.Open(blob) }

// Probe returns an empty file of the primary tier, for trying what the kernel can do with such files, and a function
// that closes and removes the file.
func (fl *Files) Probe() (driver.BlobID, *os.File, func(), error) {
	blob, file, err := fl.memory.CreateFile(fl.Ctx, nil)
	if err != nil {
		return 0, nil, nil, err
	}
	return blob, file, func() { fl.Discard(blob, file) }, nil
}

// speculate reserves n bytes for f: the size of the other blocks of its group. It
// reports whether it could. All such guesses together take at most half of the
// capacity, so that a few thousand idle handles cannot keep out a real write.
func (fl *Files) speculate(f *File, n int64) bool {
	fl.Mu.Lock()
	ok := fl.guessed.Take(n, fl.Opts.CapacityBytes/2)
	if ok {
		f.guessed += n
	}
	fl.Mu.Unlock()
	if ok && !fl.memory.TryReserve(f.id, n) {
		fl.Mu.Lock()
		fl.guessed.Give(n)
		f.guessed -= n
		fl.Mu.Unlock()
		return false
	}
	return ok
}
