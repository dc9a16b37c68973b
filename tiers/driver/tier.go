package driver

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
// may be called in parallel.
//
// Source: vLLM v1/kv_offload/tiering/base.py, SecondaryTierManager.
type Tier interface {
	// Lookup sets out[i] to the presence of keys[i]. It fails with
	// ErrInvalid if the lengths differ, ErrUnavailable if the tier is
	// offline, ErrClosed after Close; out is then all Miss. Empty keys are
	// a successful no-op.
	Lookup(ctx context.Context, keys []block.Key, out []Presence) error

	// Store copies the blocks of job down into the tier. Another version of a
	// block, by Attrs.Seq, is replaced; until the Store is done that one may still
	// answer. Of two Stores of a key the one submitted later remains, whatever the
	// order in which they end.
	//
	// Skipped without an Err means that the tier holds this version already. With
	// Err it does not: ErrNoSpace (no room without evicting a block of the same
	// job, queue full), ErrBudget (it may not write more today), ErrPending
	// (another job is storing this version), ErrNotFound (removed, renamed over or
	// superseded while it was being stored).
	//
	// From the return of Store until a block is dealt with, Lookup of it answers
	// Pending, or Hit if another version is held, and a Load of it waits or
	// fails with ErrPending; it is not Absent.
	//
	// Store and Load take ownership of job until they have called job.Done,
	// which they do exactly once, from any goroutine but not from within
	// Store or Load itself unless the job is Spare, with one Outcome a block in the order of job.Blocks,
	// also when everything failed, was skipped, or the job is empty.
	Store(job *Job)

	// Load copies the blocks of job up into their files. On Loaded the file
	// holds exactly Size bytes whose checksum the tier has verified; on any
	// other outcome its content is undefined; after Failed with ErrUnavailable or
	// ErrClosed a device may even write to it later, so that it must not be used
	// again. If Sum or Size, or to a Finder Attrs.Seq if it is not 0, differ from what
	// the tier has recorded for the key, it has another version: Absent. A copy that
	// proves bad is dropped by the tier before it reports Failed with
	// ErrCorrupt. See Store for the completion.
	Load(job *Job)

	// Remove drops the blocks and reports how many of them the tier held.
	// A Load that has begun may still finish with the old bytes; one that
	// begins later may not. It also undoes a Store that was accepted before: that
	// block comes out as Skipped with ErrNotFound, or Stored if it was first, and is
	// gone either way.
	Remove(keys []block.Key) int

	// Touch marks the blocks as recently used. Absent keys are ignored.
	Touch(keys []block.Key)

	// Close completes every job that was accepted, by finishing it or by
	// failing it with ErrClosed once ctx is done, then frees what the tier
	// holds. A second call does nothing. Calls that come later find nothing: Lookup
	// fails with ErrClosed, and so do jobs and Sync, through Done as usual.
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
	Force     bool          // a Store that somebody waits for (fsync): no write budget applies
	Spare     bool          // a Load that may keep its caller until it is done, and call Done from within Load
	Blocks    []Transfer    // any number; keys are distinct
	Done      func(*Result) // called exactly once; must not block
}

// Transfer is one block of a job.
type Transfer struct {
	Key  block.Key
	Size int64 // bytes, exact
	// Sum is the checksum of the bytes. If it is not Valid, a Store computes it and
	// reports it, and a Load takes the one that the tier has recorded.
	Sum block.Checksum
	// Attrs is kept with the block by a Store. A Load from a Remote tier has the Seq of
	// the version that is wanted, and no other field; so has a Load of a block from a Finder
	// if its Sum is not known. Other Loads have none.
	Attrs Attrs
	// Volatile: the file may change while it is stored. What is stored must be one
	// reading of it, with the checksum of that reading.
	Volatile bool
	// Burst is the burst in which the block of a Store was written; 0: none, or it is not known. Of the blocks of a burst
	// the first is the most useful. A tier may keep it longest. Numbers come back after some time.
	Burst uint16
	// File is the block's file in the primary tier: the source of a Store,
	// at least Size long; the destination of a Load, open for writing, with
	// no bytes allocated: the tier does that where it needs to. It stays open until Done returns; the tier does
	// not close it and uses positional I/O only.
	File *os.File
}

// Attrs is what a tier keeps with a block besides its bytes, so that a later
// process finds the file as it was.
type Attrs struct {
	Seq     uint64 // version: of two copies of a key the higher one is the later; never 0
	Mode    uint32 // permission bits
	UID     uint32
	GID     uint32
	Mtime   int64           // nanoseconds since the epoch
	Expires int64           // likewise; 0: never
	Pinned  bool            // by the user
	User    block.UserAttrs // of a UserKeeper
	// Dirs are the directories above the block, outermost first, so that they can
	// be made again. A tier without room for all may keep fewer, from the front.
	Dirs []DirAttrs
}

// DirAttrs is what is kept of a directory.
type DirAttrs struct{ Mode, UID, GID uint32 }

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
	Sum    block.Checksum // Loaded and Stored: of the bytes
	Err    error          // Failed, or Skipped and not held: one of the block kinds, wrapped in *block.Error
	Attrs  *Attrs         // Loaded from a Remote tier, or from a Finder with a Seq: what was stored with this copy; else nil
}

