package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	heapBlockBytes = 4 * kib
	heapGroups     = 1000
	heapGoalBytes  = 120       // of the daemon's heap for each block
	heapSure       = 1_000_000 // blocks from which on the cost of one is judged
	scrapes        = 9
	scrapeGoal     = 50 // ms
	readyGoal      = 1  // s

	heapUnit  = "heap for each block"
	readyUnit = "ready again after SIGKILL"
)

// heap stores small blocks, ten times as many in each step, in a fresh kvfs, and measures the heap for each. Then it kills
// the daemon and measures how the next one adopts the blocks.
func (b *bench) heap(ctx context.Context) error {
	t := b.target(kvfsName)
	if err := t.server.stop(); err != nil {
		return err
	}
	steps, note := heapSteps(b.config.blocks, memInfo("MemAvailable"))
	table := b.report.table("heap", "Many blocks of "+sizeText(heapBlockBytes),
		fmt.Sprintf("(in %d directories; heap: all of the daemon's, also what it has without blocks; memory: of the machine, also the blocks and the "+
			"kernel's inodes%s)", heapGroups, note),
		"blocks", "heap a block, bytes", "goal", "", "memory a block, bytes", "stored a second", "all metrics read, ms", "goal", "",
		"ready after SIGKILL, s", "goal", "", "all listed after, s", "adopted %")
	for i, count := range steps {
		if err := b.heapStep(ctx, t, table, count, i == len(steps)-1); err != nil {
			return fmt.Errorf("%d blocks: %w", count, err)
		}
	}
	return nil
}

// heapSteps are the powers of ten from 1,000 on, and most, as far as memory is available, and a note about the others:
// a block has 4 KiB of bytes, and about 3 KiB are for the kernel's inodes and names, of kvfs and of its tmpfs.
func heapSteps(most, available int) (steps []int, note string) {
	const reserve, each = 1 * gib, 7 * kib
	for count := 1000; ; count *= 10 {
		count = min(count, most)
		if need := reserve + count*each; need > available && len(steps) > 0 {
			note += fmt.Sprintf("; not %d, which need %.1f GiB of memory: %.1f are available", count, float64(need)/gib, float64(available)/gib)
		} else {
			steps = append(steps, count)
		}
		if count == most {
			return steps, note
		}
	}
}

// heapStep measures one number of blocks. The metrics are read in the last step alone.
func (b *bench) heapStep(ctx context.Context, t *target, table *table, count int, last bool) error {
	b.say("heap: %d blocks", count)
	err := t.server.stop()
	if err == nil {
		t.server, err = b.kvfs("kvfs", 256+count*heapBlockBytes/4*5/mib)
	}
	if err == nil {
		err = b.start(ctx, t.server)
	}
	if err != nil {
		return err
	}
	cells := []string{fmt.Sprint(count)}
	add := func(what string, value float64, unit string, goal float64) {
		r := row{Topic: "heap", Target: kvfsName, BlockBytes: heapBlockBytes, Blocks: count, Value: value, Unit: what + ", " + unit}
		text := fmt.Sprintf("%.4g", value)
		if value >= 1000 {
			text = fmt.Sprintf("%.0f", value)
		}
		cells = append(cells, text)
		switch {
		case goal > 0 && count >= heapSure: // with fewer the heap without blocks counts
			cells = append(cells, fmt.Sprint(goal), b.report.judge(&r, goal, value <= goal))
		case goal > 0:
			cells = append(cells, "", "")
		}
		b.report.add(r)
	}
	available := memInfo("MemAvailable")
	names, perSec, err := b.storeSmall(ctx, t, count)
	if err != nil {
		return err
	}
	add(heapUnit, b.heapBytes(t)/float64(count), "bytes", heapGoalBytes)
	if count >= heapSure { // the memory of fewer is lost in other changes
		add("memory of the machine for each block", float64(available-memInfo("MemAvailable"))/float64(count), "bytes", 0)
	} else {
		cells = append(cells, "")
	}
	add("stored", perSec, "blocks/s", 0)
	if last {
		ms, err := b.scrape(ctx, t)
		if err != nil {
			return err
		}
		add("all metrics read", ms, "ms", scrapeGoal)
	} else {
		cells = append(cells, "", "", "")
	}
	if err := b.adoption(ctx, t, names, count, add); err != nil {
		return err
	}
	table.add(cells...)
	return nil
}

