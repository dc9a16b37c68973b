package openfile

import (
	"context"
	"errors"
	"os"
	"slices"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/policy"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/transfer"
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
func (fl *Files) OpenRead(ctx context.Context, id index.ID, by state.Caller, nonblock bool) (Opened, error) {
	o, nonresident, err := fl.openRead(id, by, true)
	if !nonresident {
		return o, err
	}
	deadline, late := state.NoDeadline, false
	if !nonblock { // else no process waits
		deadline, late = fl.transfer.OpenDeadline(id)
	}
	if late {
		return Opened{}, block.ErrNotFound
	}
	return fl.openPromoted(id, by, fl.transfer.Promote(ctx, id, transfer.Want{Waits: by.Waits, Deadline: deadline, Hint: nonblock}))
}

// OpenHot is OpenRead for a block in memory. It does not wait. It fails with ErrHollow for other blocks.
func (fl *Files) OpenHot(id index.ID, by state.Caller) (Opened, error) {
	o, nonresident, err := fl.openRead(id, by, true)
	if nonresident {
		return o, state.ErrHollow
	}
	return o, err
}

// OpenLater is OpenRead for a block for which OpenHot failed with ErrHollow. It does not wait, unless by is Spare. It
// calls then when the open can be answered, from any goroutine, possibly before OpenLater returns. then must not block.
// On success file is the block's file, open until then returns, or nil. The entry may go meanwhile, with the kernel that
// asks: then gets ErrStale, or an open of the entry that has the number by then.
func (fl *Files) OpenLater(id index.ID, by state.Caller, then func(o Opened, file *os.File, err error)) {
	deadline, late := fl.transfer.OpenDeadline(id)
	if late {
		then(Opened{}, nil, block.ErrNotFound)
		return
	}
	fl.transfer.PromoteLater(id, deadline, by.Spare, func(file *os.File, err error) {
		o, err := fl.openPromoted(id, by, err)
		then(o, file, err)
	})
}

// openPromoted opens a block after its promotion, which has ended with err.
func (fl *Files) openPromoted(id index.ID, by state.Caller, err error) (Opened, error) {
	if errors.Is(err, state.ErrStale) {
		o, nonresident, err := fl.openRead(id, by, true) // the block may have come up in between
		if nonresident {
			err = state.ErrStale
		}
		return o, err
	}
	if err != nil {
		return Opened{}, state.MissError(err)
	}
	o, _, err := fl.openRead(id, by, false)
	fl.names.CloseRead(id) // gives back the pin of the promotion
	return o, err
}

// openRead opens a block that is in memory, and reports whether the block is nonresident instead. hit says that the block was
// there without a promotion.
func (fl *Files) openRead(id index.ID, by state.Caller, hit bool) (o Opened, nonresident bool, err error) {
	fl.Mu.Lock()
	defer fl.Mu.Unlock()
	if !fl.Mu.Ix.Valid(id) { // the kernel has gone that waited for the block, and nothing else needed the entry
		return o, false, state.ErrStale
	}
	en := fl.Mu.Ix.At(id)
	linked := en.Linked()
	switch {
	case en.IsDir():
		return o, false, block.ErrIsDir
	case linked && fl.ExpiredLocked(id):
		return o, false, block.ErrNotFound
	case linked && en.Committed() && en.InMemory(): // the hot path
	case fl.NonresidentLocked(id, en):
		return o, true, nil
	default:
		if err := fl.readableLocked(id, en, &by); err != nil {
			return o, false, err
		}
	}
	now := fl.Now()
	burst := fl.Mu.Room.Burst(by.User().Number(), now)
	fl.ApplyLocked(catalog.Opened{ID: id, N: 1, Now: now, Burst: burst, Brought: !hit})
	fl.Mu.Counters.Opened++
	state.CountFound(fl.State, en)
	if en.Ranked() {
		fl.Mu.Reuse.ReadLocked(id, en)
	}
	fl.readLocked(id, en, burst, hit)
	return Opened{ID: id, Blob: driver.BlobID(en.Blob()), Size: en.Size()}, false, nil
}

// readableLocked says what package draft says about an open for reading.
func (fl *Files) readableLocked(id index.ID, en *index.Entry, by *state.Caller) error {
	if fl.names.RetainedLocked(id, by.Kernel) || fl.names.LinkedLocked(id) && en.Committed() {
		return nil
	}
	switch action := draft.Access(fl.stateLocked(id, en, by), false); {
	case action == draft.LookAgain:
		return state.ErrStale
	case action == draft.Absent, !en.InMemory():
		return block.ErrNotFound
	}
	return nil
}

// maxTouched bounds the blocks whose reads the tiers are yet to be told of. A block beyond that keeps its place in
// the eviction order of the tiers.
const maxTouched = 1 << 16

// touch is a read of a block in a burst.
type touch struct {
	id    index.ID
	burst policy.Burst
}

// readLocked follows the open of a block in memory. It counts the open, and notes it for the tiers below.
func (fl *Files) readLocked(id index.ID, en *index.Entry, burst policy.Burst, hit bool) {
	if hit {
		fl.Mu.Tally.Hit(en.Size())
	}
	if len(fl.Tiers) == 0 {
		return
	}
	if en.Tiers() != 0 && en.Flags()&index.FlagTouched == 0 && len(fl.touched) < maxTouched {
		fl.ApplyLocked(catalog.Touched{ID: id, On: true})
		fl.touched = append(fl.touched, touch{id, burst})
	}
	if en.Flags()&index.FlagOnceSeen != 0 { // this is the second time
		fl.ApplyLocked(catalog.Seen{ID: id})
		fl.transfer.CascadeLocked(id, en)
	}
}

// TellTouched tells the tiers which blocks were read. Of those that were read in one burst it names the last first, so
// that a tier takes the first for the one that was used last. A burst that goes on is told when it is over.
func (fl *Files) TellTouched() {
	fl.Mu.Lock()
	now, goesOn := fl.Now(), make(map[policy.Burst]bool)
	var over, later []touch
	for _, t := range fl.touched {
		on, known := goesOn[t.burst]
		if !known {
			on = fl.Mu.Room.Bursting(t.burst, now)
			goesOn[t.burst] = on
		}
		if on {
			later = append(later, t)
		} else {
			over = append(over, t)
		}
	}
	fl.touched = later
	fl.Mu.Unlock()
	for part := range slices.Chunk(headsLast(over), state.RecordBatch) {
		fl.tellSome(part)
	}
}

// headsLast returns the blocks of reads. Those of each burst are in reverse, in the places that the burst has.
func headsLast(touched []touch) []index.ID {
	places := make(map[policy.Burst][]int)
	for i, t := range touched {
		places[t.burst] = append(places[t.burst], i)
	}
	ids := make([]index.ID, len(touched))
	for _, at := range places {
		for i, place := range at {
			ids[place] = touched[at[len(at)-1-i]].id
		}
	}
	return ids
}

// tellSome tells the tiers that the blocks ids were read.
func (fl *Files) tellSome(ids []index.ID) {
	keys := make([][]block.Key, len(fl.Tiers))
	fl.Mu.Lock()
	for _, id := range ids {
		if !fl.Mu.Ix.Valid(id) || fl.Mu.Ix.At(id).Flags()&index.FlagTouched == 0 {
			continue
		}
		en := fl.Mu.Ix.At(id)
		fl.ApplyLocked(catalog.Touched{ID: id})
		if !fl.Mu.Ix.Linked(id) {
			continue
		}
		key := fl.KeyLocked(id)
		for i, s := range fl.Tiers {
			if en.Tiers()&s.Bit != 0 {
				keys[i] = append(keys[i], key)
			}
		}
	}
	fl.Mu.Unlock()
	for i, s := range fl.Tiers {
		if len(keys[i]) > 0 {
			s.Tier.Touch(keys[i])
		}
	}
}
