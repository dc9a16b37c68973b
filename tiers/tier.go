package tiers

import (
	"context"
	"os"

	"github.com/kvfs/kvfs/tiers/block"
)

// Presence is a tier's answer to a look-up. A miss is a value, not an error.
type Presence uint8

const (
	Miss    Presence = iota // the tier lacks the block
	Hit                     // the block can be loaded now
	Pending                 // the block is on its way: ask again, or wait for the transfer
)

// String returns "miss", "hit" or "pending".
func (p Presence) String() string {
	switch p {
	case Miss:
		return "miss"
	case Hit:
		return "hit"
	case Pending:
		return "pending"
	}
	return "invalid"
}

// Tier is one secondary storage level: an SSD, the memory of peers. (The
// primary level is a Primary.) The engine calls it; implementations are in
// tiers/disk and tiers/peer, and tiers/tiertest holds the reference
// implementation and the conformance suite that each of them runs.
//
// No method blocks on I/O: Lookup answers from memory, the others enqueue. All
// may be called in parallel, and none is called after Close.
//
// Source: vLLM v1/kv_offload/tiering/base.py, SecondaryTierManager.
type Tier interface {
	// Lookup sets out[i] to the presence of keys[i]. It fails with
	// ErrInvalid if the lengths differ, ErrUnavailable if the tier is
	// offline, ErrClosed after Close; out is then all Miss. Empty keys are
	// a successful no-op.
	Lookup(ctx context.Context, keys []block.Key, out []Presence) error

	// Store copies the blocks of job down into the tier. A block that the
	// tier holds already is Skipped, and so is one that the tier cannot make
	// room for without evicting a block of the same job.
	//
	// Store and Load take ownership of job until they have called job.Done,
	// which they do exactly once, from any goroutine but not from within
	// Store or Load itself, with one Outcome a block in the order of job.Blocks,
	// also when everything failed, was skipped, or the job is empty.
	Store(job *Job)

	// Load copies the blocks of job up into their files. On Loaded the file
	// holds exactly Size bytes whose checksum the tier has verified; on any
	// other outcome its content is undefined. See Store for the completion.
	Load(job *Job)

	// Remove drops the blocks and reports how many of them the tier held.
	// A Load that has begun may still finish with the old bytes; one that
	// begins later may not.
	Remove(keys []block.Key) int

	// Touch marks the blocks as recently used. Absent keys are ignored.
	Touch(keys []block.Key)

	// Close completes every job that was accepted, by finishing it or by
	// failing it with ErrClosed once ctx is done, then frees what the tier
	// holds. A second call does nothing.
	Close(ctx context.Context) error
}

// JobID numbers jobs, ascending from 1 for each engine.
type JobID uint64

// Job is a batch of blocks that move together between the primary tier and one
// secondary tier.
type Job struct {
	ID        JobID
	Request   string        // the caller's request id, for logs and batching; may be empty
	Promotion bool          // a Load on behalf of a reader rather than of a prefetch
	Blocks    []Transfer    // any number; keys are distinct
	Done      func(*Result) // called exactly once; must not block
}

// Transfer is one block of a job.
type Transfer struct {
	Key  block.Key
	Size int64          // bytes, exact
	Sum  block.Checksum // of the bytes; not Valid on Load if the engine does not know it
	// File is the block's file in the primary tier: the source of a Store,
	// at least Size long; the destination of a Load, open for writing with
	// Size bytes allocated. It stays open until Done returns; the tier does
	// not close it and uses positional I/O only.
	File *os.File
}

// Status tells what became of one block of a job.
type Status uint8

const (
	Failed  Status = iota // Err says why
	Stored                // the tier holds the block now
	Loaded                // the file holds the block now
	Skipped               // nothing to do, or no room: not an error
	Absent                // Load: the tier does not have it (any more)
)

// String returns the status in lower case.
func (s Status) String() string {
	return [...]string{"failed", "stored", "loaded", "skipped", "absent"}[s]
}

// Outcome is the result for one block.
type Outcome struct {
	Key    block.Key
	Status Status
	Bytes  int64          // bytes moved; 0 unless Stored or Loaded
	Sum    block.Checksum // Loaded: of the bytes that were verified
	Err    error          // Failed: one of the block kinds, wrapped in *block.Error
}

// Result completes a job.
type Result struct {
	Job      JobID
	Outcomes []Outcome // one for each block of the job, in its order
}

// TierStats is what a tier says about itself for status and metrics.
type TierStats struct {
	CapacityBytes int64
	UsedBytes     int64
	PinnedBytes   int64
	Blocks        int64
	State         string // "online", "degraded", "offline"
	Reason        string // why, if not online
}

// Statser is the ability to report TierStats. A tier without it shows as
// online with zeros.
type Statser interface {
	Stats() TierStats
}

// Enumerator is the ability to list what a tier holds, which the engine calls
// once when it opens, to fill its index. A tier without it starts out empty in
// the index, and its blocks are found by Lookup only.
type Enumerator interface {
	// Blocks calls fn for each block, in any order, on the caller's
	// goroutine, until fn returns false.
	Blocks(fn func(key block.Key, size int64, sum block.Checksum) bool) error
}
