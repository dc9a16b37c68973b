package tiers

import (
	"cmp"
	"slices"
)

// StoreJobs returns the copies under way, oldest first, and for each tier how many blocks wait to
// become part of one.
func (e *report) StoreJobs() (jobs []StoreJob, queued map[string]int) {
	queued = map[string]int{}
	e.mu.Lock()
	for _, s := range e.tiers {
		jobs, queued[s.opts.Name] = s.StoreJobsLocked(jobs)
	}
	e.mu.Unlock()
	slices.SortFunc(jobs, func(a, b StoreJob) int { return cmp.Compare(a.ID, b.ID) })
	return jobs, queued
}

// Jobs returns the loads under way, oldest first, and for each tier how many blocks wait to
// become part of one.
func (e *report) Jobs() (jobs []LoadJob, waiting map[string]int) {
	waiting = map[string]int{}
	e.mu.Lock()
	for _, s := range e.tiers {
		jobs, waiting[s.opts.Name] = s.LoadJobsLocked(jobs)
	}
	e.mu.Unlock()
	slices.SortFunc(jobs, func(a, b LoadJob) int { return cmp.Compare(a.ID, b.ID) })
	return jobs, waiting
}
