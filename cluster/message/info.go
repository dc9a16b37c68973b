// Package message has the descriptions of blocks that nodes give each other, and the answers to
// calls: as other packages use them, and to and from the messages of package wire. What comes from a
// peer is checked here for its size and its sense.
package message

import (
	"github.com/kvfs/kvfs/tiers/block"
)

// BlockRef names a block, and optionally one version of it.
type BlockRef struct {
	Path string
	Seq  uint64 // this version only; 0: any
	// Patient: a fetch by the transport may end with rdma.ErrLater.
	Patient bool
	// Claim: a fetch may end with rdma.ErrLater because another node of the zone was told to fetch the block.
	Claim bool
}

// BlockInfo describes one block or directory.
type BlockInfo struct {
	Path    string
	Seq     uint64
	Size    int64          // bytes
	Sum     block.Checksum // of the bytes; always valid in answers to a fetch
	Mode    uint32         // type and permission bits, as st_mode
	UID     uint32
	GID     uint32
	Mtime   int64 // nanoseconds since the epoch
	Expires int64 // likewise; 0: never
	Pinned  bool
	Dirs    []DirInfo // of the directories above it, outermost first
	User    block.UserAttrs
}

// DirInfo is the attributes of a directory.
type DirInfo struct{ Mode, UID, GID uint32 }
