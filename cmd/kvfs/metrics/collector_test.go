package metrics

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cmd/kvfs/rails"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/memory"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/publish"
	"github.com/kvfs/kvfs/tiers/reuse"
)

var update = flag.Bool("update", false, "write the metrics of docs/metrics.md anew")

// full returns a snapshot of which every metric has a value.
func full() *Snapshot {
	ssd := lane.Stats{Name: "disk", Promoted: 7, PromoteCorrupt: 2}
	ssd.State = "degraded"
	ssd.Detail = &disk.Detail{BudgetBytes: 100, WrittenTodayBytes: 130, Devices: []disk.DeviceDetail{
		{Dir: "/mnt/a", State: "online", Engine: "pread", DirectIO: true}, {Dir: "/mnt/b", State: "offline", Engine: "io_uring", DirectIO: true},
	}}
	ssd.Loads.Observe(1500 * time.Nanosecond)
	used := reuse.Stats{Memory: reuse.Estimate{Share: 0.5, Asks: 9, Hits: [4]uint64{1, 2, 3, 4}, Ratio: [4]float64{0.1, 0.2, 0.3, 0.4}, Valid: true}, SSD: &reuse.Estimate{}}
	used.Evicted.Observe(time.Minute)
	used.Idle.Observe(30 * 24 * time.Hour)
	s := &Snapshot{
		Time: time.Unix(1700000000, 500e6), Version: "v1", Unready: []string{"x"},
		Engine: tiers.Stats{CapacityBytes: 64, Secondaries: []lane.Stats{ssd, {Name: "peer"}}, Reuse: used}, Loading: map[string]int{"disk": 3},
		Evictions: map[event.Eviction]uint64{{Tier: "memory", Rule: outcome.ReasonQuota}: 4},
		Mounts:    []status.Mount{{State: "serving", ReadPath: "passthrough", BackingFiles: 2}, {State: "attaching"}}, Requests: &device.Latencies{},
		Quotas: []memory.QuotaStats{{Quota: memory.Quota{Kind: memory.QuotaUser, Name: "7", Bytes: 9}, UsedBytes: 8}},
		Events: 11, ZMQ: &publish.Stats{Dropped: 5},
		Cluster: &Cluster{RDMA: &rails.State{}, Members: []cluster.Member{
			{Self: true, State: "alive"}, {State: "alive", Breaker: "open", Feed: "snapshot"}, {State: "alive", Breaker: "closed", Feed: "following", PathReason: "no rail"},
			{State: "left", Breaker: "open", Feed: "waiting"},
		}},
	}
	for i := range 30 {
		s.Groups = append(s.Groups, memory.GroupStats{Name: block.GroupID(fmt.Sprintf("g%d\xff\n\"", i)), UsedBytes: int64(i), QuotaBytes: 1})
	}
	s.Requests.Observe(device.OpOpen, time.Microsecond)
	s.Requests.Observe(device.OpOpen, time.Hour)
	return s
}

// text returns the metrics of a snapshot as Prometheus reads them. The registry checks that they are consistent.
func text(t *testing.T, s *Snapshot) string {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(New(func() *Snapshot { return s }))
	if _, err := r.Gather(); err != nil {
		t.Fatal(err)
	}
	return string(encode(r))
}

