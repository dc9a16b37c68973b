package index

import "syscall"

// ID numbers an entry. 0 is none, Root the root directory. An ID is used
// again after Free.
type ID uint32

// Root is the root directory; it always exists and has no name.
const Root ID = 1

// Entry is one directory or file. It holds no pointers. The exported fields belong to the caller.
// Alloc zeroes them. After that the index reads only the type bits of Mode, to check that a parent
// is a directory.
type Entry struct {
	// What a look-up needs is in the first 64 bytes: the fewer cache lines, the fewer waits for memory.
	hash      uint32 // of parent and name
	chain     ID     // next in the same bucket; if free, next free entry
	parent    ID     // 0 for Root and unlinked entries
	name      uint32 // slot in the size class of nameLen
	nameLen   uint8  // bytes in that slot, 1 to 255 if linked; 0 for Root
	state     state
	Flags     uint16
	Mode      uint16 // type and permission bits, as st_mode
	orderHigh uint16
	Blob      uint64 // file in the primary tier; 0: none
	Lease     int64  // do not evict before this time
	Size      int64  // bytes
	Group     uint32 // ordinal of the group, given by the caller
	Tiers     uint16 // secondary tiers that hold the block, one bit each
	Storing   uint16 // those that it is being copied to

	Mtime    int64 // nanoseconds since the epoch, as all times here
	Atime    int64
	Ctime    int64
	Seq      uint64 // commit number of the bytes
	Sum      uint64 // checksum, valid if Flags says so
	UID      uint32
	GID      uint32
	Lookups  uint32    // references by the kernel
	Opens    uint32    // open handles: pins
	Accounts [2]uint16 // numbers of accounts, given by the caller; 0: none

	// The tree; see the methods of Index.
	prev, next ID     // siblings, ascending by order
	orderLow   uint32 // see order
}

// order returns the cookie among siblings, which ascends in time of linking.
func (e *Entry) order() uint64 { return uint64(e.orderHigh)<<32 | uint64(e.orderLow) }

func (e *Entry) setOrder(n uint64) { e.orderHigh, e.orderLow = uint16(n>>32), uint32(n) }

// children are those of a directory.
type children struct {
	first, end ID
	count      uint32
}

func (e *Entry) isDir() bool { return e.Mode&syscall.S_IFMT == syscall.S_IFDIR }

type state uint8

const (
	free state = iota
	unlinked
	linked // and all above, by the groups of digits in the name
)

// length returns the bytes of the name.
func (e *Entry) length() int { return int(e.nameLen) + e.state.groups()*digits/2 }

// groups returns how many groups of digits the name begins with.
func (s state) groups() int { return max(int(s)-int(linked), 0) }

const (
	entryBits  = 10 // 1024 entries, 128 KiB a chunk: what an empty index costs
	entryChunk = 1 << entryBits
)

type entries [entryChunk]Entry
