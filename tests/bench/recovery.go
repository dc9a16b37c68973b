package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	recoveryBlockBytes = 4 * kib
	// recoveryPasses bounds the starts of each kind.
	recoveryPasses = 3
	// The goals for a million blocks, in seconds.
	indexGoal   = 0.5
	noIndexGoal = 1
	evictGoal   = 5
)

// recovery measures how long a daemon needs to be ready with a disk tier full of small blocks,
// after a clean stop, which leaves an index, and after SIGKILL.
func (d *diskBench) recovery(ctx context.Context) (err error) {
	wanted := d.config.recover * recoveryBlockBytes
	// A page of header each; 3 KiB for the kernel's inodes and names.
	bytes, note, err := d.fit(wanted, 2.25, 2, diskSlack)
	if err != nil {
		return err
	}
	count := max(1, bytes/recoveryBlockBytes)
	d.say("recovery: store %d blocks", count)
	m, err := d.mount(ctx, "kvfs-disk", bytes*5/4+256*mib, bytes*9/4+diskSlack, bytes*5/4+64*mib)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close(), d.syncDisk()) }()
	table := d.report.table("recovery", fmt.Sprintf("Recovery of %d blocks of %s on the disk", count, sizeText(recoveryBlockBytes)),
		"(starts: from exec to ready, page cache dropped, memory tier empty; what the daemon itself says is in the last column"+note+")",
		"what", "s", "min-max", "s a million", "goal", "", "recovered %", "told by the daemon")
	base, err := m.tier()
	if err != nil {
		return err
	}
	names, perSec, err := d.storeSmall(ctx, &m.target, count)
	d.report.add(row{Topic: "recovery", Target: kvfsName, BlockBytes: recoveryBlockBytes, Value: perSec, Unit: "stored, blocks/s"})
	if err == nil {
		err = m.drained(ctx, base, count, nil)
	}
	if err != nil {
		return err
	}
	d.say("recovery: evict all from memory")
	begin := time.Now()
	if err := m.evict(ctx); err != nil {
		return err
	}
	d.recoveryRow(table, "eviction of all from memory", []float64{time.Since(begin).Seconds()}, count, evictGoal, true, "", "")
	for _, kind := range []struct {
		name string
		goal float64
		end  func() error // of the previous daemon
	}{
		{"with the index, after a clean stop", indexGoal, m.server.stop},
		{"without it, after SIGKILL", noIndexGoal, func() error { m.server.crash(); return nil }},
	} {
		if err := d.recoveries(ctx, table, m, count, kind.name, kind.goal, kind.end); err != nil {
			return fmt.Errorf("%s: %w", kind.name, err)
		}
	}
	return d.checkRecovered(ctx, names, count)
}

// recoveries ends and starts the daemon a few times.
func (d *diskBench) recoveries(ctx context.Context, table *table, m *tierMount, count int,
	name string, goal float64, end func() error) error {
	var seconds []float64
	var told string
	share := 100.0
	for range min(recoveryPasses, d.config.rounds) {
		d.say("recovery: start %s", name)
		if err := errors.Join(end(), d.dropPageCache()); err != nil {
			return err
		}
		begin := time.Now()
		if err := m.server.start(ctx); err != nil {
			return err
		}
		seconds = append(seconds, time.Since(begin).Seconds())
		s, err := readStatus(&m.target)
		if err != nil {
			return err
		}
		if used := memoryUsed(s); used > int64(count*recoveryBlockBytes/100) {
			return fmt.Errorf("%d bytes were in the memory tier: not a recovery of the disk tier", used)
		}
		told = recoveryTold(s, m.server.stderr.quote())
		found, err := d.awaitListed(ctx, &m.target, count)
		if err != nil {
			return err
		}
		share = min(share, 100*float64(found)/float64(count))
	}
	d.recoveryRow(table, name, seconds, count, goal, share == 100, fmt.Sprintf("%.4g", share), told)
	return nil
}

// recoveryRow reports how long something took, of which goal is the seconds for a million blocks.
func (d *diskBench) recoveryRow(table *table, name string, seconds []float64, count int, goal float64, whole bool, more ...string) {
	r := row{Topic: "recovery", Target: kvfsName, BlockBytes: recoveryBlockBytes, Value: median(seconds), Unit: "s, " + name, Samples: seconds}
	million := r.Value * 1e6 / float64(count)
	verdict := d.report.judge(&r, goal, million < goal && whole)
	d.report.add(r)
	table.add(append([]string{name, fmt.Sprintf("%.2f", r.Value), spread(seconds), fmt.Sprintf("%.2f", million),
		fmt.Sprintf("under %g", goal), verdict}, more...)...)
}

// checkRecovered reads some of the blocks back.
func (d *diskBench) checkRecovered(ctx context.Context, names paths, count int) error {
	const checked = 1000
	step := max(1, count/checked)
	check := newWork(1, min(checked, count), func(c *client, i int) error {
		i *= step
		if err := c.read(names.at(i), recoveryBlockBytes); err != nil {
			return err
		}
		return c.verify(i, recoveryBlockBytes)
	})
	if err := d.writer.once(ctx, check); err != nil {
		return fmt.Errorf("recovered: %w", err)
	}
	return nil
}

func memoryUsed(s *status) int64 {
	for _, t := range s.Tiers {
		if t.Name == "memory" {
			return t.UsedBytes
		}
	}
	return 0
}

// recoveryTold returns what status and log say about the recovery of the disk tier; "nothing" if
// they say nothing.
func recoveryTold(s *status, log string) string {
	var out []string
	for _, t := range s.Secondaries {
		var detail any
		if t.Name != "disk" || json.Unmarshal(t.Detail, &detail) != nil {
			continue // No detail: nothing told.
		}
		out = append(out, recoveryFields("", detail)...)
	}
	for line := range strings.Lines(log) {
		if strings.Contains(strings.ToLower(line), "recover") {
			out = append(out, strings.ReplaceAll(strings.TrimSpace(line), "|", "/"))
		}
	}
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, "; ")
}

// recoveryFields returns "name value" of the fields, at any depth, whose names mention recovery.
func recoveryFields(name string, value any) []string {
	var out []string
	switch v := value.(type) {
	case map[string]any:
		for key, field := range v {
			inner := key
			if strings.Contains(strings.ToLower(name), "recover") {
				inner = name + "." + key
			}
			out = append(out, recoveryFields(inner, field)...)
		}
		slices.Sort(out)
	case []any:
		for _, element := range v {
			out = append(out, recoveryFields(name, element)...)
		}
	default:
		if strings.Contains(strings.ToLower(name), "recover") {
			out = append(out, fmt.Sprintf("%s %v", name, v))
		}
	}
	return out
}
