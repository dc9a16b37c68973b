// Package block is the vocabulary of kvfs: the name of a block, the kinds of
// error, and the checksum. It imports nothing of ours, so every other package
// may import it.
//
// # Words
//
//	block     the fixed-size KV bytes of a run of tokens of one group; immutable once committed
//	hash      the engine's name for a block: opaque bytes, any width, '/' allowed
//	group     a KV-cache group: the first path component below the mount
//	key       group + hash; comparable; names the file <mount>/<group>/<hash>
//	tier      one storage level; tier 0 is primary (host memory), the rest secondary
//	commit    the moment at which a written block becomes visible, whole
//	cascade   copy a committed block from the primary tier to the secondary ones
//	promote   copy a block from a secondary tier to the primary one
//	evict     drop a block from one tier; the other tiers keep theirs
//	remove    drop a block from all tiers
//	pin       hold a reference that forbids eviction
//	touch     mark as recently used without reading
//	lease     the time after a positive look-up in which a block stays readable
//	segment   memory that a peer contributes to the pool; never a file on disk
//	slab      one preallocated file on disk, cut into equal slots
//	replica   one of n copies of a block on different peers
//	peer      another kvfs daemon (node is a FUSE word: say inode)
//	pending   a block whose transfer is under way: neither hit nor miss
//
// The words are those of vLLM (vllm/v1/kv_offload, kv_cache_utils.py) and of the
// Mooncake store, each with one meaning here.
package block
