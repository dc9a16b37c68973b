package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// status is the part of .kvfs/status that the benchmark reads. Absent fields are nil.
type status struct {
	Mount struct {
		Ops map[string]float64 `json:"ops"` // FUSE requests since the start, by name
	} `json:"mount"`
	Process struct {
		HeapBytes *float64 `json:"heap_bytes"` // live at the last collection
	} `json:"process"`
	Tiers []struct {
		Name      string `json:"name"`
		UsedBytes int64  `json:"used_bytes"`
	} `json:"tiers"`
	Secondaries []tierStatus `json:"secondaries"`
	Cluster     struct {
		Node struct {
			Share float64 `json:"followed_share"` // of all keys
			Index struct {
				Bytes float64 `json:"memory_bytes"`
			} `json:"index"`
		} `json:"node"`
	} `json:"cluster"`
}

func readStatus(t *target) (*status, error) {
	data, err := os.ReadFile(t.dir + "/.kvfs/status")
	if err != nil {
		return nil, err
	}
	s := &status{}
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("%s/.kvfs/status: %w", t.dir, err)
	}
	return s, nil
}

// opens measures the latency of open and close without a read.
func (b *bench) opens(ctx context.Context, size int, sets blockSets) error {
	figures, err := b.contest(ctx, func(t *target) *work {
		return newWork(1, sets[t.name].count, sets[t.name].openClose)
	}, nothingToSettle)
	if err != nil {
		return err
	}
	table := b.report.table("open", "Open and close of a hot block, without a read", "(1 thread)",
		"target", "us", "times the best")
	for _, t := range b.targets {
		r := row{Topic: "open", Target: t.name, BlockBytes: size, Threads: 1, Unit: "us",
			Ratio: 1 / figures.ratio(t.name)}
		for _, v := range figures[t.name] {
			r.Samples = append(r.Samples, 1e6/v)
		}
		r.Value = median(r.Samples)
		b.report.add(r)
		table.add(t.title(), fmt.Sprintf("%.1f", r.Value), fmt.Sprintf("%.1f", r.Ratio))
	}
	return nil
}

func (b *bench) stats(ctx context.Context, size int, sets blockSets) error {
	figures, err := b.contest(ctx, func(t *target) *work {
		return newWork(1, sets[t.name].count, sets[t.name].stat)
	}, nothingToSettle)
	if err != nil {
		return err
	}
	table := b.report.table("stat", "Stat of a hot block's name", "(1 thread)",
		"target", "stat/s", "to the best")
	for _, t := range b.targets {
		r := row{Topic: "stat", Target: t.name, BlockBytes: size, Threads: 1, Unit: "stat/s",
			Ratio: figures.ratio(t.name), Value: median(figures[t.name]), Samples: figures[t.name]}
		b.report.add(r)
		table.add(t.title(), fmt.Sprintf("%.0f", r.Value), fmt.Sprintf("%.2f", r.Ratio))
	}
	return nil
}

// requests counts the FUSE requests that kvfs gets for each operation of a
// client. (The loopback has no counters.)
func (b *bench) requests(ctx context.Context, size int, sets blockSets) error {
	t := b.target(kvfsName)
	if t == nil {
		return nil
	}
	set := sets[kvfsName]
	table := b.report.table("ops", "FUSE requests of kvfs for each operation on a hot block", "",
		"operation", "block", "requests", "sum", "goal", "")
	readThenStat := func(c *client, i int) error {
		return errors.Join(set.read(c, i), set.stat(c, i))
	}
	cases := []struct {
		name string
		op   func(*client, int) error
		goal string
		met  func(ops map[string]float64) bool // nil: no goal
	}{
		{"open, read, close", set.read, "OPEN and RELEASE only", onlyOpenRelease},
		{"stat", set.stat, "none", func(ops map[string]float64) bool { return len(ops) == 0 }},
		{"the read, then stat", readThenStat, "", nil},
		{"write, rename", set.store, "", nil},
	}
	for _, c := range cases {
		ops, err := b.countRequests(ctx, t, newWork(1, set.count, c.op))
		if err != nil {
			return err
		}
		if ops == nil {
			table.add(c.name, sizeText(size), "n/a", "n/a", c.goal, "")
			continue
		}
		r := row{Topic: "ops", Target: kvfsName, BlockBytes: size, Threads: 1,
			Unit: "requests for each " + c.name, Value: total(ops), FuseOps: ops}
		verdict := ""
		if c.met != nil {
			verdict = b.report.judge(&r, 0, c.met(ops))
			r.Goal = nil // in words
		}
		b.report.add(r)
		table.add(c.name, sizeText(size), opsText(ops), fmt.Sprintf("%.2f", r.Value), c.goal, verdict)
	}
	return nil
}

// countRequests returns the requests for each operation, or nil if the status does not count them.
// It leaves out less than one in 100 operations.
func (b *bench) countRequests(ctx context.Context, t *target, w *work) (map[string]float64, error) {
	if err := b.pool.once(ctx, w); err != nil { // Warm-up.
		return nil, err
	}
	before, err := b.countersAtRest(ctx, t)
	if err != nil || before == nil {
		return nil, err
	}
	// Reading the status makes requests as well: one more reading shows which ones.
	between, err := b.countersAtRest(ctx, t)
	if err != nil {
		return nil, err
	}
	repeats := max(1, 200/w.count)
	for range repeats {
		if err := b.pool.once(ctx, w); err != nil {
			return nil, err
		}
	}
	after, err := b.countersAtRest(ctx, t)
	if err != nil {
		return nil, err
	}
	each := map[string]float64{}
	for name, n := range after {
		own := between[name] - before[name]
		n = (n - between[name] - own) / float64(repeats*w.count)
		if n >= 0.01 {
			each[name] = n
		}
	}
	return each, nil
}

// countersAtRest reads the counters after a pause for asynchronous requests (RELEASE, FORGET). It
// returns nil if kvfs does not have them.
func (b *bench) countersAtRest(ctx context.Context, t *target) (map[string]float64, error) {
	const rest = 200 * time.Millisecond
	if err := pause(ctx, rest); err != nil {
		return nil, err
	}
	s, err := readStatus(t)
	if err != nil {
		b.say("no counters: %v", err)
		return nil, nil
	}
	return s.Mount.Ops, nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

func onlyOpenRelease(ops map[string]float64) bool {
	for name, n := range ops {
		if (name != "OPEN" && name != "RELEASE") || n > 1.01 {
			return false
		}
	}
	return true
}

func total(ops map[string]float64) float64 {
	sum := 0.0
	for _, n := range ops {
		sum += n
	}
	return sum
}

func opsText(ops map[string]float64) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(ops)) {
		out = append(out, fmt.Sprintf("%s %.2f", name, ops[name]))
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}
