package tiers

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/reuse"
	"github.com/kvfs/kvfs/tiers/state"
)

// report is the room of figures for operators: counters, groups, jobs, the tiers of a file.
type report struct{ *core }

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

	Hollow      int64            // committed files that only secondary tiers hold
	Secondaries []SecondaryStats // in order
	Summary     state.Summary
	Reuse       reuse.Stats
}

// Stats returns a snapshot.
func (rp *report) Stats() Stats {
	st := rp.stats()
	for i, s := range rp.Tiers {
		st.Secondaries[i].Stats.State = "online"
		if r, ok := s.Tier.(driver.Statser); ok {
			st.Secondaries[i].Stats = r.Stats()
		}
	}
	return st
}

// stats returns the part of Stats that the engine itself knows.
func (rp *report) stats() Stats {
	rp.Mu.Lock()
	defer rp.Mu.Unlock()
	resident, hollow := rp.BlocksLocked()
	st := Stats{
		CapacityBytes: rp.Opts.CapacityBytes,
		UsedBytes:     rp.Mu.Room.Used(),
		PinnedBytes:   rp.Mu.Room.Pinned(),
		Blocks:        resident,
		Names:         int64(rp.Mu.Ix.Len()),
		Writing:       int64(len(rp.Mu.Files)),
		IndexBytes:    rp.Mu.Ix.Bytes(),
		Counters:      rp.Mu.Counters,
		Hollow:        hollow,
		Summary:       rp.SummaryLocked(),
		Reuse:         rp.Mu.Reuse.Stats(),
	}
	if ahead := int64(rp.Mu.Seq) - rp.Now(); ahead > 0 {
		st.VersionsAhead, st.VersionsFrom = time.Duration(ahead), rp.Mu.SeqFrom
	} else {
		rp.Mu.SeqFrom = ""
	}
	st.Counters.LookupMisses = st.Summary.UnknownKeys
	if of, at := rp.Mu.Room.LastFull(); at != 0 {
		st.FullAt, st.FullOf = time.Unix(0, at), of
	}
	st.Counters.Implausible = rp.elsewhere.RefusedSeqs()
	for _, s := range rp.Tiers {
		st.Secondaries = append(st.Secondaries, *s.StatsLocked())
	}
	return st
}

// StoreJobs returns the copies under way, oldest first, and for each tier the number of blocks that wait for a job.
func (rp *report) StoreJobs() (jobs []StoreJob, queued map[string]int) {
	queued = map[string]int{}
	rp.Mu.Lock()
	for _, s := range rp.Tiers {
		jobs, queued[s.Opts.Name] = s.StoreJobsLocked(jobs)
	}
	rp.Mu.Unlock()
	slices.SortFunc(jobs, func(a, b StoreJob) int { return cmp.Compare(a.ID, b.ID) })
	return jobs, queued
}

// Jobs returns the loads under way, oldest first, and for each tier the number of blocks that wait for a job.
func (rp *report) Jobs() (jobs []LoadJob, waiting map[string]int) {
	waiting = map[string]int{}
	rp.Mu.Lock()
	for _, s := range rp.Tiers {
		jobs, waiting[s.Opts.Name] = s.LoadJobsLocked(jobs)
	}
	rp.Mu.Unlock()
	slices.SortFunc(jobs, func(a, b LoadJob) int { return cmp.Compare(a.ID, b.ID) })
	return jobs, waiting
}

// TierNames returns the tiers that hold a file, fastest first.
func (rp *report) TierNames(id index.ID) []string {
	rp.Mu.Lock()
	defer rp.Mu.Unlock()
	return rp.TierNamesLocked(id)
}

// PresenceOf returns whether a file is there: Hit if some tier has it, Pending while it is written or promoted.
func (rp *report) PresenceOf(id index.ID) driver.Presence {
	rp.Mu.Lock()
	defer rp.Mu.Unlock()
	en := rp.Mu.Ix.At(id)
	switch {
	case !en.Committed(), rp.lower.PromotingLocked(id) != "":
		return driver.Pending
	case en.InMemory(), en.Tiers != 0, rp.Mu.Files[id] != nil:
		return driver.Hit
	}
	return driver.Miss
}

// PathOf returns the path of a file or directory that the kernel holds a reference to. It
// is "" for the root, and for an entry without a name.
func (rp *report) PathOf(id index.ID) string {
	rp.Mu.Lock()
	defer rp.Mu.Unlock()
	return rp.Mu.Ix.Path(id)
}

// Pinned reports whether a file is pinned, by itself or by its group.
func (rp *report) Pinned(id index.ID) bool {
	rp.Mu.Lock()
	defer rp.Mu.Unlock()
	en := rp.Mu.Ix.At(id)
	return en.Pinned() || !en.IsDir() && rp.Mu.Room.Group(en.Group).Pinned()
}

// TTL returns the time that a file has left to live, 0 if for ever.
func (rp *report) TTL(id index.ID) time.Duration {
	rp.Mu.Lock()
	defer rp.Mu.Unlock()
	if at := rp.Mu.Ix.Expires(id); at != 0 {
		return max(time.Duration(at-rp.Now()), 1)
	}
	return 0
}
