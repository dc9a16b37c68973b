package lane

import (
	"time"

	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/latency"
)

// Stats is a snapshot of one secondary tier and of what the engine does
// with it. The counters are totals since Open.
type Stats struct {
	Name    string `json:"name" help:"name of the tier"`
	Durable bool   `json:"durable" help:"'fsync' and 'kvfs flush' copy blocks to it"`
	driver.Stats

	QueuedBlocks    int64 `json:"queued_blocks" help:"blocks that wait to be stored, or are being stored"`
	QueuedBytes     int64 `json:"queued_bytes" help:"bytes of these blocks"`
	QueueLimitBytes int64 `json:"queue_limit_bytes" help:"most bytes that may wait"`

	MissedBlocks int64 `json:"missed_blocks" help:"blocks not stored because the tier was away; they are copied when it is back, oldest first"`

	Cascaded          uint64 `json:"cascaded_blocks" help:"cascades that succeeded"`
	CascadedBytes     uint64 `json:"cascaded_bytes" help:"bytes of these blocks"`
	CascadeDropped    uint64 `json:"cascade_dropped_blocks" help:"blocks not stored because the queue was full"`
	CascadeSkipped    uint64 `json:"cascade_skipped_blocks" help:"blocks not stored because the tier had no room or no budget"`
	CascadeFailed     uint64 `json:"cascade_failed_blocks" help:"cascades that failed"`
	AdmissionRejected uint64 `json:"cascade_not_admitted_blocks" help:"blocks not stored because they had been seen only once ('disk.admission')"`

	Promoted        uint64 `json:"promoted_blocks" help:"promotions that succeeded"`
	PromotedBytes   uint64 `json:"promoted_bytes" help:"bytes of these blocks"`
	PromoteAbsent   uint64 `json:"promotion_absent_blocks" help:"promotions of blocks that the tier had no longer"`
	PromoteCorrupt  uint64 `json:"promotion_corrupt_blocks" help:"promotions that failed the checksum"`
	PromoteFailed   uint64 `json:"promotion_failed_blocks" help:"promotions that failed for another reason"`
	PromoteTimeouts uint64 `json:"promotion_timeouts" help:"misses because a promotion took too long"`
	Batches         uint64 `json:"promotion_batches" help:"jobs of one or more promotions"`
	BadAnswers      uint64 `json:"bad_answers" help:"jobs that the tier did not answer block by block, and answers after the first"`

	Loads, Stores latency.Counts `json:"-"` // how long the tier took for its jobs, from when it got them
}

// StatsLocked returns the counters, which the Owner may change: those of what became of stores and loads are
// its own.
func (l *Lane) StatsLocked() *Stats { return &l.stats }

// LoadJob is a load from a secondary tier that is under way.
type LoadJob struct {
	ID        driver.JobID
	Request   string
	Tier      string
	Promotion bool // somebody waits for it; else it was asked for ahead of use
	Keys      int
	Bytes     int64
	Started   time.Time
}

// StoreJob is a copy to a secondary tier that is under way.
type StoreJob struct {
	ID      driver.JobID
	Tier    string
	Keys    int
	Bytes   int64
	Started time.Time
}

// StoreJobsLocked appends the copies under way to jobs, and returns how many blocks wait to become part of one.
func (l *Lane) StoreJobsLocked(jobs []StoreJob) (_ []StoreJob, queued int) {
	begun := 0
	for _, j := range l.storeJobs {
		jobs = append(jobs, j)
		begun += j.Keys
	}
	return jobs, int(l.stats.QueuedBlocks) - begun + l.deferred.len()
}

// LoadJobsLocked appends the loads under way to jobs, and returns how many blocks wait to become part of one.
func (l *Lane) LoadJobsLocked(jobs []LoadJob) (_ []LoadJob, waiting int) {
	for _, j := range l.jobs {
		jobs = append(jobs, *j)
	}
	return jobs, len(l.pending) + len(l.again)
}
