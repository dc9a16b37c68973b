package state

import (
	"github.com/kvfs/kvfs/tiers/index"
)

// Attr is what stat shows of an entry.
type Attr struct {
	ID    index.ID
	Mode  uint32 // type and permission bits
	UID   uint32
	GID   uint32
	Nlink uint32
	Size  int64 // bytes
	Mtime int64 // nanoseconds since the epoch, as the next two
	Atime int64
	Ctime int64
	Temp  bool // the name looks temporary
	// Stable: a kernel may cache the answer. It is the same for all callers, and it changes only by calls of that
	// kernel or with a call of Options.Invalidate.
	Stable bool
	// Gone: the file has no name, no process has it open, and its bytes were given up. A caller that asks for it by a
	// name meant another file.
	Gone bool

	// Changing: a kernel may not keep the attributes. The file is open for writing in place, so writes of another kernel
	// change size and times; or it has a second name, which goes with its directory or expires.
	Changing bool
}

// Dirent is one entry of a directory.
type Dirent struct {
	ID     index.ID
	Mode   uint32
	Name   string
	Cookie uint64 // position after this entry
}