// Result completes a job.
type Result struct {
	Job      JobID
	Outcomes []Outcome // one for each block of the job, in its order
}

// Stats is what a tier says about itself for status and metrics. The counters
// are totals since it was opened.
type Stats struct {
	CapacityBytes int64  `json:"capacity_bytes" help:"as in 'tiers[]'"`
	UsedBytes     int64  `json:"used_bytes" help:"as in 'tiers[]'"`
	PinnedBytes   int64  `json:"pinned_bytes" help:"as in 'tiers[]'"`
	Blocks        int64  `json:"blocks" help:"as in 'tiers[]'"`
	State         string `json:"state" help:"as in 'tiers[]'"`
	Reason        string `json:"reason,omitempty" help:"as in 'tiers[]'"`

	StoredBytes    uint64 `json:"stored_bytes" help:"bytes of these blocks"`
	LoadedBytes    uint64 `json:"loaded_bytes" help:"bytes of these blocks"`
	Stored         uint64 `json:"stored_blocks" help:"blocks that the tier stored"`
	Loaded         uint64 `json:"loaded_blocks" help:"blocks that the tier gave"`
	Evicted        uint64 `json:"evicted_blocks" help:"evictions from the tier"`
	Corrupt        uint64 `json:"corrupt_blocks" help:"copies that failed their checksum"`
	IOErrors       uint64 `json:"io_errors" help:"reads and writes that failed"`
	SkippedNoSpace uint64 `json:"skipped_no_space_blocks" help:"blocks not stored for lack of room"`
	SkippedBudget  uint64 `json:"skipped_budget_blocks" help:"blocks not stored because the write budget of the day was used up"`

	Detail any `json:"detail,omitempty"` // what else the tier has to say, ready for encoding/json; nil if nothing
}

// Statser is the ability to report Stats. A tier without it shows as
// online with zeros.
type Statser interface {
	Stats() Stats
}

// Held is one block that a tier holds.
type Held struct {
	Key   block.Key
	Size  int64 // bytes
	Sum   block.Checksum
	Attrs Attrs
}

// Packer is the ability to write the blocks of several Store jobs at once. The engine gives it more jobs at a time than
// other tiers.
type Packer interface {
	// PackBytes is how much the blocks of all jobs should come to, as long as there are enough.
	PackBytes() int64
}

// Enumerator is the ability to list what a tier holds, which the engine calls
// once when it opens, before any job, to fill its index. A tier without it starts
// out empty in the index, and its blocks are found by Lookup only.
type Enumerator interface {
	// Blocks calls fn for each block, in any order, on the caller's
	// goroutine, until fn returns false. Held is valid until fn returns.
	Blocks(fn func(h *Held) bool) error
}

// Host is what the engine does for a tier that gives up blocks by itself. Its
// methods take the lock of the engine for a moment and never block on I/O; the tier holds no
// lock of its own when it calls them, and may call them from any goroutine.
type Host interface {
	// MayEvict asks for leave to evict a block. True: the engine counts on this
	// copy no longer, and it must go: the tier does not ask again for it, and a Store
	// of the block meanwhile does not rely on it. False: it was promised to somebody
	// (a look-up's lease, a pin), so choose another.
	MayEvict(key block.Key) bool
	// Lost tells that the copy of a block is gone, or not fit to be used any
	// more: err is ErrCorrupt (checksum), ErrUnavailable (its device failed), or
	// ErrNotFound (another process that shares the device has removed it). It
	// comes once, and not for what was evicted with leave, removed or replaced.
	Lost(key block.Key, err error)
}

// Sweeper is a Host that looks up by itself which blocks a tier has lost.
type Sweeper interface {
	// Sweep tells that the tier has lost blocks and does not know their names. It
	// does not block. The Host calls Lookup for the blocks that it counts on, and
	// takes those that are not there as Lost, with ErrNotFound.
	Sweep()
}

// Hosted is the ability to tell a Host. SetHost comes before any job.
type Hosted interface {
	SetHost(Host)
}

// Recorder is the ability to rename blocks and to change what is kept with them,
// without moving their bytes. A tier without it stores blocks anew that have
// another name, mode, owner, pin or time to live, and does not learn of a new
// Mtime, nor of new attributes of a directory before the next Store below it.
type Recorder interface {
	// Update gives the block from the name to, which may be the same, and new
	// attributes; a is the caller's again when it returns. What the tier held as to
	// before is dropped. It is asynchronous as to the device but in effect when it
	// returns. False: it does not hold from, or not any more, because it cannot keep
	// the new name; or it is offline.
	Update(from, to block.Key, a *Attrs) bool
}

// UserKeeper is the ability to keep Attrs.User with a block. A block that has some is not stored in a tier without it.
type UserKeeper interface {
	// KeepsUser does nothing.
	KeepsUser()
}

// Syncer is the ability to make durable what was stored.
type Syncer interface {
	// Sync calls done once, not from within Sync, when everything that was
	// Stored, Removed or Updated before the call would survive a power cut, or with
	// the error that prevents it (ErrUnavailable).
	Sync(done func(error))
}
