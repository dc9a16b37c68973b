package tiers

import (
	"hash/maphash"

	"github.com/kvfs/kvfs/tiers/index"
)

// pathHashLocked is the hash by which policies and filters know a name again.
func (e *Engine) pathHashLocked(id index.ID) uint64 {
	e.mu.scratch = e.mu.ix.AppendPath(e.mu.scratch[:0], id)
	return maphash.Bytes(e.seed, e.mu.scratch)
}
