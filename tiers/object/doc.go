// Package object is the tier on object storage: blocks in a bucket of an S3 store that the site runs already. The
// blocks outlive all nodes, and several nodes and clusters may share a bucket.
//
//	Tier      driver.Tier and driver.Finder over a Bucket
//	Bucket    what the tier asks of a store; package bucket has the one over S3
//
// Its parts are packages of their own, which do not know it:
//
//	pack      what is in the bucket, byte by byte
//	catalog   which blocks the bucket has, in memory
//	bucket    requests to the store: limits, retries, hedging, breaker
//
// # Stores
//
// A block below Options.PackBelow waits in a queue until the blocks there fill a pack, at most Options.Linger, and a
// sixteenth of that after the last one came. A
// larger block is a pack alone. A pack is built in memory and written with one PUT, so that a process that dies
// leaves no half of it. Its blocks are Stored when the PUT has succeeded.
//
// # Loads
//
// The catalog says in which pack a block is and where. One ranged GET brings its frame: a header, the path and the
// data. The data goes into the block's file as it comes, 256 KiB at a time, so that it is summed and copied while it
// is in the processor's cache. The block is Loaded when the whole frame is right: the path, so that two paths of one
// hash are never confused, and the checksum of the data. Blocks of one job that are neighbours in a pack come with
// one GET.
//
// # What the bucket has
//
// Nothing that an engine waits for lists the bucket. At start a goroutine lists it, reads the index at the end of
// each pack, newest first, and enters the blocks in the catalog. Until it has finished, blocks that it has not reached
// are misses. Every Options.Refresh it lists what is newer than the last listing, and once an hour everything, so
// that it learns of the packs that other nodes have written and deleted. A pack that is gone is a miss. Nodes do not
// tell each other of packs: the peers of the node that wrote a pack know its blocks already, and ask that node. They
// need the pack when that node has lost the blocks, and that is seldom within Options.Refresh.
//
// Find answers for blocks that this engine never stored. Their modification time is that of the commit, as the seq
// has it.
//
// # Removals
//
// A removed block leaves the catalog at once, and a tombstone for it is written to the bucket, at most a second
// later. A node that dies within that second may find the block again. Others learn of the tombstone with their next
// listing. A tombstone is deleted after Options.TombstoneTTL, when no pack from before it has dead blocks.
// A tombstone counts for the packs that are named before it. So a pack is named before its blocks are chosen, and a
// tombstone of a block that is being stored again waits for the end of that. Names are later than those of all objects
// that the node has read, if these are less than 15 minutes ahead of its clock.
//
// # Space
//
// With Options.CapacityBytes the oldest packs go when the bucket has more. With Options.TTL packs go at that age.
// The engine is asked for each block of such a pack (driver.Host.MayEvict). A pack of which more than half is dead is
// written anew without that half, at most Options.RewriteBytes a day. Blocks that the engine does not give up are
// written anew in the same way. With Options.BucketExpires the tier deletes no pack: a rule of the bucket does.
//
// All nodes that share a prefix delete the same oldest packs. Only the writer of a pack writes it anew, or anybody once
// it is a day old: two that do so at once cost space, never a wrong byte.
//
// # Outages
//
// When the store does not answer, its breaker opens. Look-ups then find nothing, and stores and loads fail at once,
// until a probe succeeds. Nothing in memory or on SSD waits for the store.
//
// # Lock order
//
// Tier.mu before queue.mu and the locks of the catalog, which are leaves. No lock is held during a request, or while the
// Host or Job.Done is called.
package object
