package page

import (
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/state"
)

// TestAdvisable shows that there is no advice before a day, or a turnover of the memory with returns.
func TestAdvisable(t *testing.T) {
	for _, c := range []struct {
		uptime   time.Duration
		evicted  uint64
		returned bool
		want     bool
	}{
		{49 * time.Second, 0, false, false},
		{23 * time.Hour, 99, true, false},
		{time.Hour, 100, false, false},
		{time.Hour, 100, true, true},
		{24 * time.Hour, 0, false, true},
	} {
		st := &tiers.Stats{CapacityBytes: 100, Counters: state.Counters{EvictedBytes: c.evicted}}
		if c.returned {
			st.Reuse.Back.Observe(time.Second)
		}
		if got := advisable(c.uptime, st); got != c.want {
			t.Errorf("%+v: got %v", c, got)
		}
	}
}
