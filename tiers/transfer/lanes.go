package transfer

import (
	"errors"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/state"
)

// owner is the Owner of the lane of a tier.
type owner struct {
	*state.Secondary
	e *Transfer
}

var _ lane.Owner = (*owner)(nil)

// KeyLocked implements lane.Owner. A block that is open for writing is copied only if fsync asks for it.
func (s *owner) KeyLocked(op *lane.Store) (block.Key, bool) {
	if !s.storableLocked(op) {
		return block.Key{}, false
	}
	return s.e.KeyLocked(op.ID), true
}

// storableLocked reports whether the block of op still exists, in the version of op, and may be copied.
func (s *owner) storableLocked(op *lane.Store) bool {
	ix := s.e.Mu.Ix
	if !ix.Valid(op.ID) {
		return false
	}
	en := ix.At(op.ID)
	if !s.KeepsUser && en.Flags()&index.FlagUser != 0 {
		return false
	}
	return en.Seq() == op.Seq && en.InMemory() && ix.Linked(op.ID) && en.Committed() && (op.Force || !s.e.OpenForWritingLocked(op.ID))
}

// DeferredLocked implements lane.Owner.
func (s *owner) DeferredLocked(id index.ID, seq uint64) (bytes int64, ok bool) {
	if !s.e.Mu.Ix.Valid(id) {
		return 0, false
	}
	en := s.e.Mu.Ix.At(id)
	return en.Size(), s.Opts.Cascade != state.CascadeOff && en.Seq() == seq && (en.Tiers()|en.Storing())&s.Bit == 0 && s.e.cascadableLocked(id, en)
}

// StoreLocked implements lane.Owner.
func (s *owner) StoreLocked(id index.ID, again bool) {
	en := s.e.Mu.Ix.At(id)
	s.e.copyLocked(s.Secondary, id, en, lane.Store{Burst: s.e.burstLocked(id, en), Again: again}, false)
}

// Transfer implements lane.Owner.
func (s *owner) Transfer(op *lane.Store) (driver.Transfer, error) {
	e := s.e
	e.Mu.Lock()
	if !s.storableLocked(op) {
		e.Mu.Unlock()
		return driver.Transfer{}, block.ErrNotFound
	}
	en := e.Mu.Ix.At(op.ID)
	f := e.Mu.Files[op.ID]
	t := driver.Transfer{Key: op.Key, Size: en.Size(), Attrs: e.AttrsLocked(op.ID, en), Burst: op.Burst}
	t.Volatile = f != nil && f.HandlesLocked() > 0 // fsync was called
	if en.HasSum() && !t.Volatile {
		t.Sum = block.Checksum{Sum: en.Sum(), Valid: true}
	}
	blob := driver.BlobID(en.Blob())
	e.Mu.Unlock()
	file, err := e.Primary.Open(blob)
	if err != nil {
		return t, err
	}
	t.File = file
	if t.Volatile {
		fi, err := file.Stat()
		if err == nil && fi.Size() != t.Size { // written since the commit
			err = block.ErrNotFound
		}
		if err != nil {
			return t, errors.Join(err, file.Close())
		}
	}
	return t, nil
}

// StoredLocked implements lane.Owner.
func (s *owner) StoredLocked(ended []*lane.Store, outcomes []driver.Outcome) (errs []error, after func()) {
	e := s.e
	var g state.Gone
	errs = make([]error, len(ended))
	for i, op := range ended {
		errs[i] = s.storedOneLocked(op, &outcomes[i])
		e.leftLocked(s.Secondary, op, &g)
	}
	e.Mu.Room.Moved()
	return errs, func() {
		e.Finish(&g)
		for i, err := range errs {
			if err != nil {
				e.Log.Debug("cascade", zap.String("tier", s.Opts.Name), zap.Stringer("key", ended[i].Key), zap.Error(err))
			}
		}
	}
}

// storedEntryLocked returns the entry of op if it still has the version of op, and ends its hold on it.
func (s *owner) storedEntryLocked(op *lane.Store) *index.Entry {
	ix := s.e.Mu.Ix
	if !ix.Valid(op.ID) {
		return nil
	}
	en := ix.At(op.ID)
	if en.Seq() != op.Seq {
		return nil
	}
	s.e.ApplyLocked(catalog.Unqueued{ID: op.ID, Bit: s.Bit})
	s.e.names.StrayLocked(op.ID, en)
	if !ix.Linked(op.ID) || !en.Committed() {
		return nil
	}
	return en
}

