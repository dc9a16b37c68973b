package driver

import (
	"os"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
)

// BlobID names one file of the primary tier for its whole life; never 0, never
// used again while the tier exists.
type BlobID uint64

// Record is what the primary tier keeps with a file so that a later process can
// adopt it: the file is committed if and only if it has a record.
type Record struct {
	Path    string // below the mount; a directory's own path if Dir
	Dir     bool
	Seq     uint64 // commit order: of two records with one path the higher Seq wins
	Size    int64  // bytes at commit
	Mode    uint32 // permission bits
	UID     uint32
	GID     uint32
	Mtime   time.Time // of the last write; also detects writes after the commit
	Atime   time.Time
	Sum     block.Checksum
	Pinned  bool
	Expires time.Time // zero: never
	User    block.UserAttrs
	Link    string // the temporary name that the file still has; empty: none
}

// Primary is tier 0: memory in files that the kernel can serve by itself. The
// engine decides what is in it; the primary only keeps files and records.
//
// Methods may be called in parallel, but for one blob the engine orders them
// itself: Remove comes last. All are memory operations of the kernel and do
// not wait for devices. Errors are *os.PathError or *os.SyscallError; a full
// tmpfs is block.ErrNoSpace.
type Primary interface {
	// Create makes an empty file, open for reading and writing, without a
	// record. The caller closes it. It never fails with ErrNotFound.
	Create() (BlobID, *os.File, error)

	// Open opens the file of a blob for reading and writing. ErrNotFound if it
	// is gone.
	Open(BlobID) (*os.File, error)

	// Commit attaches or replaces the record, atomically even if the process
	// dies.
	Commit(BlobID, *os.File, *Record) error

	// Uncommit drops the record, so that a crash loses the file.
	Uncommit(BlobID, *os.File) error

	// Remove unlinks the file. Its memory is freed when the last open
	// description of it, the kernel's own included, is closed.
	Remove(BlobID) error

	// Adopt calls fn for every record that an earlier process left, with the
	// file's present size and whether the file changed after its commit,
	// once, before any other call, on the caller's goroutine. Files without
	// a record and files for which fn returns false are removed.
	Adopt(fn func(id BlobID, r *Record, modified bool) bool) error

	// FreeBytes returns how much more the backing file system can take.
	FreeBytes() (int64, error)

	// Close removes everything, unless keep asks to leave committed files
	// for a later process to adopt.
	Close(keep bool) error
}
