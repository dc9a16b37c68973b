package lane_test

import (
	"math"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/lane"
)

// TestPredictor: the throughput of a tier is what all of its jobs together gave in the time that
// they took; the latest count most, and those that gave nothing not at all.
func TestPredictor(t *testing.T) {
	type job struct {
		from, to time.Duration
		bytes    int64
	}
	const mib, ms = int64(1 << 20), time.Millisecond
	for _, row := range []struct {
		name string
		jobs []job
		ask  int64
		want time.Duration
	}{
		{"nothing known", nil, mib, 0},
		{"one", []job{{0, 10 * ms, mib}}, 3 * mib, 30 * ms},
		{"of no bytes", []job{{0, 10 * ms, mib}}, 0, 0},
		{"one after another", []job{{0, 10 * ms, mib}, {50 * ms, 60 * ms, mib}}, mib, 10 * ms},
		{"side by side", []job{{0, 10 * ms, mib}, {0, 20 * ms, mib}, {0, 30 * ms, mib}}, mib, 10 * ms},
		{"all at once", []job{{0, 10 * ms, mib}, {0, 10 * ms, mib}}, mib, 10 * ms * 9 / 19},
		{"nothing came", []job{{0, 10 * ms, mib}, {10 * ms, time.Hour, 0}}, mib, 10 * ms},
		{"only failures", []job{{0, time.Hour, 0}}, mib, 0},
		{"in no time", []job{{0, 0, mib}}, mib, 0},
		{"beyond measure", []job{{0, time.Hour, 1}}, math.MaxInt64, 1 << 62},
		{"the latest count most", []job{{0, 10 * ms, mib}, {10 * ms, 110 * ms, mib}}, mib, 109 * ms * 10 / 19},
	} {
		var p lane.Predictor
		start := time.Unix(1e9, 0)
		for _, j := range row.jobs {
			p.Ended(start.Add(j.from), start.Add(j.to), j.bytes)
		}
		if got := p.After(row.ask); (got - row.want).Abs() > time.Microsecond {
			t.Errorf("%s: %v, want %v", row.name, got, row.want)
		}
	}
	var p lane.Predictor // a tier that becomes faster is soon taken for that
	now := time.Unix(1e9, 0)
	p.Ended(now, now.Add(time.Second), mib)
	now = now.Add(time.Second)
	for range 100 {
		p.Ended(now, now.Add(ms), mib)
		now = now.Add(ms)
	}
	if got := p.After(mib); got > 2*ms {
		t.Errorf("after 100 jobs of 1 ms: %v", got)
	}
}
