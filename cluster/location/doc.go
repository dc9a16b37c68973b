// Package location is the replicated index of which peer holds which block: a
// look-up of any key, present or absent, is local memory.
//
// # Entries
//
// The 64-bit hash of its path identifies a key. If two keys have one hash, the holder tells them
// apart, because it is asked by path: a collision costs a miss, never wrong bytes.
//
// An entry says that one holder, a Slot, has one version of a key. A key has as many entries as
// holders, up to MaxSlots. Look-ups return only entries of live slots and of the highest version.
// If some hold a directory and others a file of one name, the later one counts.
//
// # Graves
//
// A grave (hash, seq) says that all versions below seq are void: they were removed or replaced on
// some node. Entries below it are neither kept nor accepted, so a node that comes back with an old
// copy cannot revive it. The version seq itself is not void: it may be the replacement.
//
// Graves go after Options.Horizon or when there are more than Options.MaxGraves, the oldest first.
// Their age counts from when they were made. If it counted from when they were learned, nodes that
// exchange graves would keep them for ever. So what comes from a node with another clock
// is corrected by the difference before (package grave), and by seq, which follows the clocks of the peers. A wrong clock
// cannot make a grave last longer than Horizon after it was learned.
//
// # Memory
//
// An entry is 24 bytes without pointers:
//
//	0       8       16                                      24
//	+-------+-------+----------+---------+----------+--------+
//	| hash  | seq   | size 38  | slot 14 | class 11 | memory 1 (bits)
//	+-------+-------+----------+---------+----------+--------+
//
// hash is the key's hash, mixed with a seed of this index. A class is a number for a mode, a uid
// and a gid: a cluster has few of them. There are 2046 numbers, which are never reused. Entries
// whose attributes have no number have the class 2047 and keep them in a map of their shard, at
// about 60 bytes each.
//
// The entries are in 256 shards, by the top 8 bits of the mixed hash. Each shard is a table with
// linear probing, in order of hash and slot (Robin Hood hashing). So a miss ends as soon as a hit,
// all holders of a key are side by side, and a search may skip the thousands of holders of a
// neighbour. Tables consist of blocks and grow and shrink by a sixteenth, at loads of 0.82 to 0.9:
//
//	shard  blocks     entries of one block, the home of a hash rises with it
//	      +------+   +----+----+----+----+-   -+----+
//	      | 0    |-->| a1 | a4 | b2 |    | ... | f7 |
//	      | 1    |-->| f8 |    | g1 | g2 |     | k3 |
//	      | ...  |
//	      +------+   a to k: hashes; 1 to 8: slots
//
// A new table is built from the old one, and the old blocks go to a small pool for the next table.
// So at any time one shard in 256 takes twice its memory.
//
// Measured (Go 1.26, Xeon, two cores with other work; times are medians of short runs) with
// TestMemory and the benchmarks. The heap's count of bytes agrees with Stats to 0.2 of a byte:
//
//	entries                        100,000   1,000,000  10,000,000
//	bytes an entry, filled            29.4        28.6        27.2
//	the most at any size from there on, growing 29.8, deleting 30.5, dropping slots 30.1
//	look-up, present, ns               103         247         471
//	look-up, absent, ns                 88         231         465
//	random access to as much memory     28         173         591   (3, 30, 300 MB)
//	Put of a new one, ns               265         515         683
//	full garbage collection, ms          5           8          22
//
// So a look-up costs 60 to 80 ns of work and one access to memory. It does not allocate. Look-ups
// in the shard of a key with 4096 holders take 190 ns at 100,000 entries. The loss of a slot with
// 100,000 of 10 million entries takes 0.5 s. Look-ups wait only for the swap of two tables in each
// shard. An empty index takes 64 KiB.
//
// Digests and Retain look at all entries of a slot, and at those of the other slots on the way:
// 45 ns of CPU an entry of the slot, a twentieth of that for another one. The mixed hash can be
// turned back into the hash.
//
// What Drop frees stays with the process until the next garbage collection and some minutes more.
// GiveBack gives it to the system at once if it is much.
//
// Options.MaxBytes bounds the tables. A shard that may not grow takes no new entry.
//
// One table that doubles when it is full would be simpler. It would take up to twice as much memory
// just after that, and three times while it is copied.
//
// # Olric was not taken
//
// When all indexes together outgrow the memory of a node, keys will have to be sharded over the
// members. Olric v0.5.6 (DMap, embedded, on memberlist) was measured for that, one process a node on
// loopback, two cores with other work, keys of 8 bytes and values of 24:
//
//	heap an entry and copy         124 to 325 B (3 M and 1 M entries); here 28.6 B
//	look-up of one name            55 to 160 µs with one copy, 0.3 to 1.8 ms with three
//	10,000 names in a pipeline     0.35 to 0.4 s with one copy, 2.1 s with three; there is no multi-get
//	CPU of a look-up               92 to 200 µs; in a pipeline 21 to 24 µs
//	a node is killed               look-ups of its keys fail for 6.5 to 8 s
//	a node leaves                  with one copy 42 % of the entries were lost; with two or three,
//	                               lost copies are not made again
//
// Its port has neither TLS nor authentication, and its coordinator sends the whole routing table to all
// nodes at each change.
//
// # Concurrency
//
// All methods may run in parallel. Each shard has two locks. A goroutine that changes the shard
// holds write. It holds mu, a RWMutex, for the moment in which the change becomes visible to
// look-ups. New tables are built under write only, so look-ups never wait for one.
//
// Bury makes its grave first and then clears the shard; Put looks at the graves while it holds the
// shard. So one of the two sees the other. In the same way SetLive hides the slot first and then
// looks at the watches of each shard, and Watch looks at the slots while it holds the shard.
//
// # Lock order
//
//   - shard.write before shard.mu;
//   - shard.write before graves.mu (Put asks for a grave), classes.mu and pool.mu;
//   - teller.mu and the last three are leaves.
//
// No two shards are locked at once. No lock is held while Options.Lost, Options.Now or the function
// given to Graves runs.
package location
