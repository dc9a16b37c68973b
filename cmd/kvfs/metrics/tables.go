package metrics

import (
	"strconv"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/disk"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/memory"
	"github.com/kvfs/kvfs/tiers/reuse"
	"github.com/kvfs/kvfs/tiers/state"
)

// memoryTier is the name of the first tier.
const memoryTier = "memory"

// below makes the emit of a family with one value for each tier below memory.
func below[N int64 | uint64](of func(t *lane.Stats) N) func(*Snapshot, *output) {
	return tiersBelow(func(t *lane.Stats, o *output) { o.put(float64(of(t)), t.Name) })
}

// tiersBelow makes the emit of a family about each tier below memory.
func tiersBelow(emit func(t *lane.Stats, o *output)) func(*Snapshot, *output) {
	return func(s *Snapshot, o *output) {
		for i := range s.Engine.Secondaries {
			emit(&s.Engine.Secondaries[i], o)
		}
	}
}

// each makes the emit of a family with one value for each tier.
func each[N int64 | uint64](ofMemory func(e *tiers.Stats) N, of func(t *lane.Stats) N) func(*Snapshot, *output) {
	return func(s *Snapshot, o *output) {
		o.put(float64(ofMemory(&s.Engine)), memoryTier)
		below(of)(s, o)
	}
}

