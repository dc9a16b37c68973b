package feed

import "errors"

// The kinds of errors, for errors.Is. Other errors come from a context, a Snapshotter, or the send
// function.
var (
	ErrClosed    = errors.New("feed is closed")        // from Serve, after Log.Close
	ErrMalformed = errors.New("malformed records")     // from Decode and Apply: bytes that no Encode made
	ErrOutOfStep = errors.New("batch is out of step")  // from Apply: it does not follow what came before
	ErrNoSlot    = errors.New("no free slot in index") // from Apply: a snapshot had to be refused
	ErrGap       = errors.New("log has gone past")     // from ServeParts: compare digests
)

// Op is the operation of a record.
type Op uint8

// The operations.
const (
	Hold    Op = iota + 1 // the node holds this version of the key
	Release               // the node does not hold the key
	Bury                  // all versions of the key below Seq are void, everywhere
)

// Record is one entry of a feed. Only the fields of its operation are sent.
type Record struct {
	Op     Op
	Hash   uint64 // of the path; see location.HashPath. Bury: not sent, computed from Path
	Seq    uint64 // Hold: the version; Bury: all below it; Release: unused
	Size   int64  // Hold: bytes
	Mode   uint32 // Hold: type and permission bits, as st_mode. Bury: only whether it is a directory
	UID    uint32 // Hold
	GID    uint32 // Hold
	Memory bool   // Hold: in memory, not only on SSD
	Path   string // Bury: the key's path, which a holder needs to find the key
	Time   int64  // Bury: when it was made, nanoseconds since the epoch by the clock of the node that tells
}

// Position is a position in the log of one incarnation of a node.
type Position struct {
	Epoch uint64 // incarnation: differs between any two processes of a node; never 0
	Next  uint64 // number of the first record that has not been seen, from 1
}

// Batch is the unit of sending.
type Batch struct {
	// Position is the position after this batch. Within a snapshot, except in its last batch, Next
	// is 0: the stream cannot be resumed there.
	Position Position
	// Begin and End mark the first and the last batch of a snapshot. At End, the node holds nothing
	// more of what it held before Begin and did not report since.
	Begin, End bool
	// Partial says that the snapshot is only of the parts that the subscriber asked for. What the
	// node holds of other parts stays.
	Partial bool
	Records []byte // by Encode
	Count   int    // records in it
	// Skipped is how many records of the log before Position, besides Count, the subscriber has not got because they are
	// outside of its scope.
	Skipped uint64
}
