package index

import "syscall"

// ID numbers an entry. 0 is none, Root the root directory. An ID is used
// again after Free.
type ID uint32

// Root is the root directory; it always exists and has no name.
const Root ID = 1

// Entry is one directory or file. It holds no pointers. Its methods say what the caller keeps in its Fields.
type Entry struct {
	// What a look-up needs is in the first 64 bytes: the fewer cache lines, the fewer waits for memory.
	hash      uint32 // of parent and name
	chain     ID     // next in the same bucket; if free, next free entry
	parent    ID     // 0 for Root and unlinked entries
	name      uint32 // slot in the size class of nameLen
	nameLen   uint8  // bytes in that slot, 1 to 255 if linked; 0 for Root
	state     state
	orderHigh uint16
	orderLow  uint32 // see order

	f Fields

	// The tree; see the methods of Index.
	prev, next ID // siblings, ascending by order
}

// Fields are what the caller keeps of an entry. Alloc zeroes them. After that the index reads only the type bits of Mode,
// to check that a parent is a directory.
type Fields struct {
	Flags    uint16
	Mode     uint16    // type and permission bits, as st_mode
	Group    uint32    // ordinal of the group, given by the caller
	Blob     uint64    // file in the primary tier; 0: none
	Lease    int64     // do not evict before this time
	Size     int64     // bytes
	Tiers    uint16    // secondary tiers that hold the block, one bit each
	Storing  uint16    // those that it is being copied to
	Accounts [2]uint16 // numbers of accounts, given by the caller; 0: none

	Mtime   int64 // nanoseconds since the epoch, as all times here
	Atime   int64
	Ctime   int64
	Seq     uint64 // commit number of the bytes
	Sum     uint64 // checksum, valid if Flags says so
	UID     uint32
	GID     uint32
	Opens   uint32 // open handles: pins
	Lookups uint32 // references by the kernel
}

// Fields returns the fields of an entry, to be changed.
func (e *Entry) Fields() *Fields { return &e.f }

// order returns the cookie among siblings, which ascends in time of linking.
func (e *Entry) order() uint64 { return uint64(e.orderHigh)<<32 | uint64(e.orderLow) }

func (e *Entry) setOrder(n uint64) { e.orderHigh, e.orderLow = uint16(n>>32), uint32(n) }

// children are those of a directory.
type children struct {
	first, end ID
	count      uint32
}

// Flags of an entry.
const (
	FlagUncommitted uint16 = 1 << iota // being written: not yet visible to other processes
	FlagTemp                           // its name looks temporary
	FlagPinned                         // by the user, through user.kvfs.pinned
	FlagSum                            // Sum is valid
	FlagPolicy                         // is in its group's policy
	FlagCounted                        // its charge counts as pinned
	FlagRefused                        // a secondary tier refused it: do not try again
	FlagOnceSeen                       // not copied down because it was seen only once
	FlagSynced                         // fsync has stored a version under its name
	FlagTouched                        // is in opens.touched
	FlagFetched                        // another node made this version
	FlagPlain                          // its name is one of PlainPatterns
	FlagUsed                           // a directory of other nodes that a process of this node uses
	FlagUser                           // a file with attributes of processes
	FlagUnread                         // a file of other nodes or a Finder: its attributes of processes come with its bytes
)

// IsDir reports whether the entry is a directory.
func (e *Entry) IsDir() bool { return e.f.Mode&syscall.S_IFMT == syscall.S_IFDIR }

// IsRegular reports whether the entry is a regular file.
func (e *Entry) IsRegular() bool { return e.f.Mode&syscall.S_IFMT == syscall.S_IFREG }

// Linked reports whether the entry has a place in the tree, as Index.Linked does.
func (e *Entry) Linked() bool { return e.state >= linked }

// InMemory reports whether the primary tier has a version of the file.
func (e *Entry) InMemory() bool { return e.f.Blob != 0 }

// Committed reports whether all processes may see the entry: it is not a file that is being written for the first time.
func (e *Entry) Committed() bool { return e.f.Flags&FlagUncommitted == 0 }

// IsTemp reports whether the name looks temporary, or is below a directory whose name does.
func (e *Entry) IsTemp() bool { return e.f.Flags&FlagTemp != 0 }

// IsPlain reports whether the name is one of PlainPatterns.
func (e *Entry) IsPlain() bool { return e.f.Flags&FlagPlain != 0 }

// Stable reports whether the entry is committed under a name that is neither temporary nor plain. Only commits change
// such an entry.
func (e *Entry) Stable() bool { return e.f.Flags&(FlagUncommitted|FlagTemp|FlagPlain) == 0 }

// Pinned reports whether a user has pinned the entry. A file of a pinned group need not be.
func (e *Entry) Pinned() bool { return e.f.Flags&FlagPinned != 0 }

// HasSum reports whether Sum is valid.
func (e *Entry) HasSum() bool { return e.f.Flags&FlagSum != 0 }

// Ranked reports whether the file is in its group's order of eviction.
func (e *Entry) Ranked() bool { return e.f.Flags&FlagPolicy != 0 }

// Counted reports whether the file's charge counts as pinned.
func (e *Entry) Counted() bool { return e.f.Flags&FlagCounted != 0 }

// Synced reports whether fsync has stored a version under the file's name.
func (e *Entry) Synced() bool { return e.f.Flags&FlagSynced != 0 }

// Used reports whether a process of this node uses the directory, which other nodes have.
func (e *Entry) Used() bool { return e.f.Flags&FlagUsed != 0 }

// Flags returns the field of this name.
func (e *Entry) Flags() uint16 { return e.f.Flags }

// Mode returns the field of this name.
func (e *Entry) Mode() uint16 { return e.f.Mode }

// Group returns the field of this name.
func (e *Entry) Group() uint32 { return e.f.Group }

// Blob returns the field of this name.
func (e *Entry) Blob() uint64 { return e.f.Blob }

// Lease returns the field of this name.
func (e *Entry) Lease() int64 { return e.f.Lease }

// Size returns the field of this name.
func (e *Entry) Size() int64 { return e.f.Size }

// Tiers returns the field of this name.
func (e *Entry) Tiers() uint16 { return e.f.Tiers }

// Storing returns the field of this name.
func (e *Entry) Storing() uint16 { return e.f.Storing }

// Lookups returns the field of this name.
func (e *Entry) Lookups() uint32 { return e.f.Lookups }

// Mtime returns the field of this name.
func (e *Entry) Mtime() int64 { return e.f.Mtime }

// Atime returns the field of this name.
func (e *Entry) Atime() int64 { return e.f.Atime }

// Ctime returns the field of this name.
func (e *Entry) Ctime() int64 { return e.f.Ctime }

// Seq returns the field of this name.
func (e *Entry) Seq() uint64 { return e.f.Seq }

// Sum returns the field of this name.
func (e *Entry) Sum() uint64 { return e.f.Sum }

// UID returns the field of this name.
func (e *Entry) UID() uint32 { return e.f.UID }

// GID returns the field of this name.
func (e *Entry) GID() uint32 { return e.f.GID }

// Opens returns the field of this name.
func (e *Entry) Opens() uint32 { return e.f.Opens }

// Accounts returns the field of this name.
func (e *Entry) Accounts() [2]uint16 { return e.f.Accounts }

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