func (s *owner) storedOneLocked(op *lane.Store, o *driver.Outcome) error {
	en := s.storedEntryLocked(op)
	stats := s.StatsLocked()
	switch {
	case op.Torn && o.Status == driver.Stored && en != nil: // written meanwhile
		s.RemoveLocked(op.Key)
		s.e.CascadeToLocked(s.Secondary, op.ID, en)
		return nil
	case o.Status == driver.Stored, o.Status == driver.Skipped && o.Err == nil:
		if o.Status == driver.Stored {
			stats.Cascaded++
			stats.CascadedBytes += uint64(o.Bytes)
		}
		if en != nil { // else its successor has had this copy removed
			s.copiedLocked(op, en, o)
		}
		return nil
	case o.Status == driver.Skipped:
		stats.CascadeSkipped++
	default:
		stats.CascadeFailed++
		if errors.Is(o.Err, lane.ErrAnswer) && s.Secondary != s.e.Remote { // the tier may have the copy all the same
			s.RemoveLocked(op.Key)
		}
	}
	if en != nil {
		s.e.ApplyLocked(catalog.Refused{ID: op.ID})
	}
	s.refusedLocked(op, en)
	if o.Err == nil {
		return &block.Error{Op: "store", Tier: s.Opts.Name, Key: op.Key, Err: block.ErrUnavailable}
	}
	return o.Err
}

// copiedLocked notes that the tier has a copy of a block.
func (s *owner) copiedLocked(op *lane.Store, en *index.Entry, o *driver.Outcome) {
	e := s.e
	if s.Secondary == e.Remote && op.Key != e.KeyLocked(op.ID) { // the copy has the old name
		e.CascadeToLocked(s.Secondary, op.ID, en)
		return
	}
	if s.Secondary == e.Remote && en.Tiers()&s.Bit == 0 {
		e.Far.Watch(e.KeyLocked(op.ID))
	}
	e.ApplyLocked(catalog.Copied{ID: op.ID, Bit: s.Bit, Keeps: s.Secondary == e.Keeper(), Sum: o.Sum})
	if e.Mu.Room.Used() > e.Opts.CapacityBytes {
		e.memory.WakeEvictor() // the block can leave memory now: see ShrinkLocked
	}
}

// UnstoredLocked implements lane.Owner.
func (s *owner) UnstoredLocked(op *lane.Store) { s.refusedLocked(op, s.storedEntryLocked(op)) }

// refusedLocked follows a store that failed. Under the name the tier may hold a file that fsync copied unfinished, or
// the block that was replaced: it removes that copy, so that no reader takes it for the block. en may be nil.
func (s *owner) refusedLocked(op *lane.Store, en *index.Entry) {
	if en != nil && op.Leaving {
		s.e.ApplyLocked(catalog.Stays{ID: op.ID}) // it leaves memory another time
	}
	if en != nil && en.Synced() && s.Secondary == s.e.Keeper() {
		s.e.ApplyLocked(catalog.Lost{ID: op.ID, Promise: true})
		key := s.e.KeyLocked(op.ID)
		s.RemoveLocked(key)
		if op.Key != (block.Key{}) && op.Key != key { // renamed meanwhile
			s.RemoveLocked(op.Key)
		}
	}
}

// DirsLocked implements lane.Owner.
func (s *owner) DirsLocked(id index.ID) []driver.DirAttrs {
	ix := s.e.Mu.Ix
	if !ix.Valid(id) || !ix.Linked(id) {
		return nil
	}
	return s.e.AttrsLocked(id, ix.At(id)).Dirs
}

// Restore implements lane.Owner. A block that only the tier had is lost.
func (s *owner) Restore(u lane.Update) {
	var g state.Gone
	e := s.e
	e.Mu.Lock()
	e.givenUp++
	if e.Mu.Ix.Valid(u.ID) {
		if en := e.Mu.Ix.At(u.ID); en.Tiers()&s.Bit != 0 && en.Seq() == u.Attrs.Seq {
			e.ForgetCopyLocked(s.Secondary, u.ID, en, outcome.ReasonRenamed, &g)
			if e.Mu.Ix.Valid(u.ID) && en.InMemory() {
				e.CascadeToLocked(s.Secondary, u.ID, en)
			}
		}
	}
	e.Mu.Unlock()
	e.Finish(&g)
}

// Loaded implements lane.Owner.
func (s *owner) Loaded(b *lane.Batch) {
	s.e.Mu.Lock()
	line := s.e.SummarizeLocked(b)
	s.e.Mu.Unlock()
	s.e.LogSummary(line)
	if told := s.e.Opts.Loaded; told != nil {
		told(b)
	}
}

// leftLocked evicts a block after the copy that leaveLocked queued, unless the block was used meanwhile, or may not be
// evicted any more: it is open, pinned, or has come to a pinned group.
func (tr *Transfer) leftLocked(s *state.Secondary, op *lane.Store, g *state.Gone) {
	if !op.Leaving || !tr.Mu.Ix.Valid(op.ID) {
		return
	}
	en := tr.Mu.Ix.At(op.ID)
	if en.Seq() != op.Seq || en.Tiers()&s.Bit == 0 || !en.InMemory() || en.Ranked() || en.Counted() {
		return
	}
	tr.Mu.Counters.Evicted++
	tr.Mu.Counters.EvictedBytes += uint64(en.Size())
	tr.memory.EvictOneLocked(op.ID, en, outcome.ReasonCapacity, g)
}
