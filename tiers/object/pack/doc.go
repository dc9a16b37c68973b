// Package pack is the format of the objects that kvfs keeps in a bucket, byte by byte. It does no
// I/O by itself, starts no goroutine and holds no global state.
//
//	Name       the name of an object, which says where its index is
//	Builder    makes a pack of blocks in one buffer
//	ReadIndex  the blocks of a pack, from its tail
//	CheckFrame the header of one block, from a ranged read
//	Verify     checks a whole pack
//	EncodeTombs, DecodeTombs   removals
//
// Bytes that are not as they were written are an error that wraps block.ErrCorrupt. An object of a
// later version is a VersionError.
//
// # Format, version 2
//
// What has no attributes of processes is written as version 1, which does not know them.
//
// Integers are little endian, checksums CRC-64/NVME, sizes and offsets bytes. Magic, checksum and
// version keep their places in all versions.
//
// The name of an object has its time in nanoseconds since the epoch, the id of its writer, and for
// a pack the offset of its index in units of 64 bytes, all as hex digits of fixed number. Names sort
// by time. With the size of the object, the name says which range has index and footer.
//
//	18bcd3f5a1b2c3d4-00000000deadbeef-000fffe0.pack
//	18bcd3f5a1b2c3d4-00000000deadbeef.tomb
//
// A pack is frames, an index and a footer. A frame holds a block. Each frame begins where the one
// before it ends, rounded up to a multiple of 64. So does the index. The bytes between are zero. So
// the index need not store offsets, and frames cannot overlap.
//
//	0                                                            size
//	+---------+---------+-   -+---------+-----------+--------------+
//	| frame 0 | frame 1 | ... | frame n | index     | footer of 64 |
//	+---------+---------+-   -+---------+-----------+--------------+
//
// If there are several blocks, each has at most MaxShared bytes, and the index is at most at
// MaxFrames. A larger block is alone in its pack. Index and footer are at most MaxTail long.
//
// Frame. One read of 64 + path bytes + size bytes gets a block and all that proves it. The caller
// knows the path, and so the length.
//
//	 0  8  magic "KVFSFRAM"
//	 8  8  checksum of bytes 16 to 64 + path bytes
//	16  2  version
//	18  2  path bytes
//	20  2  mode
//	22  2  bytes of attributes of processes
//	24  8  seq, never 0
//	32  8  size of the data
//	40  8  checksum of the data
//	48  8  mtime, nanoseconds since the epoch
//	56  4  uid
//	60  4  gid
//	64     path, then the data, then, if there are attributes, their checksum of 8 bytes and they themselves, as
//	       block.UserAttrs
//
// Index: an entry for each frame, in their order. u is an unsigned varint, s a signed one, both as
// in encoding/binary. "Previous" is the entry before; before the first one all is zero and empty.
//
//	8  checksum of the data
//	1  flags: 1 pinned, 2 expires, 4 mode, uid, gid and directories are as in the previous entry, 8 attributes
//	u  bytes of the path that are as in the previous path
//	u  further bytes of the path
//	   these bytes
//	u  size
//	s  seq, less the previous one
//	s  mtime, less the previous one
//	s  expires, less mtime; only with flag 2
//	u  bytes of the attributes, and these bytes; only with flag 8
//	u  mode, uid, gid, number of directories; only without flag 4
//	u  mode, uid, gid of each directory above the block, the outermost first; likewise
//
// There are at most as many directories as the path has slashes. Fewer are the outermost ones.
//
// Footer:
//
//	 0  8  magic "KVFSPACK"
//	 8  8  checksum of bytes 16 to 64
//	16  4  version
//	20  4  entries
//	24  8  offset of the index, as in the name
//	32  8  bytes of the index
//	40  8  checksum of the index
//	48  8  time, as in the name
//	56  8  writer, as in the name
//
// Tombstones: an object that says which versions of which paths were removed.
//
//	 0  8  magic "KVFSTOMB"
//	 8  8  checksum of bytes 16 to the end
//	16  4  version
//	20  4  entries
//	24  8  time, as in the name
//	32  8  writer, as in the name
//	40     entries: u path bytes, the path, u seq, s expiry
package pack
