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
	heapGoalBytes  = 400 // of the daemon's heap for each block
	scrapes        = 9
	scrapeGoal     = 50 // ms
)

// heap stores many small blocks in a fresh kvfs and measures the heap for each. Then it kills the
// daemon and measures how the next one adopts the blocks.
func (b *bench) heap(ctx context.Context) error {
	t := b.target(kvfsName)
	if err := t.server.stop(); err != nil {
		return err
	}
	count := affordable(b.config.blocks)
	var err error
	if t.server, err = b.kvfs("kvfs", 256+count*heapBlockBytes/4*5/mib); err != nil {
		return err
	}
	if err := b.start(ctx, t.server); err != nil {
		return err
	}
	table := b.report.table("heap", fmt.Sprintf("%d blocks of %s", count, sizeText(heapBlockBytes)),
		reducedNote(count, b.config.blocks), "what", "value", "goal", "")
	add := func(what string, value float64, unit string) {
		b.report.add(row{Topic: "heap", Target: kvfsName, BlockBytes: heapBlockBytes,
			Value: value, Unit: what + ", " + unit})
		table.add(what, fmt.Sprintf("%.4g %s", value, unit), "", "")
	}
	empty := b.heapBytes(t)
	available := memInfo("MemAvailable")
	names, err := b.storeSmall(ctx, t, count, add)
	if err != nil {
		return err
	}
	b.heapRow(table, empty, b.heapBytes(t), count)
	if count >= 100_000 { // fewer are lost in other changes of the heap
		add("memory of the machine for each block",
			float64(available-memInfo("MemAvailable"))/float64(count), "bytes")
	}
	if err := b.scrape(ctx, t, table); err != nil {
		return err
	}
	return b.adoption(ctx, t, names, count, add)
}

// affordable is how many of the wanted blocks fit into memory: 4 KiB for the bytes and about 3 KiB
// for the kernel's inodes and names, of kvfs and of its tmpfs.
func affordable(wanted int) int {
	const reserve, each = 1 * gib, 7 * kib
	return min(wanted, max(1000, (memInfo("MemAvailable")-reserve)/each))
}

func reducedNote(count, wanted int) string {
	if count == wanted {
		return ""
	}
	return fmt.Sprintf("(REDUCED from %d: too little memory is available)", wanted)
}

// storeSmall stores the blocks under their final names.
func (b *bench) storeSmall(ctx context.Context, t *target, count int,
	add func(string, float64, string)) (paths, error) {
	for g := range heapGroups {
		if err := os.Mkdir(groupDir(t, g), 0o755); err != nil {
			return paths{}, err
		}
	}
	names := newPaths(count, func(i int) string {
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
	add(fmt.Sprintf("stored, %d threads", w.threads), result.perSec, "blocks/s")
	return names, err
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

func (b *bench) heapRow(table *table, empty, full float64, count int) {
	if full == 0 {
		table.add("heap for each block", "n/a", fmt.Sprintf("%d bytes", heapGoalBytes), "")
		return
	}
	r := row{Topic: "heap", Target: kvfsName, BlockBytes: heapBlockBytes,
		Value: full / float64(count), Unit: "heap for each block, bytes"}
	table.add("heap for each block", fmt.Sprintf("%.0f bytes", r.Value),
		fmt.Sprintf("%d bytes", heapGoalBytes),
		b.report.judge(&r, heapGoalBytes, r.Value <= heapGoalBytes))
	b.report.add(r)
	table.add("heap without blocks, part of the above", fmt.Sprintf("%.1f MiB", empty/mib), "", "")
}

// adoption kills the daemon and times the next one until it is ready, and until it lists all
// blocks.
func (b *bench) adoption(ctx context.Context, t *target, names paths, count int,
	add func(string, float64, string)) error {
	b.say("heap: kill kvfs and start it again")
	t.server.crash()
	begin := time.Now()
	if err := t.server.start(ctx); err != nil {
		return err
	}
	ready := time.Since(begin).Seconds()
	add("ready again after SIGKILL", ready, "s")
	add("the same for each million blocks", ready*1e6/float64(count), "s")
	found, err := b.awaitListed(ctx, t, count)
	if err != nil {
		return err
	}
	add("all listed after", time.Since(begin).Seconds(), "s")
	add("share of the blocks adopted", 100*float64(found)/float64(count), "%")
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

// scrape times the reading of all metrics. The daemon answers from its last collection for ten times as long as that
// took: each reading waits until the next one collects anew.
func (b *bench) scrape(ctx context.Context, t *target, table *table) error {
	var ms []float64
	for range scrapes {
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		begin := time.Now()
		if _, err := os.ReadFile(t.dir + "/.kvfs/metrics"); err != nil {
			return err
		}
		ms = append(ms, float64(time.Since(begin))/1e6)
	}
	r := row{Topic: "heap", Target: kvfsName, Value: median(ms), Unit: "all metrics read, ms", Samples: ms}
	table.add("all metrics read", fmt.Sprintf("%.3g ms (%s)", r.Value, spread(ms)), fmt.Sprintf("%d ms", scrapeGoal),
		b.report.judge(&r, scrapeGoal, r.Value <= scrapeGoal))
	b.report.add(r)
	return nil
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
