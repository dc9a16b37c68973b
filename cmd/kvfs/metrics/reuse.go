package metrics

import (
	"strconv"

	"github.com/kvfs/kvfs/tiers/reuse"
)

// estimates makes the emit of a family about each estimate. tier is what would be larger: memory, or the SSD tier.
func estimates(emit func(tier string, e *reuse.Estimate, o *output)) func(*Snapshot, *output) {
	return func(s *Snapshot, o *output) {
		emit(memory, &s.Engine.Reuse.Memory, o)
		if s.Engine.Reuse.SSD != nil {
			emit("ssd", s.Engine.Reuse.SSD, o)
		}
	}
}

// scale is the label of one of reuse.Scales.
func scale(i int) string { return strconv.FormatFloat(reuse.Scales[i], 'g', -1, 64) }

// reuseFamilies are about the use of blocks.
var reuseFamilies = []family{
	{"kvfs_reuse_lifetime_seconds", histogram, "end", "Age of blocks when they left memory, from their commit. end: evicted, or removed by whatever else.", func(s *Snapshot, o *output) {
		o.ages(&s.Engine.Reuse.Evicted, "evicted")
		o.ages(&s.Engine.Reuse.Removed, "removed")
	}},
	{"kvfs_reuse_idle_before_eviction_seconds", histogram, "", "Time from the last read or commit of a block to its eviction from memory.", func(s *Snapshot, o *output) {
		o.ages(&s.Engine.Reuse.Idle)
	}},
	{"kvfs_reuse_return_seconds", histogram, "", "Time from the eviction of the last copy of a block on this node to the next look-up of its name. Of the names in the sample.", func(s *Snapshot, o *output) {
		o.ages(&s.Engine.Reuse.Back)
	}},
	{"kvfs_reuse_estimated_hit_ratio", gauge, "tier,scale", "Hit ratio of late that an LRU cache of 0.5, 1, 2 or 4 times the size would have: of memory, or (ssd) of memory and SSD together. Absent before the first ask.", estimates(func(tier string, e *reuse.Estimate, o *output) {
		for i, r := range e.Ratio {
			if e.Valid {
				o.put(r, tier, scale(i))
			}
		}
	})},
	{"kvfs_reuse_sampled_asks_total", counter, "tier", "Asks for the names in the sample: reads, and look-ups of what is not there.", estimates(func(tier string, e *reuse.Estimate, o *output) {
		o.put(float64(e.Asks), tier)
	})},
	{"kvfs_reuse_sampled_hits_total", counter, "tier,scale", "Those that an LRU cache of this many times the size would have had.", estimates(func(tier string, e *reuse.Estimate, o *output) {
		for i, n := range e.Hits {
			o.put(float64(n), tier, scale(i))
		}
	})},
	{"kvfs_reuse_sample_ratio", gauge, "tier", "Share of all names that are in the sample.", estimates(func(tier string, e *reuse.Estimate, o *output) {
		o.put(e.Share, tier)
	})},
}
