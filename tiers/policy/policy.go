// Package policy holds eviction orders as pure data structures: which block
// should go next. LRU, ARC, MQ and S3FIFO implement Policy; New makes one by name.
//
// Blocks are dense small integers (the engine's index numbers), so a policy is a few flat arrays
// without pointers. 10 million blocks must neither cost gigabytes nor slow the garbage collector. A
// block costs 12 bytes in LRU, 28 in ARC and S3FIFO, 36 in MQ, a ghost 40 (BenchmarkMemory). The memory is
// that of the largest number so far. No code here locks, reads a clock, or allocates per operation
// in the steady state. The caller serialises calls.
//
// # Which one
//
//	lru     the least recently used goes first; a scan as large as the tier empties it
//	arc     blocks used once and blocks used again compete; the share of each
//	        follows which of them is missed after its eviction
//	mq      the least recently used goes first, but for each doubling of its uses a
//	        block may rest longer, by what fills the tier once
//	s3fifo  new blocks get a tenth of the tier to prove themselves; cheapest hits
//
// # Bursts
//
// A chain of blocks is of no use without its first, and engines use it from there. By the time of use the first would
// be the oldest. So blocks that are used in one Burst are ranked in reverse: each goes behind those of the burst that
// are in its queue already. A use reorders nothing in S3FIFO, so it does that when blocks are new. A policy keeps apart
// MaxBursts bursts, in 2.5 KiB, and a block costs no more for it.
//
// # Ghosts
//
// ARC, MQ and S3FIFO remember the hashes of blocks that they lately evicted. Ghosts have two limits. In
// bytes, the blocks' former sizes count towards a share of the capacity, as pages do in the papers.
// In number, the limit is the most blocks that were present at once (at least 1024), in MQ four
// times as many. So many small blocks cannot make the ghosts outgrow the blocks.
//
// # Decisions
//
//   - The papers evict inside a miss, exactly one victim for one newcomer. Here
//     the engine adds when a block is written and evicts in batches between two
//     watermarks, so Add never evicts and Victims chooses by the state it finds.
//     Where both happen in turn, as in the papers, the order is theirs.
//   - Skip in ARC keeps the queue: a block that is pinned through one long read is no more frequent
//     than before. In S3FIFO use is a count and not a place, so Skip is a Touch there. Blocks that
//     stay pinned leave the small queue, and the next call need not offer them all again.
package policy

import "fmt"

// Verdict is what the caller of Victims says about a candidate.
type Verdict uint8

const (
	Skip  Verdict = iota // cannot go now (pinned, leased); offer the next, treat this one as recently used
	Evict                // evicted: forget it, but remember its hash where the policy keeps ghosts
	Stop                 // enough; this candidate stays where it is
)

// Burst is the number of a burst: uses of blocks by one process in quick succession, in the order in which the process
// wants them. Within a burst the later block is the older one, because the blocks of a chain are of no use without
// those before them. A block that is used again in a burst keeps its place. 0: a use of its own.
type Burst uint16

// Policy orders blocks for eviction. No two methods may run in parallel.
type Policy interface {
	// Add enters a block that is not present; it panics on one that is. hash identifies the block's
	// key beyond its life in the policy. So a block that comes back soon after its eviction is
	// recognised. size is in bytes, at least 1. id is below 1<<32-1; memory grows with the highest
	// id.
	Add(id uint32, hash uint64, size int64)

	// Touch marks a block as used, in burst b. Unknown ids are ignored.
	Touch(id uint32, b Burst)

	// Follow gives a block its place in burst b, which does not count as a use. came: the block came in this burst, else
	// it was looked up. Unknown ids and burst 0 are ignored.
	Follow(id uint32, b Burst, came bool)

	// BurstOf returns the burst in which a block took its place, 0 if it was in none or is unknown.
	BurstOf(id uint32) Burst

	// Move gives a block another number, which no block has. The block keeps its place. An unknown from
	// is ignored.
	Move(from, to uint32)

	// Remove forgets a block that went for a reason other than eviction.
	// Unknown ids are ignored.
	Remove(id uint32)

	// Victims calls fn with candidates, the best first, until fn returns Stop
	// or each block has been offered once. fn must not call the policy. The
	// work is proportional to the blocks offered, in S3FIFO at most to four
	// times the blocks present.
	Victims(fn func(id uint32) Verdict)

	// Len returns the number of blocks present.
	Len() int
}

var (
	_ Policy = (*LRU)(nil)
	_ Policy = (*ARC)(nil)
	_ Policy = (*MQ)(nil)
	_ Policy = (*S3FIFO)(nil)
)

// New returns the policy of that name. capacityBytes is the capacity of the tier and must be
// positive. It bounds the memory of ghosts and the sizes of internal queues. The errors are for the
// reader of a configuration and have no kind.
func New(name string, capacityBytes int64) (Policy, error) {
	if capacityBytes <= 0 {
		return nil, fmt.Errorf("policy %s: capacity %d must be positive", name, capacityBytes)
	}
	switch name {
	case "lru":
		return NewLRU(), nil
	case "arc":
		return NewARC(capacityBytes), nil
	case "mq":
		return NewMQ(capacityBytes), nil
	case "s3fifo":
		return NewS3FIFO(capacityBytes), nil
	}
	return nil, fmt.Errorf("unknown policy %q: want lru, arc, mq or s3fifo", name)
}
