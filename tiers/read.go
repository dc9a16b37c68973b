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
func (e *opens) OpenRead(ctx context.Context, id index.ID, by Caller, nonblock bool) (Opened, error) {
	o, hollow, err := e.openRead(id, by, true)
	if !hollow {
		return o, err
	}
	return e.openHollow(ctx, id, by, nonblock)
}

// ErrHollow says that the block is not in memory, so that an open has to wait.
var ErrHollow = errors.New("block is not in memory")

// OpenHot is OpenRead for a block in memory. It does not wait. It fails with ErrHollow for other blocks.
func (e *opens) OpenHot(id index.ID, by Caller) (Opened, error) {
	o, hollow, err := e.openRead(id, by, true)
	if hollow {
		return o, ErrHollow
	}
	return o, err
}

// OpenLater is OpenRead for a block for which OpenHot failed with ErrHollow. It does not wait. It calls then when
// the open can be answered, from any goroutine, possibly before OpenLater returns. then must not block. On success
// file is the block's file, open until then returns, or nil.
func (e *opens) OpenLater(id index.ID, by Caller, then func(o Opened, file *os.File, err error)) {
	deadline, late := e.lookups.openDeadline(id)
	if late {
		then(Opened{}, nil, block.ErrNotFound)
		return
	}
	e.loads.promoteLater(id, deadline, func(file *os.File, err error) {
		if errors.Is(err, ErrStale) {
			o, hollow, err := e.openRead(id, by, true) // the block may have come up in between
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
		e.CloseRead(id) // gives back the pin of promoteLater
		then(o, file, err)
	})
}

func (e *opens) openHollow(ctx context.Context, id index.ID, by Caller, nonblock bool) (Opened, error) {
	deadline, late := noDeadline, false
	if !nonblock { // else no process waits
		deadline, late = e.lookups.openDeadline(id)
	}
	if late {
		return Opened{}, block.ErrNotFound
	}
	err := e.loads.promoteWithin(ctx, by.Waits, id, nonblock, deadline)
	if errors.Is(err, ErrStale) {
		o, hollow, err := e.openRead(id, by, true) // the block may have come up in between
		if hollow {
			err = ErrStale
		}
		return o, err
	}
	if err != nil {
		return Opened{}, missError(err)
	}
	o, _, err := e.openRead(id, by, false)
	e.CloseRead(id) // gives back the pin of promoteWithin
	return o, err
}

// openRead is OpenRead for a block in memory; else it reports that the block is hollow. hit says that the block was
// there without a promotion.
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

// maxTouched bounds the blocks whose reads the tiers are yet to be told of. A block beyond that keeps its place in
// the eviction order of the tiers.
const maxTouched = 1 << 16

// readLocked follows the open of a block in memory. It counts the open, and notes it for the tiers below.
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

// tellTouched tells the tiers which blocks were read.
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

// tellSome tells the tiers that the blocks ids were read.
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

// CloseRead gives back the pin of an OpenRead.
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
