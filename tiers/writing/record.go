package writing

import (
	"errors"
	"os"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// WriteRecord brings the record of a committed entry up to date with its name and
// attributes. It drops the record of an entry that has become private
// (File.recorded). file is the primary file if the caller has it open, else nil.
// Writers of one record take turns. Each writes the attributes of the time of its
// turn, so the last record is right.
func (e *drafts) WriteRecord(id index.ID, file *os.File) error {
	return e.space.AtOnce(func() error { return e.tryRecord(id, file) })
}

func (e *drafts) tryRecord(id index.ID, file *os.File) error {
	stripe := &e.records[uint32(id)%uint32(len(e.records))]
	stripe.Lock()
	defer stripe.Unlock()
	e.Mu.Lock()
	blob, r, due := e.dueRecordLocked(id)
	if !due {
		e.Mu.Unlock()
		return nil
	}
	if f := e.fileLocked(id); f != nil && file == nil && f.file != nil {
		file = f.file
		f.users++
		defer f.unuse()
	}
	e.Mu.Unlock()
	if file == nil {
		opened, err := e.Primary.Open(blob)
		if errors.Is(err, block.ErrNotFound) {
			return nil // removed meanwhile
		}
		if err != nil {
			return err
		}
		defer opened.Close()
		file = opened
	}
	var err error
	if r != nil {
		err = e.Primary.Commit(blob, file, r)
	} else {
		err = e.Primary.Uncommit(blob, file)
	}
	if errors.Is(err, os.ErrClosed) {
		return nil // removed meanwhile
	}
	return err
}

// dueRecordLocked returns the record that the file of an entry must get, nil if it must lose the one that it has. due is
// false if the file stays as it is.
func (e *drafts) dueRecordLocked(id index.ID) (blob driver.BlobID, r *driver.Record, due bool) {
	if !e.Mu.Ix.Valid(id) { // gone meanwhile: the caller holds no reference
		return 0, nil, false
	}
	en, f := e.Mu.Ix.At(id), e.fileLocked(id)
	committed := e.Mu.Ix.Linked(id) && en.Flags&state.FlagUncommitted == 0
	if en.Blob == 0 || !committed && (f == nil || !f.recorded) {
		return 0, nil, false
	}
	if committed {
		record := state.RecordOf(e.Mu.Ix, id, en)
		r = &record
	}
	if f != nil {
		f.recorded = false
	}
	return driver.BlobID(en.Blob), r, true
}
