package tiers

import (
	"maps"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
)

// batchSummary is what one load job did.
type batchSummary struct {
	tier            string
	request         string // that the batch was loaded for; may be empty
	keys            int
	success, failed int
	bytes           int64
	took            time.Duration
	groups          map[block.GroupID]int // keys of each; nil if nobody is told
}

// summaryLine is one line of the tier log: a batch, and what was opened in memory or
// missed since the line before.
type summaryLine struct {
	Summary
	request string
	took    time.Duration
	groups  map[block.GroupID]int
}

// summarizeLocked adds a batch to the totals and returns the line that is to be
// logged about it, nil if that is off. A batch of none tells of memory alone.
func (e *Engine) summarizeLocked(b *batchSummary) *summaryLine {
	t := &e.mu.summary
	if t.BytesByTier == nil {
		t.BytesByTier = map[string]uint64{}
	}
	t.BytesByTier["memory"] = e.mu.memoryBytes
	if b.keys > 0 {
		if b.tier == "peer" {
			t.PeerKeys += uint64(b.keys)
		} else {
			t.DiskKeys += uint64(b.keys)
		}
		t.SuccessKeys += uint64(b.success)
		t.BytesByTier[b.tier] += uint64(b.bytes)
	}
	if !e.opts.TierSummary {
		return nil
	}
	was := e.mu.summarized
	now := *t
	now.BytesByTier = maps.Clone(t.BytesByTier)
	e.mu.summarized = now
	line := &summaryLine{request: b.request, took: b.took, groups: b.groups, Summary: Summary{
		MemoryKeys: now.MemoryKeys - was.MemoryKeys, DiskKeys: now.DiskKeys - was.DiskKeys, PeerKeys: now.PeerKeys - was.PeerKeys,
		UnknownKeys: now.UnknownKeys - was.UnknownKeys, SuccessKeys: now.SuccessKeys - was.SuccessKeys,
		FailedKeys: now.FailedKeys - was.FailedKeys, BytesByTier: map[string]uint64{},
	}}
	for tier, n := range now.BytesByTier {
		if n > was.BytesByTier[tier] {
			line.BytesByTier[tier] = n - was.BytesByTier[tier]
		}
	}
	if line.MemoryKeys+line.DiskKeys+line.PeerKeys+line.UnknownKeys+line.FailedKeys == 0 {
		return nil
	}
	return line
}

// logSummary writes one line of the tier log. Source: the tier log of vLLM's
// Mooncake store connector.
func (e *Engine) logSummary(l *summaryLine) {
	if l == nil {
		return
	}
	fields := []zap.Field{
		zap.Uint64("memory_keys", l.MemoryKeys), zap.Uint64("disk_keys", l.DiskKeys), zap.Uint64("peer_keys", l.PeerKeys),
		zap.Uint64("unknown_keys", l.UnknownKeys), zap.Uint64("success_keys", l.SuccessKeys),
		zap.Uint64("failed_keys", l.FailedKeys), zap.Any("bytes_by_tier", l.BytesByTier), zap.Duration("took", l.took),
	}
	if len(l.groups) > 0 {
		fields = append(fields, zap.Any("keys_by_group", l.groups))
	}
	if l.request != "" {
		fields = append(fields, zap.String("request", l.request))
	}
	e.log.Info("tier summary", fields...)
}

// memoryHitLocked counts a block that was opened in memory.
func (e *Engine) memoryHitLocked(size int64) {
	e.mu.summary.MemoryKeys++
	e.mu.summary.SuccessKeys++
	e.mu.memoryBytes += uint64(size)
}