// tierFamilies are about the tiers. Counters count since the start of the daemon.
var tierFamilies = []family{
	{"kvfs_tier_capacity_bytes", gauge, "tier", "Size of the tier.", each(
		func(e *tiers.Stats) int64 { return e.CapacityBytes }, func(t *lane.Stats) int64 { return t.CapacityBytes })},
	{"kvfs_tier_used_bytes", gauge, "tier", "Bytes in use.", each(
		func(e *tiers.Stats) int64 { return e.UsedBytes }, func(t *lane.Stats) int64 { return t.UsedBytes })},
	{"kvfs_tier_pinned_bytes", gauge, "tier", "Part of the used bytes that cannot be evicted now: open, pinned, being written.", each(
		func(e *tiers.Stats) int64 { return e.PinnedBytes }, func(t *lane.Stats) int64 { return t.PinnedBytes })},
	{"kvfs_tier_blocks", gauge, "tier", "Blocks in the tier.", each(
		func(e *tiers.Stats) int64 { return e.Blocks }, func(t *lane.Stats) int64 { return t.Blocks })},
	{"kvfs_tier_state", gauge, "tier,state", "1 for the state of the tier, 0 for the other states: online, degraded, offline.", tiersBelow(func(t *lane.Stats, o *output) {
		for _, state := range states {
			o.is(t.State == state, t.Name, state)
		}
	})},
	{"kvfs_tier_hits_total", counter, "tier", "Blocks that a reader got from the tier: opens in memory, and blocks brought into memory from a lower tier.", each(
		func(e *tiers.Stats) uint64 { return e.Summary.MemoryKeys }, func(t *lane.Stats) uint64 { return t.Promoted })},
	{"kvfs_tier_read_bytes_total", counter, "tier", "Bytes of these blocks.", func(s *Snapshot, o *output) {
		o.put(float64(s.Engine.Summary.BytesByTier[memoryTier]), memoryTier)
		below(func(t *lane.Stats) uint64 { return t.PromotedBytes })(s, o)
	}},
	{"kvfs_tier_misses_total", counter, "tier,reason", "Blocks that a lower tier was asked for and did not give: absent, corrupt, failed, or timeout (the reader waited too long).", tiersBelow(func(t *lane.Stats, o *output) {
		o.put(float64(t.PromoteAbsent), t.Name, "absent")
		o.put(float64(t.PromoteCorrupt), t.Name, "corrupt")
		o.put(float64(t.PromoteFailed), t.Name, "failed")
		o.put(float64(t.PromoteTimeouts), t.Name, "timeout")
	})},
	{"kvfs_tier_cascades_total", counter, "tier", "Blocks copied from memory to the tier.", below(func(t *lane.Stats) uint64 { return t.Cascaded })},
	{"kvfs_tier_cascaded_bytes_total", counter, "tier", "Bytes copied from memory to the tier.", below(func(t *lane.Stats) uint64 { return t.CascadedBytes })},
	{"kvfs_tier_cascade_failures_total", counter, "tier,reason", "Blocks not copied to the tier: queue_full, no_room (or no write budget), failed, or not_admitted (seen only once).", tiersBelow(func(t *lane.Stats, o *output) {
		o.put(float64(t.CascadeDropped), t.Name, "queue_full")
		o.put(float64(t.CascadeSkipped), t.Name, "no_room")
		o.put(float64(t.CascadeFailed), t.Name, "failed")
		o.put(float64(t.AdmissionRejected), t.Name, "not_admitted")
	})},
	{"kvfs_tier_evictions_total", counter, "tier,rule", "Blocks that left the tier, and why: capacity, watermark, quota, request, corrupt and others.", func(s *Snapshot, o *output) {
		for e, n := range s.Evictions {
			o.put(float64(n), e.Tier, e.Rule.String())
		}
	}},
	{"kvfs_tier_checksum_failures_total", counter, "tier", "Copies whose bytes did not match their checksum, by whomever found.", below(func(t *lane.Stats) uint64 { return t.Corrupt })},
	{"kvfs_tier_io_errors_total", counter, "tier", "Operations that failed with an I/O error.", below(func(t *lane.Stats) uint64 { return t.IOErrors })},
	{"kvfs_tier_bad_answers_total", counter, "tier", "Jobs that the tier did not answer block by block.", below(func(t *lane.Stats) uint64 { return t.BadAnswers })},
	{"kvfs_tier_load_duration_seconds", histogram, "tier", "Time that the tier took for a job of blocks to load.", tiersBelow(func(t *lane.Stats, o *output) { o.times(&t.Loads, t.Name) })},
	{"kvfs_tier_store_duration_seconds", histogram, "tier", "Time that the tier took for a job of blocks to store.", tiersBelow(func(t *lane.Stats, o *output) { o.times(&t.Stores, t.Name) })},
	{"kvfs_tier_load_queue_blocks", gauge, "tier", "Blocks that wait to be loaded and are in no job yet.", func(s *Snapshot, o *output) {
		for tier, n := range s.Loading {
			o.put(float64(n), tier)
		}
	}},
	{"kvfs_tier_store_queue_blocks", gauge, "tier", "Blocks that wait to be copied to the tier, or are being copied.", below(func(t *lane.Stats) int64 { return t.QueuedBlocks })},
	{"kvfs_tier_store_queue_bytes", gauge, "tier", "Bytes of these blocks.", below(func(t *lane.Stats) int64 { return t.QueuedBytes })},
	{"kvfs_tier_missed_blocks", gauge, "tier", "Blocks not stored because the tier was away. They are copied when it is back.", below(func(t *lane.Stats) int64 { return t.MissedBlocks })},
	{"kvfs_tier_store_queue_limit_bytes", gauge, "tier", "Size of that queue.", below(func(t *lane.Stats) int64 { return t.QueueLimitBytes })},

	{"kvfs_disk_write_budget_bytes", gauge, "tier", "Bytes that may be written to the SSDs each day. Absent without a budget.", disks(func(tier string, d *disk.Detail, o *output) {
		if d.BudgetBytes > 0 {
			o.put(float64(d.BudgetBytes), tier)
		}
	})},
	{"kvfs_disk_write_budget_left_bytes", gauge, "tier", "What is left of it today.", disks(func(tier string, d *disk.Detail, o *output) {
		if d.BudgetBytes > 0 {
			o.put(float64(max(d.BudgetBytes-d.WrittenTodayBytes, 0)), tier)
		}
	})},
	{"kvfs_disk_written_today_bytes", gauge, "tier", "Bytes written to the SSDs since midnight UTC.", disks(func(tier string, d *disk.Detail, o *output) { o.put(float64(d.WrittenTodayBytes), tier) })},
	{"kvfs_disk_scrubbed_bytes_total", counter, "tier", "Bytes that the scrubber has read back.", disks(func(tier string, d *disk.Detail, o *output) { o.put(float64(d.ScrubbedBytes), tier) })},
	{"kvfs_disk_scrubbed_bad_total", counter, "tier", "Bad copies that the scrubber has found.", disks(func(tier string, d *disk.Detail, o *output) { o.put(float64(d.ScrubbedBad), tier) })},
	{"kvfs_disk_device_online", gauge, "device", "1 if the directory of the SSD tier is in use, 0 after a failure.", devices(func(d *disk.DeviceDetail) float64 {
		if d.State == "online" {
			return 1
		}
		return 0
	})},
	{"kvfs_disk_device_used_bytes", gauge, "device", "Bytes of slots that hold blocks.", devices(func(d *disk.DeviceDetail) float64 { return float64(d.UsedBytes) })},
	{"kvfs_disk_device_capacity_bytes", gauge, "device", "Size of the directory.", devices(func(d *disk.DeviceDetail) float64 { return float64(d.CapacityBytes) })},
	{"kvfs_disk_device_recovery_seconds", gauge, "device", "Time that the start took to read the directory.", devices(func(d *disk.DeviceDetail) float64 { return d.RecoverySeconds })},
}

