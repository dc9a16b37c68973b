package lane

import "github.com/kvfs/kvfs/tiers/driver"

// Stats is a snapshot of one secondary tier and of what the engine does
// with it. The counters are totals since Open.
type Stats struct {
	Name string
	driver.Stats

	QueuedBlocks, QueuedBytes, QueueLimitBytes int64 // waiting to be stored, or being stored

	Cascaded, CascadedBytes uint64
	CascadeDropped          uint64 // blocks not stored because the queue was full
	CascadeSkipped          uint64 // because the tier had no room or may not write
	CascadeFailed           uint64
	AdmissionRejected       uint64 // because they had been seen only once

	Promoted, PromotedBytes uint64
	PromoteAbsent           uint64 // the tier had the block no longer
	PromoteCorrupt          uint64
	PromoteFailed           uint64 // for another reason
	PromoteTimeouts         uint64 // the reader got a miss because it took too long
	Batches                 uint64 // load jobs
	BadAnswers              uint64 // jobs that the tier did not answer block by block, and answers after the first
}

// StatsLocked returns the counters, which the Owner may change: those of what became of stores and loads are
// its own.
func (l *Lane) StatsLocked() *Stats { return &l.stats }
