package state

import (
	"os"

	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/index"
)

// WriteSide is the write side of an entry, as all but those see it who write files. It exists while the entry is open
// for writing, and of a temporary file until it is renamed or removed.
type WriteSide interface {
	// HandlesLocked returns how many handles are open.
	HandlesLocked() int
	// OpenLocked reports whether any process has a descriptor for writing.
	OpenLocked() bool
	// MineLocked reports whether the caller finds the entry under its name although others do not.
	MineLocked(by Caller) bool

	// Refresh returns a, which has the size and times of the last commit, with the present ones.
	Refresh(a Attr) Attr

	// Settle closes the primary file if nothing needs it open, for good if the entry has another write side, or none, or if
	// the engine is closed. It first empties a temporary file after a failed write. The caller holds no lock.
	Settle() error
}

// Recorder writes the records of entries in memory.
type Recorder interface {
	// WriteRecord brings the record of an entry in line with the entry. file is its primary file if that is open, else
	// nil. No lock is held.
	WriteRecord(id index.ID, file *os.File) error
}

// AddFileLocked gives an entry a write side, of which w is a part.
func (st *State) AddFileLocked(id index.ID, f WriteSide, w *catalog.Writing) {
	st.Mu.Files[id] = f
	st.Writers.Store(int64(len(st.Mu.Files)))
	st.ApplyLocked(catalog.Begun{ID: id, W: w})
}

// DropFileLocked ends the write side of an entry.
func (st *State) DropFileLocked(id index.ID) {
	st.ApplyLocked(catalog.Ended{ID: id})
	delete(st.Mu.Files, id)
	st.Writers.Store(int64(len(st.Mu.Files)))
}
