// Package catalog is which blocks a bucket has, and where: an index in memory for hundreds of
// millions of blocks. A look-up never waits for I/O.
//
//	Catalog   blocks by path: Put, Get, Remove
//	Pack      an object with many blocks: its accounts, which say what to evict or to compact
//
// # Records
//
// A record is 26 bytes without pointers:
//
//	0         51         64      128    156      176    199    208 (bits)
//	+---------+----------+-------+------+--------+------+-------+
//	| hash 51 | class 13 | seq 64| pack | offset | size | class |
//	+---------+----------+-------+--28--+---20---+--23--+---9---+
//
// A path is known by 57 bits of its hash: 6 choose the shard, 51 are in the record. If two paths
// have the same bits, the later one replaces the other. That costs a miss, never wrong bytes, as the
// frame in the bucket has the path. With 300 million blocks that is to be expected once or less.
//
// The offset is in units of 64 bytes. A block of 8 MiB - 1 byte or more is alone in its pack, so the
// bytes that are live in the pack are its size.
//
// A class is what blocks have in common: directory, mode, uid, gid and the second in which they
// expire. There are up to 4 million at a time. A class counts its blocks, and goes with the last
// one. A directory counts its classes and directories. So it is found as long as a block is below it, and when a pack is dropped, its
// directories go without their paths being known.
//
// # Memory
//
// The records are in 64 shards by the top bits of the hash. Each is a table with linear probing that
// grows and shrinks by a sixteenth, at loads of 0.87 to 0.945. See table for how.
//
// Measured (Go 1.26, AMD EPYC, two cores). TestMemory has packs
// of 64 blocks and directories of 1000, which are included:
//
//	blocks                                      100,000   1,000,000  10,000,000
//	bytes a block, by the heap                     30.1        28.9
//	the most at any size from there on: growing 30.3, deleting 31.2, dropping packs 31.0
//	Get, present, ns                                            279         436
//	Get, absent, ns                                             240         415
//	Put of a new one and Forget, ns                            1406        1517
//	Drop of a pack with its blocks, ms                            4          39
//
// A pack takes 48 bytes and a directory 130 to 220. Get does not allocate. Packs, directories and
// classes give back their memory in chunks of 256. The maps of directories and removals never do.
//
// # Concurrency
//
// All methods may run in parallel. Each shard has two locks. A goroutine that changes the shard
// holds write. It holds mu, a RWMutex, for the moment in which the change becomes visible to
// look-ups. New tables are built under write only, so look-ups never wait for one.
//
// Remove makes its tomb first and then clears the shard; Put looks at the tombs while it holds the
// shard. So one of the two sees the other. In the same way Drop marks the packs first, and Put
// counts its block in the pack while it holds the shard.
//
// # Lock order
//
//   - shard.write before shard.mu;
//   - shard.write before packs.mu, tree.mu and tombs.mu;
//   - shard.mu before packs.mu (Get of a large block);
//   - the last three are leaves.
//
// No two shards are locked at once. No lock is held while Options.Now or the function given to Packs
// runs.
package catalog
