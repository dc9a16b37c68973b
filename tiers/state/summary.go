package state

import (
	"maps"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/lane"
)

// summaryLine is one line of the tier log: a batch, and the memory hits and misses since the line before.
type summaryLine struct {
	Summary
	request string
	took    time.Duration
	groups  map[block.GroupID]int
}

// tally counts the results of look-ups and loads.
type tally struct {
	sum         Summary // without the bytes of memory and the misses
	memoryBytes uint64  // opened in memory
	logged      Summary // snapshot of the last line
}

// Hit counts a block that was opened in memory.
func (t *tally) Hit(size int64) {
	t.sum.MemoryKeys++
	t.sum.SuccessKeys++
	t.memoryBytes += uint64(size)
}

// Failed counts a block that could not be brought into memory.
func (t *tally) Failed() { t.sum.FailedKeys++ }

// add counts a batch. A batch of no keys counts nothing.
func (t *tally) add(b *lane.Batch) {
	if b.Keys == 0 {
		return
	}
	if b.Tier == "peer" {
		t.sum.PeerKeys += uint64(b.Keys)
	} else {
		t.sum.DiskKeys += uint64(b.Keys)
	}
	t.sum.SuccessKeys += uint64(b.Success)
	if t.sum.BytesByTier == nil {
		t.sum.BytesByTier = map[string]uint64{}
	}
	t.sum.BytesByTier[b.Tier] += uint64(b.Bytes)
}

// SummaryLocked returns the totals.
func (st *State) SummaryLocked() Summary {
	t := &st.Mu.Tally
	s := t.sum
	s.UnknownKeys = st.Mu.Misses.total(st.Now())
	s.BytesByTier = map[string]uint64{"memory": t.memoryBytes}
	maps.Copy(s.BytesByTier, t.sum.BytesByTier)
	return s
}

// line returns the change since the line before it, nil if there is none.
func (t *tally) line(b *lane.Batch, now Summary) *summaryLine {
	was := t.logged
	t.logged = now
	line := &summaryLine{request: b.Request, took: b.Took, groups: b.Groups, Summary: Summary{
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

// SummarizeLocked adds a batch to the totals and returns the line to log, nil if the tier log is off or nothing has
// changed. A batch of no keys gives a line about memory.
func (st *State) SummarizeLocked(b *lane.Batch) *summaryLine {
	st.Mu.Tally.add(b)
	if !st.Opts.TierSummary {
		return nil
	}
	return st.Mu.Tally.line(b, st.SummaryLocked())
}

// LogSummary writes one line of the tier log. Source: the tier log of vLLM's Mooncake store connector.
func (st *State) LogSummary(l *summaryLine) {
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
	st.Log.Info("tier summary", fields...)
}

// Summary counts keys by where a reader found them, over all batches. Source: the tier log of vLLM's Mooncake store
// connector.
type Summary struct {
	MemoryKeys  uint64            `json:"memory_hits" help:"blocks opened in memory"`
	DiskKeys    uint64            `json:"disk_hits" help:"blocks asked of the SSD, or of a tier of a further type"`
	PeerKeys    uint64            `json:"peer_hits" help:"blocks asked of other nodes"`
	UnknownKeys uint64            `json:"misses" help:"[misses](#hits-and-misses)"`
	SuccessKeys uint64            `json:"served_blocks" help:"blocks that a tier gave"`
	FailedKeys  uint64            `json:"failed_blocks" help:"blocks that no tier could give although one has them"`
	BytesByTier map[string]uint64 `json:"served_bytes_by_tier" help:"bytes of the served blocks, by tier"`
}
