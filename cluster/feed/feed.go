package feed

import "errors"

// The kinds of errors, for errors.Is. Besides them come those of a context, of a
// Snapshotter, and of who sends.
var (
	ErrClosed    = errors.New("feed is closed")        // from Serve, after Log.Close
	ErrMalformed = errors.New("malformed records")     // from Decode and Apply: bytes that no Encode made
	ErrOutOfStep = errors.New("batch is out of step")  // from Apply: it does not follow what came before
	ErrNoSlot    = errors.New("no free slot in index") // from Apply: a snapshot had to be refused
)

// Op is what a record tells.
type Op uint8

// The operations.
const (
	Hold    Op = iota + 1 // the node holds this version of the key
	Release               // the node does not hold the key
	Bury                  // all versions of the key below Seq are void, everywhere
)

// Record is one entry of a feed. Fields that its operation does not name are not sent.
type Record struct {
	Op     Op
	Hash   uint64 // of the path; see location.HashPath. Bury: not sent, but made from Path
	Seq    uint64 // Hold: the version; Bury: all below it; Release: unused
	Size   int64  // Hold: bytes
	Mode   uint32 // Hold: type and permission bits, as st_mode. Bury: only whether it is a directory
	UID    uint32 // Hold
	GID    uint32 // Hold
	Memory bool   // Hold: in memory, not only on SSD
	Path   string // Bury: the key's path, because who holds it must find it
	Time   int64  // Bury: when it was made, nanoseconds since the epoch by its maker's clock
}

// Position is a place in the log of one incarnation of a node.
type Position struct {
	Epoch uint64 // incarnation: differs between any two processes of a node; never 0
	Next  uint64 // number of the first record that has not been seen, from 1
}

// Batch is what travels at once.
type Batch struct {
	// Position is the place after this batch. Within a snapshot, but in its last
	// batch, Next is 0: there is no place to go on from.
	Position Position
	// Begin: what follows, up to End, is a snapshot: when it ends, what the node was
	// known to hold before Begin, and was not told since, it does not hold.
	Begin, End bool
	Records    []byte // by Encode
	Count      int    // records in it
}
