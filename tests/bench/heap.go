package main

import (
	"fmt"
	"os"
	"time"
)

const (
	heapBlockBytes = 4 * kib
	heapGroups     = 1000
	heapGoalBytes  = 120       // of the daemon's heap for each block
	heapSure       = 1_000_000 // blocks from which on the cost of one is judged: with fewer the heap without blocks counts
	readyGoal      = 1         // s
)

// heap stores small blocks, ten times as many in each step, in a fresh kvfs, and measures the heap for each. Then it
// kills the daemon and measures how the next one adopts the blocks.
func (j *job) heap() {
	steps, note := heapSteps(j.config.blocks, memInfo("MemAvailable"))
	table := j.table("Many blocks of "+sizeText(heapBlockBytes),
		fmt.Sprintf("(in %d directories; heap: all of the daemon's, also what it has without blocks; memory: of the machine, also the blocks and the "+
			"kernel's inodes%s)", heapGroups, note),
		"blocks", "heap a block, bytes", "goal", "memory a block, bytes", "stored a second",
		"ready after SIGKILL, s", "goal", "all listed after, s", "adopted %")
	for _, count := range steps {
		j.say("heap: %d blocks", count)
		j.scope(func(j *job) { table.row(j.heapCells(count)...) })
	}
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

// heapCells measures one number of blocks.
func (j *job) heapCells(count int) []any {
	goal := func(goal, value float64) string {
		if count < heapSure {
			return ""
		}
		return j.atMostText(goal, value, "%g")
	}
	t := j.mount(mountOptions{name: "kvfs-heap", memory: 256*mib + count*heapBlockBytes/4*5})
	available := memInfo("MemAvailable")
	names, perSec := j.storeSmall(t, count)
	each := float64(t.status().Process.HeapBytes) / float64(count)
	cells := []any{count, fourDigits(each), goal(heapGoalBytes, each), "", fmt.Sprintf("%.0f", perSec)}
	if count >= heapSure { // the memory of fewer is lost in other changes
		cells[3] = fourDigits(float64(available-memInfo("MemAvailable")) / float64(count))
	}
	t.server.crash()
	begin := time.Now()
	must(t.server.start(j.ctx))
	ready := time.Since(begin).Seconds()
	found := j.awaitListed(t, count)
	listed := time.Since(begin).Seconds()
	if found == count {
		j.checkSmall(names, count)
	}
	j.point("scale", "heap, bytes", count, each)
	j.point("scale", "ready, ms", count, 1000*ready)
	return append(cells, fourDigits(ready), goal(readyGoal, ready), fourDigits(listed), fourDigits(100*float64(found)/float64(count)))
}

func fourDigits(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.4g", v)
}

func (j *job) storeSmall(t *target, count int) (names paths, perSec float64) {
	for g := range heapGroups {
		must(os.Mkdir(groupDir(t, g), 0o755))
	}
	names = newPaths(count, func(i int) string { return groupDir(t, i%heapGroups) + "/" + blockName(i) })
	w := newWork(2, count, func(c *client, i int) {
		if i%100_000 == 0 {
			j.say("store block %d of %d", i, count)
		}
		c.stamp(i, heapBlockBytes)
		c.create(names.at(i), heapBlockBytes)
	})
	return names, j.whole(w).perSec
}

func (j *job) checkSmall(names paths, count int) {
	const checked = 1000
	step := max(1, count/checked)
	j.once(1, min(checked, count), func(c *client, i int) {
		c.read(names.at(i*step), heapBlockBytes)
		checkMarks(c.buf[:heapBlockBytes], i*step)
	})
}

// groupDir has three digits, because all paths have the same length.
func groupDir(t *target, g int) string { return fmt.Sprintf("%s/heap%03d", t.dir, g) }

// awaitListed lists the groups until they show all blocks, for a minute at most.
func (j *job) awaitListed(t *target, count int) (found int) {
	for begin := time.Now(); ; j.pause(100 * time.Millisecond) {
		found = 0
		j.once(1, heapGroups, func(c *client, g int) { found += c.readDir(groupDir(t, g)) })
		if found >= count || time.Since(begin) > time.Minute {
			return found
		}
	}
}
