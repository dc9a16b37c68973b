package state

import (
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
)

// Wanted is a block that is to be fetched from other nodes.
type Wanted struct {
	Path string
	Seq  uint64
	Size int64 // bytes
	Sum  block.Checksum
}

// Fetched is a block in memory that has no entry yet. It ends with Enter or with Drop.
type Fetched interface {
	// LandLocked makes the block that of an entry. It returns false if the entry has a load of its own, or is not for
	// this block.
	LandLocked(id index.ID) bool
	// Enter enters the block in memory, once it has landed. The caller then has one of the entry's Opens. It fails as a
	// promotion does.
	Enter() error
	// Drop gives the block up.
	Drop(err error)
}
