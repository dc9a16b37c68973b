package metrics

import (
	"maps"
	"testing"
	"time"

	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/latency"
)

// TestDurations shows that a histogram of a page comes back as it went in.
func TestDurations(t *testing.T) {
	var stats tiers.SecondaryStats
	stats.Name = "disk"
	for _, d := range []time.Duration{1, 1, 3 * time.Microsecond, time.Second, time.Hour} {
		stats.Loads.Observe(d)
	}
	p := NewPage(func() *Snapshot {
		return &Snapshot{Requests: &device.Latencies{}, Engine: tiers.Stats{Secondaries: []tiers.SecondaryStats{stats, {Name: "peer"}}}}
	})
	defer p.Close()
	got, err := Durations(p.Text(), "kvfs_tier_load_duration_seconds")
	if err != nil {
		t.Fatal(err)
	}
	disk := got["disk"]
	disk.Sum = disk.Sum.Round(time.Microsecond)
	stats.Loads.Sum = stats.Loads.Sum.Round(time.Microsecond)
	if want := map[string]latency.Counts{"disk": stats.Loads, "peer": {}}; !maps.Equal(map[string]latency.Counts{"disk": disk, "peer": got["peer"]}, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, err := Durations(nil, RequestDurations); err != nil || len(got) != 0 {
		t.Errorf("of nothing: got %v, %v", got, err)
	}
	if _, err := Durations([]byte("a{ 1\n"), RequestDurations); err == nil {
		t.Error("no metrics: no error")
	}
}
