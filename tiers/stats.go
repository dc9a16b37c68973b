package tiers

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
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
	Counters      Counters
	FullAt        time.Time // last time that an open or a write waited for memory; zero: never
	FullOf        string    // what filled memory then, in words

	Hollow      int64            // committed files that only secondary tiers hold
	Secondaries []SecondaryStats // in order
	Summary     Summary
}

// Summary counts keys by where a reader found them, over all batches. Source: the tier log of vLLM's Mooncake store
// connector.
type Summary struct {
	MemoryKeys  uint64 // opened in memory
	DiskKeys    uint64 // promoted from the tier "disk"
	PeerKeys    uint64 // from another node
	UnknownKeys uint64 // in no tier: misses
	SuccessKeys uint64
	FailedKeys  uint64
	BytesByTier map[string]uint64
}

// Stats returns a snapshot.
func (e *report) Stats() Stats {
	st := e.stats()
	for i, s := range e.tiers {
		st.Secondaries[i].Stats.State = "online"
		if r, ok := s.tier.(driver.Statser); ok {
			st.Secondaries[i].Stats = r.Stats()
		}
	}
	return st
}

// stats returns the part of Stats that the engine itself knows.
func (e *report) stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	st := Stats{
		CapacityBytes: e.opts.CapacityBytes,
		UsedBytes:     e.mu.room.Used(),
		PinnedBytes:   e.mu.room.Pinned(),
		Blocks:        e.mu.blocks,
		Names:         int64(e.mu.ix.Len()),
		Writing:       int64(len(e.mu.files)),
		IndexBytes:    e.mu.ix.Bytes(),
		Counters:      e.mu.counters,
		Hollow:        e.mu.hollow,
		Summary:       e.mu.tally.snapshot(),
	}
	if of, at := e.mu.room.LastFull(); at != 0 {
		st.FullAt, st.FullOf = time.Unix(0, at), of
	}
	st.Counters.Implausible = e.elsewhere.implausible.Load()
	for _, s := range e.tiers {
		st.Secondaries = append(st.Secondaries, *s.StatsLocked())
	}
	return st
}

// GroupStats is a snapshot of one group.
type GroupStats struct {
	Name       block.GroupID
	Pinned     bool
	QuotaBytes int64
	UsedBytes  int64
	BlockBytes int64 // configured or learned; 0: not known
}

// Groups returns a snapshot of the groups that are configured or have files, about in order of first sight.
func (e *report) Groups() []GroupStats {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := []GroupStats{}
	for g := range e.mu.room.Groups() {
		out = append(out, GroupStats{g.Name(), g.Pinned(), g.Options().QuotaBytes, g.Used(), g.BlockBytes()})
	}
	return out
}

// StoreJobs returns the copies under way, oldest first, and for each tier the number of blocks that wait for a job.
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

// Jobs returns the loads under way, oldest first, and for each tier the number of blocks that wait for a job.
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
