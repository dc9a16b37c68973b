// Package reuse measures how blocks are used again, and estimates what more memory or a larger SSD would bring.
//
//	Meter    what the engine tells of its blocks; all that is known of them
//	Stats    the result at one moment
//
// # Estimate
//
// Two samples, one for memory and one for memory and SSD together, each estimate the hit ratio of an LRU cache of
// several sizes (Scales) for the asks that the node gets. An ask is a read of a block, or the look-up of a name that
// is not there. The look-ups of a missing name count as one ask until the block is stored: an engine may look
// several times, and Linux looks once more before it writes the block.
//
// The method is SHARDS with a sample of fixed size: Waldspurger, Park, Garthwaite, Ahmad, "Efficient MRC
// Construction with SHARDS", FAST 2015. A name is in the sample if its hash is below a limit, a share R of all hashes.
// The sample has its blocks in the order of their last use. The bytes of the blocks in front of one, divided by R, are
// about its stack distance (Mattson et al., 1970): an LRU cache of more bytes would have had it. When the sample has
// maxBlocks, the limit falls by half. A block farther back than the largest size is forgotten. The ratio is corrected
// as SHARDS-adj does: the hottest names may be in the sample or not, so the number of sampled reads differs from
// what R lets expect, and the difference counts as hits.
//
// What differs from the paper: distances are in bytes, the limit falls in steps, and blocks that were removed leave the
// sample. The estimate knows nothing of pins, quotas, leases, and policies other than LRU.
//
// A first read of a block from before the Meter is not counted. It would be a miss only because the Meter did not see
// the block before.
//
// # Cost
//
// An ask for a name outside the samples costs one comparison of a hash that the index has already, and one count: 2 ns. One
// in both samples costs 220 ns (BenchmarkRead). Beyond wholeBlocks names at most half of them are sampled, so a read costs
// at most 110 ns on average. Look-ups of ever new names that are not there cost the most, because each enters a name. While
// they go on, a sample of a node with many blocks shrinks until it has enoughBlocks of them. A sample takes at most 1 MiB.
package reuse
