package openfile

import (
	"errors"
	"os"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
)

// WriteRecord brings the record of a committed entry up to date with its name and
// attributes. It drops the record of an entry that has become private
// (File.recorded). file is the primary file if the caller has it open, else nil.
// Writers of one record take turns. Each writes the attributes of the time of its
// turn, so the last record is right.
func (fl *Files) WriteRecord(id index.ID, file *os.File) error {
	return fl.memory.AtOnce(func() error { return fl.tryRecord(id, file) })
}

func (fl *Files) tryRecord(id index.ID, file *os.File) error {
	stripe := &fl.records[uint32(id)%uint32(len(fl.records))]
	stripe.Lock()
	defer stripe.Unlock()
	fl.Mu.Lock()
	blob, r, due := fl.dueRecordLocked(id)
	if !due {
		fl.Mu.Unlock()
		return nil
	}
	if f := fl.fileLocked(id); f != nil && file == nil && f.file != nil {
		file = f.file
		f.users++
		defer f.unuse()
	}
	fl.Mu.Unlock()
	if file == nil {
		opened, err := fl.Primary.Open(blob)
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
		err = fl.Primary.Commit(blob, file, r)
	} else {
		err = fl.Primary.Uncommit(blob, file)
	}
	if errors.Is(err, os.ErrClosed) {
		return nil // removed meanwhile
	}
	return err
}

// dueRecordLocked returns the record that the file of an entry must get, nil if it must lose the one that it has. due is
// false if the file stays as it is.
func (fl *Files) dueRecordLocked(id index.ID) (blob driver.BlobID, r *driver.Record, due bool) {
	if !fl.Mu.Ix.Valid(id) { // gone meanwhile: the caller holds no reference
		return 0, nil, false
	}
	en, f := fl.Mu.Ix.At(id), fl.fileLocked(id)
	committed := fl.Mu.Ix.Linked(id) && en.Committed()
	if !en.InMemory() || !committed && (f == nil && en.Linked() || f != nil && !f.recorded) {
		return 0, nil, false
	}
	if committed {
		record := fl.RecordOf(id, en)
		record.Link = fl.names.LinkPathLocked(id)
		r = &record
	}
	if f != nil {
		f.recorded = false
	}
	return driver.BlobID(en.Blob()), r, true
}