// devices makes the emit of a family with one value for each directory of an SSD tier.
func devices(of func(d *disk.DeviceDetail) float64) func(*Snapshot, *output) {
	return disks(func(_ string, d *disk.Detail, o *output) {
		for i := range d.Devices {
			o.put(of(&d.Devices[i]), d.Devices[i].Dir)
		}
	})
}

// disks makes the emit of a family about each SSD tier.
func disks(emit func(tier string, d *disk.Detail, o *output)) func(*Snapshot, *output) {
	return func(s *Snapshot, o *output) {
		for tier, d := range s.disks {
			emit(tier, d, o)
		}
	}
}

// count makes the emit of a family with one counter of the engine.
func count(of func(c *state.Counters) uint64) func(*Snapshot, *output) {
	return func(s *Snapshot, o *output) { o.put(float64(of(&s.Engine.Counters))) }
}

// engineFamilies are about names, memory and groups.
var engineFamilies = []family{
	{"kvfs_index_names", gauge, "", "Files and directories.", func(s *Snapshot, o *output) { o.put(float64(s.Engine.Names)) }},
	{"kvfs_index_bytes", gauge, "", "Memory of the table of names.", func(s *Snapshot, o *output) { o.put(float64(s.Engine.IndexBytes)) }},
	{"kvfs_index_writing_files", gauge, "", "Files that are being written, or wait for their name.", func(s *Snapshot, o *output) { o.put(float64(s.Engine.Writing)) }},
	{"kvfs_index_hollow_blocks", gauge, "", "Blocks that only lower tiers hold.", func(s *Snapshot, o *output) { o.put(float64(s.Engine.Nonresident)) }},
	{"kvfs_reads_total", counter, "result", "Blocks that readers asked for, as in reads of the status: served by a tier, failed (no tier could give a block that it has), or missed. The hit ratio is the share of served.", func(s *Snapshot, o *output) {
		r := &s.Engine.Summary
		o.put(float64(r.SuccessKeys), "served")
		o.put(float64(r.FailedKeys), "failed")
		o.put(float64(r.UnknownKeys), "missed")
	}},
	{"kvfs_lookup_hits_total", counter, "", "Names that were looked up and were there.", count(func(c *state.Counters) uint64 { return c.LookupHit })},
	{"kvfs_lookup_misses_total", counter, "", "Names that were looked up to be read and were not there: the missed ones of kvfs_reads_total.", count(func(c *state.Counters) uint64 { return c.LookupMisses })},
	{"kvfs_open_misses_total", counter, "reason", "Opens of a block that was there and could not be read: no_room in memory, deadline_predicted, or deadline_exceeded.", func(s *Snapshot, o *output) {
		c := &s.Engine.Counters
		o.put(float64(c.PromoteNoRoom), "no_room")
		o.put(float64(c.DeadlinePredicted), "deadline_predicted")
		o.put(float64(c.DeadlineExceeded), "deadline_exceeded")
	}},
	{"kvfs_memory_opens_total", counter, "", "Opens for reading.", count(func(c *state.Counters) uint64 { return c.Opened })},
	{"kvfs_memory_stored_blocks_total", counter, "", "Blocks that were written and committed.", count(func(c *state.Counters) uint64 { return c.Stored })},
	{"kvfs_memory_stored_bytes_total", counter, "", "Bytes of these blocks.", count(func(c *state.Counters) uint64 { return c.StoredBytes })},
	{"kvfs_memory_evicted_bytes_total", counter, "", "Bytes of the blocks that were evicted from memory.", count(func(c *state.Counters) uint64 { return c.EvictedBytes })},
	{"kvfs_memory_evictions_without_copy_total", counter, "", "Blocks that were evicted from memory although there are other tiers and none of them had the block.", count(func(c *state.Counters) uint64 { return c.Lost })},
	{"kvfs_memory_expired_blocks_total", counter, "", "Blocks that were removed at the end of their time to live, and abandoned temporary files.", count(func(c *state.Counters) uint64 { return c.Expired })},
	{"kvfs_memory_removed_blocks_total", counter, "", "Blocks that were unlinked or replaced.", count(func(c *state.Counters) uint64 { return c.Removed })},
	{"kvfs_memory_adopted_blocks_total", counter, "", "Blocks of an earlier process that this one has adopted.", count(func(c *state.Counters) uint64 { return c.Adopted })},
	{"kvfs_memory_write_refusals_total", counter, "", "Writes that failed with ENOSPC.", count(func(c *state.Counters) uint64 { return c.NoSpace })},
	{"kvfs_memory_commit_refusals_total", counter, "reason", "Files that were not committed: write_failed, or killed_writer.", func(s *Snapshot, o *output) {
		o.put(float64(s.Engine.Counters.Poisoned), "write_failed")
		o.put(float64(s.Engine.Counters.KilledWriters), "killed_writer")
	}},
	{"kvfs_memory_full_waits_total", counter, "full_of", "Opens and writes that waited because memory was full of what cannot be evicted: open files, or leased blocks without a copy.", func(s *Snapshot, o *output) {
		o.put(float64(s.Engine.Counters.FullOfOpen), "open")
		o.put(float64(s.Engine.Counters.FullOfLeased), "leased")
	}},
	{"kvfs_memory_file_system_full_total", counter, "", "Times that the file system of the memory tier had no room although the accounts had.", count(func(c *state.Counters) uint64 { return c.FileSystemFull })},
	{"kvfs_group_used_bytes", gauge, "group", "Memory of the group. The 20 largest groups have names, the others are \"other\".", groups(func(g *memory.GroupStats) int64 { return g.UsedBytes })},
	{"kvfs_group_quota_bytes", gauge, "group", "Most memory that the group may use. 0: no quota.", groups(func(g *memory.GroupStats) int64 { return g.QuotaBytes })},
	{"kvfs_quota_bytes", gauge, "kind,name", "Quotas of memory: of groups, and of users (by number) and cgroups (by path), of which there are at most 64. 0: no quota.", quotas(func(q *memory.QuotaStats) int64 { return q.Bytes })},
	{"kvfs_quota_used_bytes", gauge, "kind,name", "Memory that is charged to the quota.", quotas(func(q *memory.QuotaStats) int64 { return q.UsedBytes })},
	{"kvfs_quota_pin_bytes", gauge, "kind,name", "Most bytes that users may pin. 0: no quota.", quotas(func(q *memory.QuotaStats) int64 { return q.PinQuotaBytes })},
	{"kvfs_quota_pinned_bytes", gauge, "kind,name", "Bytes that users have pinned, in memory or in lower tiers.", quotas(func(q *memory.QuotaStats) int64 { return q.PinnedBytes })},
	{"kvfs_events_total", counter, "", "Events about blocks.", func(s *Snapshot, o *output) { o.put(float64(max(s.Events, 1) - 1)) }},
	{"kvfs_zmq_subscribers", gauge, "", "Subscribers of the ZeroMQ publisher. Absent without one, as are the next metrics.", zmq(func(s *Snapshot) float64 { return float64(s.ZMQ.Subscribers) })},
	{"kvfs_zmq_messages_total", counter, "", "Messages published.", zmq(func(s *Snapshot) float64 { return float64(s.ZMQ.Messages) })},
	{"kvfs_zmq_dropped_messages_total", counter, "", "Messages that a subscriber was too slow for.", zmq(func(s *Snapshot) float64 { return float64(s.ZMQ.Dropped) })},
	{"kvfs_zmq_gaps_total", counter, "", "Times that the publisher was too slow for the events.", zmq(func(s *Snapshot) float64 { return float64(s.ZMQ.Gaps) })},
}