// TestValues pins lines of the text: where each kind of number comes from, and what is bounded.
func TestValues(t *testing.T) {
	got := text(t, full())
	for _, want := range []string{
		`kvfs_quota_bytes{kind="user",name="7"} 9`, `kvfs_quota_used_bytes{kind="user",name="7"} 8`,
		`kvfs_daemon_collect_time_seconds 1.7000000005e+09`, `kvfs_daemon_ready 0`, `kvfs_tier_capacity_bytes{tier="memory"} 64`,
		`kvfs_tier_hits_total{tier="disk"} 7`, `kvfs_tier_misses_total{reason="corrupt",tier="disk"} 2`, `kvfs_tier_load_queue_blocks{tier="disk"} 3`,
		`kvfs_tier_state{state="degraded",tier="disk"} 1`, `kvfs_tier_state{state="online",tier="disk"} 0`,
		`kvfs_tier_evictions_total{rule="quota",tier="memory"} 4`, `kvfs_disk_write_budget_left_bytes{tier="disk"} 0`,
		`kvfs_disk_device_online{device="/mnt/a"} 1`, `kvfs_disk_device_online{device="/mnt/b"} 0`,
		`kvfs_tier_load_duration_seconds_bucket{tier="disk",le="1.024e-06"} 0`, `kvfs_tier_load_duration_seconds_bucket{tier="disk",le="2.048e-06"} 1`,
		`kvfs_tier_load_duration_seconds_sum{tier="disk"} 1.5e-06`, `kvfs_tier_load_duration_seconds_count{tier="peer"} 0`,
		`kvfs_fuse_request_duration_seconds_bucket{op="OPEN",le="34.359738368"} 1`, `kvfs_fuse_request_duration_seconds_bucket{op="OPEN",le="+Inf"} 2`,
		`kvfs_daemon_fallback_active{fallback="no_io_uring"} 1`, `kvfs_daemon_fallback_active{fallback="no_direct_io"} 0`,
		`kvfs_daemon_fallback_active{fallback="no_passthrough"} 0`, `kvfs_daemon_fallback_active{fallback="no_rdma"} 1`, `kvfs_daemon_fallback_active{fallback="no_adoption"} 1`,
		`kvfs_daemon_mounts{state="attaching"} 1`, `kvfs_mount_backing_files 2`, `kvfs_events_total 10`, `kvfs_zmq_dropped_messages_total 5`,
		`kvfs_cluster_peers{state="alive"} 2`, `kvfs_cluster_peers{state="failed"} 0`, `kvfs_cluster_breakers{state="open"} 1`, `kvfs_cluster_feeds{state="waiting"} 0`,
		`kvfs_reuse_lifetime_seconds_bucket{end="evicted",le="68.719476736"} 1`, `kvfs_reuse_lifetime_seconds_count{end="removed"} 0`,
		`kvfs_reuse_idle_before_eviction_seconds_bucket{le="562949.953421312"} 0`, `kvfs_reuse_idle_before_eviction_seconds_bucket{le="+Inf"} 1`,
		`kvfs_reuse_idle_before_eviction_seconds_sum 2.592e+06`, `kvfs_reuse_return_seconds_count 0`,
		`kvfs_reuse_estimated_hit_ratio{scale="0.5",tier="memory"} 0.1`, `kvfs_reuse_estimated_hit_ratio{scale="4",tier="memory"} 0.4`,
		`kvfs_reuse_sampled_asks_total{tier="memory"} 9`, `kvfs_reuse_sampled_hits_total{scale="2",tier="memory"} 3`, `kvfs_reuse_sample_ratio{tier="ssd"} 0`,
		`kvfs_group_used_bytes{group="other"} 45`, `kvfs_group_quota_bytes{group="other"} 10`, `kvfs_group_used_bytes{group="g29` + "\uFFFD" + `\n\""} 29`,
	} {
		if !strings.Contains(got, "\n"+want+"\n") {
			t.Errorf("no line %s", want)
		}
	}
	if n := strings.Count(got, "\nkvfs_group_used_bytes{"); n != maxGroups+1 {
		t.Errorf("%d groups, want %d", n, maxGroups+1)
	}
	if t.Failed() {
		t.Log(got)
	}
	if n := strings.Count(got, "\nkvfs_fuse_request_duration_seconds"); n != 16 { // 13 bounds, +Inf, sum and count of OPEN
		t.Errorf("%d series of requests, want those of the one operation that there was", n)
	}
	small := text(t, &Snapshot{Requests: &device.Latencies{}}) // no cluster, no publisher, memory alone
	if strings.Contains(small, "kvfs_cluster_") || strings.Contains(small, "kvfs_zmq_") || !strings.Contains(small, "\nkvfs_daemon_ready 1\n") {
		t.Errorf("without a cluster:\n%s", small)
	}
}

// TestOtherGroup shows that a group of the name of the sum does not make two metrics of one name.
func TestOtherGroup(t *testing.T) {
	s := full()
	s.Groups = append(s.Groups, memory.GroupStats{Name: others, UsedBytes: 1000})
	if want := "\nkvfs_group_used_bytes{group=\"other\"} 1045\n"; !strings.Contains(text(t, s), want) {
		t.Errorf("no line %s", want)
	}
}

// TestNames shows that names follow the rules, and that the full snapshot has a value of every metric.
func TestNames(t *testing.T) {
	name := regexp.MustCompile(`^kvfs_[a-z]+_[a-z_]+$`)
	got, seen := text(t, full()), map[string]bool{}
	for _, f := range families {
		switch {
		case !name.MatchString(f.name), strings.HasSuffix(f.name, "_count"), f.kind == counter != strings.HasSuffix(f.name, "_total"), f.kind == histogram && !strings.HasSuffix(f.name, "_seconds"):
			t.Errorf("%s is no good name of a %s", f.name, f.kind)
		case seen[f.name]:
			t.Errorf("%s is there twice", f.name)
		case !strings.HasSuffix(f.help, ".") || strings.ContainsAny(f.help, "|\n"):
			t.Errorf("%s: %q", f.name, f.help)
		case !strings.Contains(got, fmt.Sprintf("\n# TYPE %s %s\n", f.name, f.kind)):
			t.Errorf("%s has no value", f.name)
		}
		seen[f.name] = true
	}
}

// TestDocs shows that docs/metrics.md has exactly the metrics that there are.
func TestDocs(t *testing.T) {
	const path, begin, end = "../../../docs/metrics.md", "<!-- generated: metrics -->\n", "<!-- end -->\n"
	want := bytes.NewBufferString("\n| metric | type | labels | meaning |\n|---|---|---|---|\n")
	row := func(name string, kind any, labels, help string) {
		fmt.Fprintf(want, "| `%s` | %v | %s | %s |\n", name, kind, strings.ReplaceAll(labels, ",", ", "), help)
	}
	for _, f := range families {
		row(f.name, f.kind, f.labels, f.help)
	}
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	process, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range process {
		row(f.GetName(), strings.ToLower(f.GetType().String()), "", f.GetHelp())
	}
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want.WriteString("\n")
	before, rest, ok := strings.Cut(string(page), begin)
	table, after, ended := strings.Cut(rest, end)
	switch {
	case !ok || !ended:
		t.Fatalf("%s has no place for metrics", path)
	case *update:
		if err := os.WriteFile(path, []byte(before+begin+want.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	case table != want.String():
		t.Errorf("docs/metrics.md is stale: go test ./cmd/kvfs/metrics -run TestDocs -update")
	}
}

// TestContentType shows that the text is of the form that it says.
func TestContentType(t *testing.T) {
	if got := string(expfmt.NewFormat(expfmt.TypeTextPlain)); !strings.HasPrefix(got, ContentType) {
		t.Errorf("the text is %q, and says %q", got, ContentType)
	}
}
