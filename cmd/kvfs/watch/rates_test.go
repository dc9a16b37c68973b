package watch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/state"
)

// document returns a status in which each counter is n times a number of its own.
func document(pid int, uptime float64, n uint64) *status.Document {
	return &status.Document{
		Schema: status.Schema, PID: pid, UptimeSeconds: uptime,
		Tiers: []status.Tier{
			{Name: "memory", Type: "memory", UsedBytes: 3 << 20, CapacityBytes: 4 << 20},
			{Name: "disk", Type: config.TierDisk, UsedBytes: 5 << 30, CapacityBytes: 8 << 30},
			{Name: "peer", Type: config.TierPeer, UsedBytes: 1, CapacityBytes: 2},
		},
		Counters: state.Counters{Stored: 4 * n, StoredBytes: 4096 * n, Evicted: 2 * n},
		Reads: state.Summary{SuccessKeys: 6 * n, FailedKeys: n, UnknownKeys: n, BytesByTier: map[string]uint64{
			"memory": 1024 * n, "disk": 1024 * n,
		}},
		Secondaries: []lane.Stats{{}, {}},
	}
}

// TestBetween shows the rates between two samples: over the time between them, and after a restart over the life of the
// daemon, never negative.
func TestBetween(t *testing.T) {
	begin := time.Unix(1_000_000, 0)
	first := &Sample{begin, document(42, 100, 10)}
	first.Doc.Secondaries[0].Promoted, first.Doc.Secondaries[1].Cascaded = 1, 1
	second := &Sample{begin.Add(2 * time.Second), document(42, 102, 20)}
	second.Doc.Secondaries[0].Promoted, second.Doc.Secondaries[1].Promoted = 5, 4
	second.Doc.Secondaries[0].Cascaded, second.Doc.Secondaries[1].Cascaded = 2, 1
	second.Doc.Secondaries[0].QueuedBlocks, second.Doc.Secondaries[1].QueuedBlocks = 7, 8
	second.Doc.Secondaries[1].QueuedBytes = 99
	r := Between(first, second)
	if r.HitRatio == nil || *r.HitRatio != 0.75 || !r.Time.Equal(second.At) {
		t.Errorf("hit ratio %v at %v", r.HitRatio, r.Time)
	}
	r.HitRatio, r.Time = nil, time.Time{}
	want := Rates{
		Interval: 2, Reads: 30, ReadBytes: 10240, Writes: 20, WrittenBytes: 20480, Misses: 5, Promotions: 4, Cascades: 1, Evictions: 10,
		MemoryUsedBytes: 3 << 20, MemoryCapacityBytes: 4 << 20, DiskUsedBytes: 5 << 30, DiskCapacityBytes: 8 << 30, QueuedBlocks: 15, QueuedBytes: 99,
	}
	if r != want {
		t.Errorf("got  %+v\nwant %+v", r, want)
	}
	for what, now := range map[string]*status.Document{"another process": document(43, 200, 1), "the same number": document(42, 0.5, 1)} {
		r := Between(first, &Sample{begin.Add(time.Second), now})
		life := min(1, now.UptimeSeconds)
		if !r.Restarted || r.Interval != life || r.Writes != 4/life || r.Misses != 1/life {
			t.Errorf("%s: got %+v", what, r)
		}
	}
	if r := Between(first, first); r.Reads != 0 || r.HitRatio != nil || r.Restarted {
		t.Errorf("no time: got %+v", r)
	}
	if r := Between(second, &Sample{begin.Add(3 * time.Second), document(42, 103, 5)}); r.Writes < 0 || r.Promotions != 0 || r.HitRatio != nil {
		t.Errorf("counters that go back: got %+v", r)
	}
}

// TestLines pins the table, and that its head comes again.
func TestLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := uint64(0)
		source := func() (*Sample, error) {
			n++
			return &Sample{time.Now(), document(42, float64(n), 1000*n)}, nil
		}
		var out bytes.Buffer
		lines := Lines{Interval: time.Second, Count: headEvery + 1}
		if err := lines.Run(t.Context(), &out, source); err != nil {
			t.Fatal(err)
		}
		const head = "   reads    bytes/s  writes    bytes/s   hit  misses promote cascade   evict            memory used               ssd used   queue\n"
		const line = "    6000    2.0 MiB    4000    3.9 MiB 75.0%    1000       0       0    2000        3.0 MiB/4.0 MiB        5.0 GiB/8.0 GiB       0\n"
		if want := head + strings.Repeat(line, headEvery) + head + line; out.String() != want {
			t.Errorf("got\n%s\nwant\n%s", out.String(), want)
		}
	})
}

// TestLinesEnd shows that the end of the context and that of the daemon end the lines.
func TestLinesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := exit.With(exit.NotMount, errors.New("gone"))
		n := 0
		source := func() (*Sample, error) {
			if n++; n > 2 {
				return nil, gone
			}
			return &Sample{time.Now(), document(42, float64(n), 0)}, nil
		}
		var out bytes.Buffer
		lines := Lines{Interval: time.Second, JSON: true}
		if err := lines.Run(t.Context(), &out, source); !errors.Is(err, gone) {
			t.Errorf("got error %v", err)
		}
		if err := lines.Run(t.Context(), &out, source); !errors.Is(err, gone) {
			t.Errorf("at the start: got error %v", err)
		}
		var r map[string]any
		if err := json.Unmarshal(out.Bytes(), &r); err != nil || r["hit_ratio"] != nil || r["memory_used_bytes"] != float64(3<<20) {
			t.Errorf("got %v, %v", r, err)
		}
		n = 0
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		lines.Interval = time.Hour
		if err := lines.Run(ctx, &out, source); err != nil {
			t.Errorf("got error %v", err)
		}
	})
}

// TestNumber shows how numbers are cut to the width of a column.
func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.25: "0.2", 9.94: "9.9", 10: "10", 9999: "9999", 12345: "12k", 9e6: "9000k", 12e6: "12M"} {
		if got := Number(v); got != want {
			t.Errorf("%v: got %s, want %s", v, got, want)
		}
	}
	share := 0.99999
	if got := Percent(&share) + Percent(nil); got != "99.9%-" {
		t.Errorf("got %s", got)
	}
}