// storeSmall stores the blocks under their final names, on two threads if it has them.
func (b *bench) storeSmall(ctx context.Context, t *target, count int) (names paths, perSec float64, err error) {
	for g := range heapGroups {
		if err := os.Mkdir(groupDir(t, g), 0o755); err != nil {
			return paths{}, 0, err
		}
	}
	names = newPaths(count, func(i int) string {
		return groupDir(t, i%heapGroups) + "/" + blockName(i)
	})
	w := newWork(min(2, b.config.maxThreads), count, func(c *client, i int) error {
		if i%100_000 == 0 {
			b.say("store block %d of %d", i, count)
		}
		c.stamp(i, heapBlockBytes)
		return c.create(names.at(i), heapBlockBytes)
	})
	w.once = true
	result, err := b.pool.run(ctx, w, time.Hour)
	return names, result.perSec, err
}

// groupDir has three digits, because all paths have the same length.
func groupDir(t *target, g int) string { return fmt.Sprintf("%s/heap%03d", t.dir, g) }

// heapBytes returns the daemon's live heap, or 0 if status does not have it.
func (b *bench) heapBytes(t *target) float64 {
	s, err := readStatus(t)
	if err != nil {
		b.say("no heap: %v", err)
		return 0
	}
	if s.Process.HeapBytes == nil {
		return 0
	}
	return *s.Process.HeapBytes
}

// adoption kills the daemon and times the next one until it is ready, and until it lists all
// blocks.
func (b *bench) adoption(ctx context.Context, t *target, names paths, count int,
	add func(what string, value float64, unit string, goal float64)) error {
	b.say("heap: kill kvfs and start it again")
	t.server.crash()
	begin := time.Now()
	if err := t.server.start(ctx); err != nil {
		return err
	}
	add(readyUnit, time.Since(begin).Seconds(), "s", readyGoal)
	found, err := b.awaitListed(ctx, t, count)
	if err != nil {
		return err
	}
	add("all listed after", time.Since(begin).Seconds(), "s", 0)
	add("share of the blocks adopted", 100*float64(found)/float64(count), "%", 0)
	if found < count {
		return nil // a benchmark does not check which ones
	}
	const checked = 1000
	check := newWork(1, min(checked, count), func(c *client, i int) error {
		if err := c.read(names.at(i), heapBlockBytes); err != nil {
			return err
		}
		return c.verify(i, heapBlockBytes)
	})
	if err := b.pool.once(ctx, check); err != nil {
		return fmt.Errorf("adopted: %w", err)
	}
	return nil
}

// scrape returns the time in ms to read all metrics. The daemon answers from its last collection for ten times as long as
// that took: each reading waits until the next one collects anew.
func (b *bench) scrape(ctx context.Context, t *target) (float64, error) {
	var ms []float64
	for range scrapes {
		if err := pause(ctx, time.Second); err != nil {
			return 0, err
		}
		begin := time.Now()
		if _, err := os.ReadFile(t.dir + "/.kvfs/metrics"); err != nil {
			return 0, err
		}
		ms = append(ms, float64(time.Since(begin))/1e6)
	}
	return median(ms), nil
}

// awaitListed lists the groups until they show all blocks, for a minute at most.
func (b *bench) awaitListed(ctx context.Context, t *target, count int) (found int, err error) {
	deadline := time.Now().Add(time.Minute)
	for {
		found = 0
		list := newWork(1, heapGroups, func(c *client, g int) error {
			dir, err := unix.BytePtrFromString(groupDir(t, g))
			if err != nil {
				return err
			}
			n, err := c.readDir(dir)
			found += n
			return err
		})
		err := b.pool.once(ctx, list)
		if err == nil && found >= count || time.Now().After(deadline) || ctx.Err() != nil {
			return found, err
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return found, err
		}
	}
}
