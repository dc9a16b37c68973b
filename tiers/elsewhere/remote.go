package elsewhere

import (
	"os"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
)

// Holding is what this node itself has of a name: in memory, or in a secondary tier that is not Remote.
type Holding struct {
	Path    string
	Seq     uint64
	Size    int64          // bytes
	Sum     block.Checksum // if it was computed
	Mode    uint32         // type and permission bits, as st_mode
	UID     uint32
	GID     uint32
	Mtime   int64
	Expires int64
	Pinned  bool
	Memory  bool
	Dirs    []driver.DirAttrs // of a file: the directories above it, outermost first

	tiers uint16 // of this node that have it, but memory
}

// LendOptions says what is to be lent, and how.
type LendOptions struct {
	Path string
	Seq  uint64 // this version only; 0: any
}

// Lent is a block held for another node. Its bytes do not change until Close.
type Lent struct {
	Holding          // Sum is valid
	File    *os.File // open for reading; closed by Close
	close   func()

	id   index.ID // of what is in memory: the entry that is held, and its bytes
	blob driver.BlobID
}

// Close ends the loan.
func (l *Lent) Close() { l.close() }
