package writing

import (
	"context"
	"errors"
	"os"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// Opened is a file open for reading.
type Opened struct {
	ID   index.ID
	Blob driver.BlobID
	Size int64 // bytes; of a file open for writing, those at its last commit
}

// OpenRead opens a file for reading and pins it until CloseRead. It marks the
// block as recently used.
//
// A block that is not in memory is promoted first. OpenRead waits for that, for PromoteTimeout at most; with
// nonblock set it begins the promotion and fails with ErrPending.
//
// It fails with ErrIsDir; with ErrStale if the name means something else to the caller and must be looked up again
// (the look-up fails with ErrNotFound if the block is gone); with ErrNotFound if no tier can give the block; or with
// ctx's error.
func (e *opens) OpenRead(ctx context.Context, id index.ID, by state.Caller, nonblock bool) (Opened, error) {
	o, hollow, err := e.openRead(id, by, true)
	if !hollow {
		return o, err
	}
	return e.openHollow(ctx, id, by, nonblock)
}

// OpenHot is OpenRead for a block in memory. It does not wait. It fails with ErrHollow for other blocks.
func (e *opens) OpenHot(id index.ID, by state.Caller) (Opened, error) {
	o, hollow, err := e.openRead(id, by, true)
	if hollow {
		return o, state.ErrHollow
	}
	return o, err
}

// OpenLater is OpenRead for a block for which OpenHot failed with ErrHollow. It does not wait. It calls then when
// the open can be answered, from any goroutine, possibly before OpenLater returns. then must not block. On success
// file is the block's file, open until then returns, or nil.
func (e *opens) OpenLater(id index.ID, by state.Caller, then func(o Opened, file *os.File, err error)) {
	deadline, late := e.lower.OpenDeadline(id)
	if late {
		then(Opened{}, nil, block.ErrNotFound)
		return
	}
	e.lower.PromoteLater(id, deadline, func(file *os.File, err error) {
		o, err := e.openPromoted(id, by, err)
		then(o, file, err)
	})
}

func (e *opens) openHollow(ctx context.Context, id index.ID, by state.Caller, nonblock bool) (Opened, error) {
	deadline, late := state.NoDeadline, false
	if !nonblock { // else no process waits
		deadline, late = e.lower.OpenDeadline(id)
	}
	if late {
		return Opened{}, block.ErrNotFound
	}
	return e.openPromoted(id, by, e.lower.PromoteWithin(ctx, by.Waits, id, nonblock, deadline))
}

// openPromoted opens a block after its promotion, which has ended with err.
func (e *opens) openPromoted(id index.ID, by state.Caller, err error) (Opened, error) {
	if errors.Is(err, state.ErrStale) {
		o, hollow, err := e.openRead(id, by, true) // the block may have come up in between
		if hollow {
			err = state.ErrStale
		}
		return o, err
	}
	if err != nil {
		return Opened{}, state.MissError(err)
	}
	o, _, err := e.openRead(id, by, false)
	e.CloseRead(id) // gives back the pin of the promotion
	return o, err
}

// openRead is OpenRead for a block in memory; else it reports that the block is hollow. hit says that the block was
// there without a promotion.
func (e *opens) openRead(id index.ID, by state.Caller, hit bool) (o Opened, hollow bool, err error) {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	en := e.Mu.Ix.At(id)
	linked := e.Mu.Ix.Linked(id)
	switch {
	case en.Mode&state.ModeType == state.ModeDir:
		return o, false, block.ErrIsDir
	case linked && e.ExpiredLocked(id):
		return o, false, block.ErrNotFound
	case linked && en.Flags&state.FlagUncommitted == 0 && en.Blob != 0: // the hot path
	case e.HollowLocked(id, en):
		return o, true, nil
	case draft.Access(e.drafts.stateLocked(id, en, &by), false, by.Told) == draft.LookAgain:
		return o, false, state.ErrStale
	case en.Blob == 0:
		return o, false, block.ErrNotFound
	}
	en.Opens++
	en.Atime = e.Now()
	e.Mu.Counters.Opened++
	state.CountFound(e.State, en)
	if en.Opens == 1 {
		e.ClassifyLocked(id, en)
	}
	if en.Flags&state.FlagPolicy != 0 {
		e.Mu.Room.Touch(state.BillOf(e.Mu.Room, en), uint32(id))
		e.Mu.Reuse.ReadLocked(id, en)
	}
	e.readLocked(id, en, hit)
	return Opened{ID: id, Blob: driver.BlobID(en.Blob), Size: en.Size}, false, nil
}

// maxTouched bounds the blocks whose reads the tiers are yet to be told of. A block beyond that keeps its place in
// the eviction order of the tiers.
const maxTouched = 1 << 16

// readLocked follows the open of a block in memory. It counts the open, and notes it for the tiers below.
func (e *opens) readLocked(id index.ID, en *index.Entry, hit bool) {
	if hit && !e.Mu.Room.Group(en.Group).Bench() {
		e.Mu.Tally.Hit(en.Size)
	}
	if len(e.Tiers) == 0 {
		return
	}
	if en.Tiers != 0 && en.Flags&state.FlagTouched == 0 && len(e.touched) < maxTouched {
		en.Flags |= state.FlagTouched
		e.touched = append(e.touched, id)
	}
	if en.Flags&state.FlagOnceSeen != 0 { // this is the second time
		en.Flags &^= state.FlagOnceSeen
		e.lower.CascadeLocked(id, en)
	}
}

// TellTouched tells the tiers which blocks were read.
func (e *opens) TellTouched() {
	e.Mu.Lock()
	touched := e.touched
	e.touched = nil
	e.Mu.Unlock()
	for len(touched) > 0 {
		n := min(len(touched), state.RecordBatch)
		e.tellSome(touched[:n])
		touched = touched[n:]
	}
}

// tellSome tells the tiers that the blocks ids were read.
func (e *opens) tellSome(ids []index.ID) {
	keys := make([][]block.Key, len(e.Tiers))
	e.Mu.Lock()
	for _, id := range ids {
		if !e.Mu.Ix.Valid(id) || e.Mu.Ix.At(id).Flags&state.FlagTouched == 0 {
			continue
		}
		en := e.Mu.Ix.At(id)
		en.Flags &^= state.FlagTouched
		if !e.Mu.Ix.Linked(id) {
			continue
		}
		key := e.KeyLocked(id)
		for i, s := range e.Tiers {
			if en.Tiers&s.Bit != 0 {
				keys[i] = append(keys[i], key)
			}
		}
	}
	e.Mu.Unlock()
	for i, s := range e.Tiers {
		if len(keys[i]) > 0 {
			s.Tier.Touch(keys[i])
		}
	}
}

// CloseRead gives back the pin of an OpenRead.
func (e *opens) CloseRead(id index.ID) {
	g := e.NewGone()
	e.Mu.Lock()
	en := e.Mu.Ix.At(id)
	en.Opens--
	e.closedLocked(id, en, g)
	e.Mu.Unlock()
	e.Finish(g)
}

// closedLocked follows the end of a handle.
func (e *opens) closedLocked(id index.ID, en *index.Entry, g *state.Gone) {
	if en.Opens > 0 {
		return
	}
	e.ClassifyLocked(id, en)
	e.names.ReapLocked(id, en, g)
}
