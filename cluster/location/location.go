package location

import (
	"time"

	"github.com/cespare/xxhash/v2"
)

// HashPath returns the hash of a path below the mount. It is the same on every node
// and in every version.
func HashPath(path string) uint64 { return xxhash.Sum64String(path) }

// Slot is the number of a holder in this process: a node's feed, as long as it is followed.
type Slot uint16

// MaxSlots is how many holders an Index can distinguish; slots are below it. While a snapshot of a node comes, the node has
// two.
const MaxSlots = 1 << slotBits

// EntryBytes is about the memory of an entry.
const EntryBytes = 29

// MaxSize is the largest size in bytes that an entry can have: 256 GiB.
const MaxSize = 1<<sizeBits - 1

// Entry is one block or directory as its holder describes it.
type Entry struct {
	Hash   uint64
	Seq    uint64 // version: of two of one key the higher one is later
	Size   int64  // bytes; 0 for directories
	Mode   uint32 // type and permission bits, as st_mode
	UID    uint32
	GID    uint32
	Memory bool // in the holder's memory: no read from its SSD needed
}

// Dir reports whether the entry is a directory.
func (e *Entry) Dir() bool { return e.Mode&0o170000 == 0o040000 }

// Holder is one answer to a look-up.
type Holder struct {
	Slot Slot
	Entry
}

// Options configures an Index.
type Options struct {
	// Horizon is how long a grave is kept after it was made. Zero means 24 hours.
	Horizon time.Duration
	// MaxGraves bounds the graves, and MaxGraveBytes their paths together; the oldest go first.
	// Zero means 1<<20, and 128 MiB.
	MaxGraves     int
	MaxGraveBytes int64
	// MaxBytes bounds the tables of entries. What has no room is not entered: it is a miss. Zero means no limit. Graves
	// and the entries of rare attributes are not counted.
	MaxBytes int64
	// Lost is called when a watched hash has no live holder left (see Index.Watch), by the
	// goroutine that caused it, without a lock held. It may call the index. Nil: not called.
	Lost func(hash uint64)
	// Buried is called when a grave was made or raised, without a lock held. It must not block.
	// Nil: not called.
	Buried func()
	// Now is the clock of the graves, called without a lock held. Nil means time.Now.
	Now func() time.Time
}
