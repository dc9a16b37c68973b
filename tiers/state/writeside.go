package state

import (
	"os"

	"github.com/kvfs/kvfs/tiers/index"
)

// WriteSide is the write side of an entry, as all but those see it who write files. It exists while the entry is open
// for writing, and of a temporary file until it is renamed or removed.
type WriteSide interface {
	// ChargeLocked returns the bytes of memory that the entry costs: reserved or used, whichever is more.
	ChargeLocked() int64
	// AddChargeLocked changes these bytes by n.
	AddChargeLocked(n int64)
	// HandlesLocked returns how many handles are open.
	HandlesLocked() int
	// OpenLocked reports whether any process has a descriptor for writing.
	OpenLocked() bool
	// MineLocked reports whether the caller finds the entry under its name although others do not.
	MineLocked(by Caller) bool

	// Refresh returns a, which has the size and times of the last commit, with the present ones.
	Refresh(a Attr) Attr

	// GiveUp empties the file after a failed write, unless a process has begun anew with the file.
	GiveUp() error
	// CloseIdle closes the primary file if no call and no handle needs it open.
	CloseIdle()
	// CloseFile closes the primary file for good. If calls use it, the last of them closes it.
	CloseFile()
}

// Recorder writes the records of entries in memory.
type Recorder interface {
	// WriteRecord brings the record of an entry in line with the entry. file is its primary file if that is open, else
	// nil. No lock is held.
	WriteRecord(id index.ID, file *os.File) error
}

// AddFileLocked gives an entry a write side.
func (st *State) AddFileLocked(id index.ID, f WriteSide) {
	st.Mu.Files[id] = f
	st.Writers.Store(int64(len(st.Mu.Files)))
}

// DropFileLocked ends the write side of an entry.
func (st *State) DropFileLocked(id index.ID) {
	delete(st.Mu.Files, id)
	st.Writers.Store(int64(len(st.Mu.Files)))
}
