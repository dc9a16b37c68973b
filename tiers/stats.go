package tiers

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/reuse"
	"github.com/kvfs/kvfs/tiers/state"
)

// Stats is a snapshot of the engine. Sizes are in bytes.
type Stats struct {
	CapacityBytes int64
	UsedBytes     int64 // charged: whole pages, and reservations of writers
	PinnedBytes   int64 // part of UsedBytes that cannot be evicted now
	Blocks        int64 // committed files
	Names         int64 // files and directories
	Writing       int64 // files being written or held back under a temporary name
	IndexBytes    int64 // memory of the table of names
	Counters      state.Counters
	VersionsAhead time.Duration // by which the numbers of versions are ahead of the clock, 0 if they are not
	VersionsFrom  string        // the node whose version has brought that; "": this one
	FullAt        time.Time     // last time that an open or a write waited for memory; zero: never
	FullOf        string        // what filled memory then, in words

	Nonresident int64        // committed files that only secondary tiers hold
	Secondaries []lane.Stats // in order
	Summary     state.Summary
	Reuse       reuse.Stats
}

// Stats returns a snapshot.
func (e *Engine) Stats() Stats {
	st := e.stats()
	for i, s := range e.st.Tiers {
		st.Secondaries[i].Stats.State = "online"
		if r, ok := s.Tier.(driver.Statser); ok {
			st.Secondaries[i].Stats = r.Stats()
		}
	}
	return st
}

// stats returns the part of Stats that the engine itself knows.
func (e *Engine) stats() Stats {
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	resident, nonresident := e.st.Mu.Blocks()
	st := Stats{
		CapacityBytes: e.st.Opts.CapacityBytes,
		UsedBytes:     e.st.Mu.Room.Used(),
		PinnedBytes:   e.st.Mu.Room.Pinned(),
		Blocks:        resident,
		Names:         int64(e.st.Mu.Ix.Len()),
		Writing:       int64(len(e.st.Mu.Files)),
		IndexBytes:    e.st.Mu.Ix.Bytes(),
		Counters:      e.st.Mu.Counters,
		Nonresident:   nonresident,
		Summary:       e.st.SummaryLocked(),
		Reuse:         e.st.Mu.Reuse.Stats(),
	}
	if ahead := int64(e.st.Mu.Seq) - e.st.Now(); ahead > 0 {
		st.VersionsAhead, st.VersionsFrom = time.Duration(ahead), e.st.Mu.SeqFrom
	} else {
		e.st.Mu.SeqFrom = ""
	}
	st.Counters.LookupMisses = st.Summary.UnknownKeys
	if of, at := e.st.Mu.Room.LastFull(); at != 0 {
		st.FullAt, st.FullOf = time.Unix(0, at), of
	}
	st.Counters.Implausible = e.Names.RefusedSeqs()
	for _, s := range e.st.Tiers {
		st.Secondaries = append(st.Secondaries, *s.StatsLocked())
	}
	return st
}

// StoreJobs returns the copies under way, oldest first, and for each tier the number of blocks that wait for a job.
func (e *Engine) StoreJobs() (jobs []lane.StoreJob, queued map[string]int) {
	queued = map[string]int{}
	e.st.Mu.Lock()
	for _, s := range e.st.Tiers {
		jobs, queued[s.Opts.Name] = s.StoreJobsLocked(jobs)
	}
	e.st.Mu.Unlock()
	slices.SortFunc(jobs, func(a, b lane.StoreJob) int { return cmp.Compare(a.ID, b.ID) })
	return jobs, queued
}

// Jobs returns the loads under way, oldest first, and for each tier the number of blocks that wait for a job.
func (e *Engine) Jobs() (jobs []lane.LoadJob, waiting map[string]int) {
	waiting = map[string]int{}
	e.st.Mu.Lock()
	for _, s := range e.st.Tiers {
		jobs, waiting[s.Opts.Name] = s.LoadJobsLocked(jobs)
	}
	e.st.Mu.Unlock()
	slices.SortFunc(jobs, func(a, b lane.LoadJob) int { return cmp.Compare(a.ID, b.ID) })
	return jobs, waiting
}

// TierNames returns the tiers that hold a file, fastest first.
func (e *Engine) TierNames(id index.ID) []string {
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	return e.st.TierNamesLocked(id)
}

// PresenceOf returns whether a file is there: Hit if some tier has it, Pending while it is written or promoted.
func (e *Engine) PresenceOf(id index.ID) driver.Presence {
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	en := e.st.Mu.Ix.At(id)
	switch {
	case !en.Committed(), e.Transfer.PromotingLocked(id) != "":
		return driver.Pending
	case en.InMemory(), en.Tiers() != 0, e.st.Mu.Files[id] != nil:
		return driver.Hit
	}
	return driver.Miss
}

// PathOf returns the path of a file or directory that the kernel holds a reference to. It
// is "" for the root, and for an entry without a name.
func (e *Engine) PathOf(id index.ID) string {
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	return e.st.Mu.Ix.Path(id)
}

// Pinned reports whether a file is pinned, by itself or by its group.
func (e *Engine) Pinned(id index.ID) bool {
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	en := e.st.Mu.Ix.At(id)
	return en.Pinned() || !en.IsDir() && e.st.Mu.Room.Group(en.Group()).Pinned()
}

// TTL returns the time that a file has left to live, 0 if for ever.
func (e *Engine) TTL(id index.ID) time.Duration {
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	if at := e.st.Mu.Ix.Expires(id); at != 0 {
		return max(time.Duration(at-e.st.Now()), 1)
	}
	return 0
}
