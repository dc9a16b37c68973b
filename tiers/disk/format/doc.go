// Package format is what the SSD tier writes to a directory, byte by byte: it encodes and decodes
// pages, chunks and names. It does no I/O, starts no goroutine and holds no state.
//
//	Superblock    kvfs-disk
//	SlabHeader    the first page of a slab, and where in the file its slots are
//	SlotHeader    a block in its slot
//	IndexHeader, Run, SealChunk, CheckChunk   kvfs-index
//
// A page that is not as it was written is an error that wraps block.ErrCorrupt. A page of a later
// version is a VersionError. All sizes and offsets are bytes.
//
// # Format, version 1
//
// All integers are little endian, all checksums CRC-64/NVME. Everything is written in pages of 4096
// bytes at offsets that are multiples of 4096. The magic, version and checksum of a page, and the
// epoch in a slot header, keep their places in all versions. A reader refuses the directory if any
// page has a later version than its own. The error names both versions. Reserved bytes are zero
// when written and ignored when read.
//
//	DIR/kvfs-disk        superblock, two copies; locked (flock) while in use
//	DIR/kvfs-index       compact index, of all slabs only after a clean close
//	DIR/kvfs-index.tmp   an index that is being written
//	DIR/kvfs-place       the file system that the directory was on, as JSON; may be absent
//	DIR/kvfs-slab.tmp    a slab that is being made: renamed when it has its header
//	DIR/slab-00000007    slab number 7
//
// Superblock: two pages, at 0 and 4096. The valid one with the higher sequence counts. The other is
// written next, so a torn write loses nothing.
//
//	   0   8  magic "KVFSDISK"
//	   8   4  version
//	  12   4  flags: 1 the index is valid (closed cleanly), 2 see below
//	  16  16  uuid of the directory
//	  32   8  sequence
//	  40   8  slab bytes: size of the slabs made from now on
//	  48   8  index generation: of the index that the flag speaks of
//	  56   8  day: days since the epoch, UTC, of the next field
//	  64   8  bytes written on that day
//	  72 4008  changed slabs: a bit for each number below 32064, the lowest first
//	4088   8  checksum of bytes 0 to 4087
//
// With the flags 1 and 2 the tier was not closed. The index has the generation of the superblock and one more, and is
// right for the slabs that it describes, but for the changed ones. A slab is marked as changed, durably and in both
// copies, before the first write to it. A kvfs that does not know flag 2 finds an index of another
// generation: it reads the tables, and clears the flags before it writes.
//
// Slab: one page of header, a contiguous table of one page a slot, then the slots.
// Recovery reads tables, never data.
//
//	            0  slab header
//	         4096  slot header 0
//	         8192  slot header 1
//	          ...
//	4096*(1+n)     slot 0: slot-bytes of data
//	          ...
//
// Slab header:
//
//	   0   8  magic "KVFSSLAB"
//	   8   4  version
//	  12   4  slab number, as in the file's name
//	  16  16  uuid of the directory
//	  32   8  epoch: a slot header with another one is free; random, and another one
//	          when the slab changes its slot bytes
//	  40   8  slot bytes, a multiple of 4096
//	  48   4  slots
//	4088   8  checksum of bytes 0 to 4087
//
// Slot header. A page that is not valid is a free slot; all zeros is how a slot is freed. A slab
// that changed its slot bytes has only free slots. Their pages may still hold old data. Epoch, seq
// and the number of slots are never 0. Key, directories and attributes take at most 4000 bytes. A longer key is
// refused, and a key with too many attributes. Directories that do not fit are left out, from the end.
//
//	   0   8  magic "KVFSSLOT"
//	   8   4  version
//	  12   4  flags: 1 pinned
//	  16   8  epoch of the slab
//	  24   8  seq: of two headers with one key the higher counts
//	  32   8  size of the block in bytes
//	  40   8  checksum of the block's bytes
//	  48   8  mtime, nanoseconds since the epoch
//	  56   8  expires, likewise; 0 never
//	  64   4  mode
//	  68   4  uid
//	  72   4  gid
//	  76   4  slot, as by its place in the table
//	  80   2  key bytes
//	  82   2  directories
//	  84   2  bytes of attributes of processes
//	  86   2  reserved
//	  88      key (the path below the mount), then 12 bytes a directory: mode, uid, gid,
//	          then the attributes, as block.UserAttrs
//	4088   8  checksum of bytes 0 to 4087
//
// The data of a slot is the block, then zeros up to a multiple of 4096. The rest of the slot is
// undefined.
//
// Index: a page of header, then chunks of 1 MiB. The last chunk is cut after its used bytes to
// whole pages. The index is written as kvfs-index.tmp, synced and renamed. Then its generation is
// written to the superblock. The index counts only if the superblock's flag is set and the
// generation is the same. The header:
//
//	   0   8  magic "KVFSINDX"
//	   8   4  version
//	  12   4  slabs
//	  16  16  uuid of the directory
//	  32   8  generation
//	  40   8  blocks
//	  48   8  bytes of the file
//	4088   8  checksum of bytes 0 to 4087
//
// A chunk:
//
//	 0   8  checksum of bytes 8 to used bytes
//	 8   4  used bytes, these 24 included
//	12   4  number of the chunk, from 0
//	16   8  generation
//	24      runs
//
// A run is a list of slots of one slab. The next chunk may continue it as another run. Slabs come
// in ascending order, and a slab without used slots is a run without entries. Slots come in
// ascending order. Where a chunk is damaged, the tables of its slabs are read instead.
//
//	 0   4  slab number
//	 4   4  slots of the slab
//	 8   8  epoch of the slab
//	16   8  slot bytes of the slab
//	24   4  entries
//	28   4  reserved
//	32      entries
//
// An entry has no padding. Its fields mean the same as in the slot header.
//
//	 0   4  slot
//	 4   2  flags: 1 pinned
//	 6   2  bytes of attributes of processes
//	 8   2  key bytes
//	10   2  directories
//	12   4  mode
//	16   4  uid
//	20   4  gid
//	24   8  seq
//	32   8  size
//	40   8  checksum of the block's bytes
//	48   8  mtime
//	56   8  expires
//	64      key, then 12 bytes a directory, then the attributes
package format
