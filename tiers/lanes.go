package tiers

import (
	"errors"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
)

var _ lane.Owner = (*secondary)(nil)

// KeyLocked implements lane.Owner. A block that is open for writing is copied only if fsync asks for it.
func (s *secondary) KeyLocked(op *lane.Store) (block.Key, bool) {
	if !s.storableLocked(op) {
		return block.Key{}, false
	}
	return s.e.keyLocked(op.ID), true
}

// storableLocked reports whether the block of op still exists, in the version of op, and may be copied.
func (s *secondary) storableLocked(op *lane.Store) bool {
	ix := s.e.mu.ix
	if !ix.Valid(op.ID) {
		return false
	}
	en := ix.At(op.ID)
	return en.Seq == op.Seq && en.Blob != 0 && ix.Linked(op.ID) && en.Flags&flagUncommitted == 0 && (op.Force || !s.e.openForWritingLocked(op.ID))
}

// DeferredLocked implements lane.Owner.
func (s *secondary) DeferredLocked(id index.ID, seq uint64) (bytes int64, ok bool) {
	if !s.e.mu.ix.Valid(id) {
		return 0, false
	}
	en := s.e.mu.ix.At(id)
	return en.Size, en.Seq == seq && (en.Tiers|en.Storing)&s.bit == 0 && s.e.copies.cascadableLocked(id, en)
}

// StoreLocked implements lane.Owner.
func (s *secondary) StoreLocked(id index.ID) {
	s.copyLocked(id, s.e.mu.ix.At(id), lane.Store{}, false)
}

