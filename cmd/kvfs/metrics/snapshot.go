package metrics

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cmd/kvfs/rails"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/rdma/tcp"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/disk"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/publish"
)

// Snapshot is what a daemon knows at one moment.
type Snapshot struct {
	Time    time.Time
	Version string
	Unready []string // what is not ready

	Engine    tiers.Stats
	Groups    []tiers.GroupStats
	Quotas    []tiers.QuotaStats
	Loading   map[string]int // blocks that wait for a load job, by tier
	Evictions map[event.Eviction]uint64
	Adoptable bool // blocks in memory outlive a crash

	Mounts   []status.Mount
	Requests *device.Latencies
	Events   uint64         // number of the next event
	ZMQ      *publish.Stats // nil: no publisher
	Cluster  *Cluster       // nil: no cluster
}

// Cluster is the part about peers.
type Cluster struct {
	Members []cluster.Member
	Node    cluster.Stats
	Bulk    tcp.Stats
	RDMA    *rails.State
}

// disks yields the details of the SSD tier, by its name.
func (s *Snapshot) disks(yield func(tier string, d *disk.Detail) bool) {
	for i := range s.Engine.Secondaries {
		t := &s.Engine.Secondaries[i]
		if d, ok := t.Detail.(*disk.Detail); ok && !yield(t.Name, d) {
			return
		}
	}
}

// states are the states of a tier.
var states = []string{"online", "degraded", "offline"}

// maxGroups is how many groups have names in the metrics: those that use the most memory. The others are one.
const (
	maxGroups = 20
	others    = "other"
)

// groups returns the largest groups, largest first, and the sum of the others.
func (s *Snapshot) groups() []tiers.GroupStats {
	all := slices.Clone(s.Groups)
	slices.SortStableFunc(all, func(a, b tiers.GroupStats) int {
		return cmp.Or(cmp.Compare(b.UsedBytes, a.UsedBytes), cmp.Compare(a.Name, b.Name))
	})
	if len(all) <= maxGroups {
		return all
	}
	rest := tiers.GroupStats{Name: others}
	list := all[:0:maxGroups]
	for _, g := range all {
		if len(list) < maxGroups && g.Name != others {
			list = append(list, g)
			continue
		}
		rest.UsedBytes += g.UsedBytes
		rest.QuotaBytes += g.QuotaBytes
	}
	return append(list, rest)
}

// fallbacks yields what kvfs can do without, and whether it does now.
func (s *Snapshot) fallbacks(yield func(name string, on bool)) {
	slow := slices.ContainsFunc(s.Mounts, func(m status.Mount) bool { return m.ReadPath != "" && m.ReadPath != "passthrough" })
	var threads, cached, tcp bool
	for _, d := range s.disks {
		for i := range d.Devices {
			threads = threads || d.Devices[i].Engine != "io_uring"
			cached = cached || !d.Devices[i].DirectIO
		}
	}
	if c := s.Cluster; c != nil {
		tcp = c.RDMA != nil && c.RDMA.Error != ""
		for i := range c.Members {
			tcp = tcp || c.Members[i].State == "alive" && c.Members[i].PathReason != ""
		}
	}
	yield("no_passthrough", slow)
	yield("no_io_uring", threads)
	yield("no_direct_io", cached)
	yield("no_rdma", tcp)
	yield("no_adoption", !s.Adoptable)
}

// count yields how many of the peers are in each of some states, of itself in none. It yields zeros, too, so that a
// state that ends does not vanish.
func (c *Cluster) count(of func(m *cluster.Member) string, states []string, yield func(state string, n int)) {
	n := map[string]int{}
	for i := range c.Members {
		if m := &c.Members[i]; !m.Self {
			n[of(m)]++
		}
	}
	for _, state := range states {
		yield(state, n[state])
	}
}
