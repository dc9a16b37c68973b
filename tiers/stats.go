package tiers

import "github.com/kvfs/kvfs/tiers/block"

// Stats is a snapshot of the engine. Sizes are in bytes.
type Stats struct {
	CapacityBytes int64
	UsedBytes     int64 // charged: whole pages, and what is reserved for writers
	PinnedBytes   int64 // of it, what cannot be evicted now
	Blocks        int64 // committed files
	Names         int64 // files and directories
	Writing       int64 // files being written or held back under a temporary name
	IndexBytes    int64 // memory of the table of names
	Counters      Counters
}

// Stats returns a snapshot.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return Stats{
		CapacityBytes: e.opts.CapacityBytes,
		UsedBytes:     e.mu.usedBytes,
		PinnedBytes:   e.mu.pinnedBytes,
		Blocks:        e.mu.blocks,
		Names:         int64(e.mu.ix.Len()),
		Writing:       int64(len(e.mu.files)),
		IndexBytes:    e.mu.ix.Bytes(),
		Counters:      e.mu.counters,
	}
}

// GroupStats is a snapshot of one group.
type GroupStats struct {
	Name       block.GroupID
	Pinned     bool
	QuotaBytes int64
	UsedBytes  int64
	BlockBytes int64 // configured or learned; 0: not known
}

// Groups returns a snapshot of all groups, in order of first sight.
func (e *Engine) Groups() []GroupStats {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]GroupStats, 0, len(e.mu.groups))
	for _, g := range e.mu.groups {
		out = append(out, GroupStats{g.name, g.opts.Pinned, g.opts.QuotaBytes, g.usedBytes, g.expectBytes()})
	}
	return out
}