// Transfer implements lane.Owner.
func (s *secondary) Transfer(op *lane.Store) (driver.Transfer, error) {
	e := s.e
	e.mu.Lock()
	if !s.storableLocked(op) {
		e.mu.Unlock()
		return driver.Transfer{}, block.ErrNotFound
	}
	en := e.mu.ix.At(op.ID)
	f := e.mu.files[op.ID]
	t := driver.Transfer{Key: op.Key, Size: en.Size, Attrs: e.attrsLocked(op.ID, en)}
	t.Volatile = f != nil && len(f.handles) > 0 // fsync was called
	if en.Flags&flagSum != 0 && !t.Volatile {
		t.Sum = block.Checksum{Sum: en.Sum, Valid: true}
	}
	blob := BlobID(en.Blob)
	e.mu.Unlock()
	file, err := e.primary.Open(blob)
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
func (s *secondary) StoredLocked(ended []*lane.Store, outcomes []driver.Outcome) (errs []error, after func()) {
	e := s.e
	var g gone
	errs = make([]error, len(ended))
	for i, op := range ended {
		errs[i] = s.storedOneLocked(op, &outcomes[i])
		e.copies.leftLocked(s, op, &g)
	}
	e.mu.room.Signal()
	return errs, func() {
		e.finish(&g)
		for i, err := range errs {
			if err != nil {
				e.log.Debug("cascade", zap.String("tier", s.opts.Name), zap.Stringer("key", ended[i].Key), zap.Error(err))
			}
		}
	}
}

// storedEntryLocked returns the entry of op if it still has the version of op, and ends its hold on it.
func (s *secondary) storedEntryLocked(op *lane.Store) *index.Entry {
	ix := s.e.mu.ix
	if !ix.Valid(op.ID) {
		return nil
	}
	en := ix.At(op.ID)
	if en.Seq != op.Seq {
		return nil
	}
	en.Storing &^= s.bit
	s.e.elsewhere.strayLocked(op.ID, en)
	if !ix.Linked(op.ID) || en.Flags&flagUncommitted != 0 {
		return nil
	}
	return en
}

func (s *secondary) storedOneLocked(op *lane.Store, o *driver.Outcome) error {
	en := s.storedEntryLocked(op)
	stats := s.StatsLocked()
	switch {
	case op.Torn && o.Status == driver.Stored && en != nil: // written meanwhile
		s.RemoveLocked(op.Key)
		s.e.copies.cascadeToLocked(s, op.ID, en)
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
		if errors.Is(o.Err, lane.ErrAnswer) && s != s.e.remote { // the tier may have the copy all the same
			s.RemoveLocked(op.Key)
		}
	}
	if en != nil {
		en.Flags |= flagRefused
	}
	s.refusedLocked(op, en)
	if o.Err == nil {
		return &block.Error{Op: "store", Tier: s.opts.Name, Key: op.Key, Err: block.ErrUnavailable}
	}
	return o.Err
}

// copiedLocked notes that the tier has a copy of a block.
func (s *secondary) copiedLocked(op *lane.Store, en *index.Entry, o *driver.Outcome) {
	e := s.e
	if s == e.remote && op.Key != e.keyLocked(op.ID) { // the copy has the old name
		e.copies.cascadeToLocked(s, op.ID, en)
		return
	}
	if s == e.remote && en.Tiers&s.bit == 0 {
		e.far.Watch(e.keyLocked(op.ID))
	}
	en.Tiers |= s.bit
	en.Flags &^= flagRefused | flagOnceSeen
	if s == e.copies.keeper() {
		en.Flags &^= flagSynced // the copy that fsync promised has been replaced
	}
	if o.Sum.Valid && en.Flags&flagSum == 0 {
		en.Sum, en.Flags = o.Sum.Sum, en.Flags|flagSum
	}
	e.tierEventLocked(event.Stored, s.opts.Name, op.ID, fate.Cause{})
	if e.mu.room.Used() > e.opts.CapacityBytes {
		e.space.wakeEvictor() // the block can leave memory now: see shrinkLocked
	}
}

// UnstoredLocked implements lane.Owner.
func (s *secondary) UnstoredLocked(op *lane.Store) { s.refusedLocked(op, s.storedEntryLocked(op)) }

// refusedLocked follows a store that failed. Under the name the tier may hold a file that fsync copied unfinished, or
// the block that was replaced: it removes that copy, so that no reader takes it for the block. en may be nil.
func (s *secondary) refusedLocked(op *lane.Store, en *index.Entry) {
	if en != nil && op.Leaving {
		s.e.classifyLocked(op.ID, en) // it leaves memory another time
	}
	if en != nil && en.Flags&flagSynced != 0 && s == s.e.copies.keeper() {
		en.Flags &^= flagSynced
		key := s.e.keyLocked(op.ID)
		s.RemoveLocked(key)
		if op.Key != (block.Key{}) && op.Key != key { // renamed meanwhile
			s.RemoveLocked(op.Key)
		}
	}
}

// DirsLocked implements lane.Owner.
func (s *secondary) DirsLocked(id index.ID) []driver.DirAttrs {
	ix := s.e.mu.ix
	if !ix.Valid(id) || !ix.Linked(id) {
		return nil
	}
	return s.e.attrsLocked(id, ix.At(id)).Dirs
}

// Restore implements lane.Owner. A block that only the tier had is lost.
func (s *secondary) Restore(u lane.Update) {
	var g gone
	e := s.e
	e.mu.Lock()
	if e.mu.ix.Valid(u.ID) {
		if en := e.mu.ix.At(u.ID); en.Tiers&s.bit != 0 && en.Seq == u.Attrs.Seq {
			e.copies.forgetCopyLocked(s, u.ID, en, fate.ReasonRenamed, &g)
			if e.mu.ix.Valid(u.ID) && en.Blob != 0 {
				e.copies.cascadeToLocked(s, u.ID, en)
			}
		}
	}
	e.mu.Unlock()
	e.finish(&g)
}

// Loaded implements lane.Owner.
func (s *secondary) Loaded(b *lane.Batch) {
	s.e.mu.Lock()
	line := s.e.report.summarizeLocked(b)
	s.e.mu.Unlock()
	s.e.report.logSummary(line)
}