func groups(of func(g *memory.GroupStats) int64) func(*Snapshot, *output) {
	return func(s *Snapshot, o *output) {
		for _, g := range s.groups() {
			o.put(float64(of(&g)), string(g.Name))
		}
	}
}

func quotas(of func(q *memory.QuotaStats) int64) func(*Snapshot, *output) {
	return func(s *Snapshot, o *output) {
		for i := range s.Quotas {
			o.put(float64(of(&s.Quotas[i])), string(s.Quotas[i].Kind), s.Quotas[i].Name)
		}
	}
}

func zmq(of func(s *Snapshot) float64) func(*Snapshot, *output) {
	return func(s *Snapshot, o *output) {
		if s.ZMQ != nil {
			o.put(of(s))
		}
	}
}

func peers(emit func(c *Cluster, o *output)) func(*Snapshot, *output) {
	return func(s *Snapshot, o *output) {
		if s.Cluster != nil {
			emit(s.Cluster, o)
		}
	}
}

// clusterFamilies are about peers. They are absent without a cluster.
var clusterFamilies = []family{
	{"kvfs_cluster_joined", gauge, "", "1 if this node has found an address of join, or has none to find.", peers(func(c *Cluster, o *output) { o.is(c.Node.Gossip.Joined) })},
	{"kvfs_cluster_peers", gauge, "state", "Other nodes, by state: alive, left, failed, refused.", peers(func(c *Cluster, o *output) {
		c.count(func(m *cluster.Member) string { return m.State }, []string{"alive", "left", "failed", "refused"}, func(state string, n int) { o.put(float64(n), state) })
	})},
	{"kvfs_cluster_breakers", gauge, "state", "Living peers, by the state of their breaker. This node asks peers with an open breaker for nothing.", peers(func(c *Cluster, o *output) {
		of := func(m *cluster.Member) string {
			if m.State != "alive" {
				return ""
			}
			return m.Breaker
		}
		c.count(of, []string{"closed", "half-open", "open"}, func(state string, n int) { o.put(float64(n), state) })
	})},
	{"kvfs_cluster_feeds", gauge, "state", "Living peers, by what this node knows of their blocks: following (all), snapshot (reading it), waiting (nothing new).", peers(func(c *Cluster, o *output) {
		of := func(m *cluster.Member) string {
			if m.State != "alive" {
				return ""
			}
			return m.Feed
		}
		c.count(of, []string{"following", "snapshot", "waiting"}, func(state string, n int) { o.put(float64(n), state) })
	})},
	{"kvfs_cluster_feed_lag_records", gauge, "", "Changes of this node's blocks that the slowest peer has not been sent yet.", peers(func(c *Cluster, o *output) { o.put(float64(c.Node.FeedLag)) })},
	{"kvfs_cluster_index_entries", gauge, "", "Blocks of other nodes that this node knows.", peers(func(c *Cluster, o *output) { o.put(float64(c.Node.Index.Entries)) })},
	{"kvfs_cluster_index_bytes", gauge, "", "Memory of that knowledge.", peers(func(c *Cluster, o *output) { o.put(float64(c.Node.Index.Bytes)) })},
	{"kvfs_cluster_index_omitted_total", counter, "", "Blocks of other nodes that this node does not know for lack of peer.location_memory.", peers(func(c *Cluster, o *output) { o.put(float64(c.Node.Index.Omitted)) })},
	{"kvfs_cluster_followed_share", gauge, "", "Part of all keys of which this node knows where they are. It asks other nodes about the rest.", peers(func(c *Cluster, o *output) { o.put(c.Node.Share) })},
	{"kvfs_cluster_found_names_total", counter, "", "Names about which other nodes asked this node, and that it could answer.", peers(func(c *Cluster, o *output) { o.put(float64(c.Node.Found)) })},
	{"kvfs_cluster_graves", gauge, "", "Removals that this node remembers.", peers(func(c *Cluster, o *output) { o.put(float64(c.Node.Index.Graves)) })},
	{"kvfs_cluster_leases", gauge, "", "Leases of blocks that peers hold.", peers(func(c *Cluster, o *output) { o.put(float64(c.Node.Leases)) })},
	{"kvfs_cluster_rejected_total", counter, "fault", "Packets, connections and calls of strangers: gossip, connections, unknown, malformed, denied, bulk.", peers(func(c *Cluster, o *output) {
		n, b := &c.Node, &c.Bulk
		o.put(float64(n.Gossip.Rejected), "gossip")
		o.put(float64(n.Strangers), "connections")
		o.put(float64(n.Unknown), "unknown")
		o.put(float64(n.Malformed), "malformed")
		o.put(float64(n.Denied), "denied")
		o.put(float64(b.Refused+b.Strangers), "bulk")
	})},
	{"kvfs_cluster_received_bytes_total", counter, "path", "Bytes of blocks that came from peers, over tcp or rdma.", peers(func(c *Cluster, o *output) {
		o.put(float64(c.Bulk.BytesIn), "tcp")
		o.put(float64(c.Node.FabricBytes), "rdma")
	})},
	{"kvfs_cluster_sent_bytes_total", counter, "", "Bytes of blocks sent to peers over TCP. Peers read by RDMA without this node's help.", peers(func(c *Cluster, o *output) { o.put(float64(c.Bulk.BytesOut)) })},
	{"kvfs_cluster_rdma_fallbacks_total", counter, "", "Blocks that RDMA did not bring and that TCP was asked for.", peers(func(c *Cluster, o *output) { o.put(float64(c.Node.FabricFallbacks)) })},
}

// estimates makes the emit of a family about each estimate. tier is what would be larger: memory, or the SSD tier.
func estimates(emit func(tier string, e *reuse.Estimate, o *output)) func(*Snapshot, *output) {
	return func(s *Snapshot, o *output) {
		emit(memoryTier, &s.Engine.Reuse.Memory, o)
		if s.Engine.Reuse.SSD != nil {
			emit("ssd", s.Engine.Reuse.SSD, o)
		}
	}
}

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
