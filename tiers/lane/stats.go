package lane

import (
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/latency"
)

// Stats is a snapshot of one secondary tier and of what the engine does
// with it. The counters are totals since Open.
type Stats struct {
	Name    string `json:"name"`
	Durable bool   `json:"durable"` // fsync copies blocks to it
	driver.Stats

	QueuedBlocks    int64 `json:"queued_blocks"` // waiting to be stored, or being stored
	QueuedBytes     int64 `json:"queued_bytes"`
	QueueLimitBytes int64 `json:"queue_limit_bytes"`

	Cascaded          uint64 `json:"cascaded_blocks"`
	CascadedBytes     uint64 `json:"cascaded_bytes"`
	CascadeDropped    uint64 `json:"cascade_dropped_blocks"` // blocks not stored because the queue was full
	CascadeSkipped    uint64 `json:"cascade_skipped_blocks"` // because the tier had no room or may not write
	CascadeFailed     uint64 `json:"cascade_failed_blocks"`
	AdmissionRejected uint64 `json:"cascade_not_admitted_blocks"` // because they had been seen only once

	Promoted        uint64 `json:"promoted_blocks"`
	PromotedBytes   uint64 `json:"promoted_bytes"`
	PromoteAbsent   uint64 `json:"promotion_absent_blocks"` // the tier had the block no longer
	PromoteCorrupt  uint64 `json:"promotion_corrupt_blocks"`
	PromoteFailed   uint64 `json:"promotion_failed_blocks"` // for another reason
	PromoteTimeouts uint64 `json:"promotion_timeouts"`      // the reader got a miss because it took too long
	Batches         uint64 `json:"promotion_batches"`       // load jobs
	BadAnswers      uint64 `json:"bad_answers"`             // jobs that the tier did not answer block by block, and answers after the first

	Loads, Stores latency.Counts `json:"-"` // how long the tier took for its jobs, from when it got them
}

// StatsLocked returns the counters, which the Owner may change: those of what became of stores and loads are
// its own.
func (l *Lane) StatsLocked() *Stats { return &l.stats }
