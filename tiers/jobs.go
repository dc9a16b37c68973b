package tiers

import (
	"cmp"
	"slices"
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

// StoreJobs returns the copies under way, oldest first, and for each tier how many blocks wait to
// become part of one.
func (e *Engine) StoreJobs() (jobs []StoreJob, queued map[string]int) {
	queued = map[string]int{}
	e.mu.Lock()
	for _, s := range e.tiers {
		begun := 0
		for _, j := range s.storeJobs {
			jobs = append(jobs, j)
			begun += j.Keys
		}
		queued[s.opts.Name] = int(s.stats.QueuedBlocks) - begun + s.deferred.len()
	}
	e.mu.Unlock()
	slices.SortFunc(jobs, func(a, b StoreJob) int { return cmp.Compare(a.ID, b.ID) })
	return jobs, queued
}

// Jobs returns the loads under way, oldest first, and for each tier how many blocks wait to
// become part of one.
func (e *Engine) Jobs() (jobs []LoadJob, waiting map[string]int) {
	waiting = map[string]int{}
	e.mu.Lock()
	for _, s := range e.tiers {
		for _, j := range s.jobs {
			jobs = append(jobs, *j)
		}
		waiting[s.opts.Name] = len(s.pending) + len(s.again)
	}
	e.mu.Unlock()
	slices.SortFunc(jobs, func(a, b LoadJob) int { return cmp.Compare(a.ID, b.ID) })
	return jobs, waiting
}
