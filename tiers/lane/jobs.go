package lane

import (
	"time"

	"github.com/kvfs/kvfs/tiers/driver"
)

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
