package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// blockOp is what a client does with block i of a set.
type blockOp func(s *blockSet, c *client, i int)

func (op blockOp) on(s *blockSet) func(*client, int) { return func(c *client, i int) { op(s, c, i) } }

// throughput compares an operation on all targets, for all sizes and numbers of threads.
func throughput(title, note string, op blockOp) func(*job) {
	return func(j *job) { j.throughput(title, note, op) }
}

func (j *job) throughput(title, note string, op blockOp) {
	j.startTargets()
	head := []string{"block", "threads"}
	for _, t := range j.targets {
		switch head = append(head, t.title()+" GB/s"); {
		case t.name == shmName:
			head[len(head)-1] += " (max/min)"
		case t.name == kvfsName:
			head = append(head, "to the best", "goal")
		case t.name == loopbackName:
			head = append(head, "to the best")
		}
	}
	rates := j.table(title, note, head...)
	for _, size := range j.config.sizes {
		j.say("%s %s", j.topic, sizeText(size))
		sets := j.blockSets(size, j.config.count(size))
		for _, threads := range j.config.threads {
			figs, works := j.contest(threads, sets, op)
			rates.row(j.rateCells(size, threads, figs)...)
			if threads == 1 {
				j.timesRow(title+": time of one", size, func(t *target) []time.Duration { return works[t].times })
			}
			if threads == 1 && j.topic == "fresh" {
				j.timesRow(title+": time of close and rename", size, func(t *target) []time.Duration { return works[t].commits })
			}
		}
		for _, s := range sets {
			if j.topic == "write" { // what was written must read back
				j.once(1, s.count, s.readVerified)
			}
			s.remove()
		}
	}
}

// blockSets makes blocks of a size on each target; fresh writes begin without.
func (j *job) blockSets(size, count int) map[*target]*blockSet {
	sets := map[*target]*blockSet{}
	for _, t := range j.targets {
		s := newBlockSet(t, fmt.Sprintf("g%d", size), size, 0, count)
		if j.topic != "fresh" {
			j.fill(s)
			j.settle(t)
		}
		sets[t] = s
	}
	return sets
}

// contest measures one operation on all targets in turn, in operations a second.
func (j *job) contest(threads int, sets map[*target]*blockSet, op blockOp) (series, map[*target]*work) {
	works := map[*target]*work{}
	var sides []side
	for _, t := range j.targets {
		s := sets[t]
		w := newWork(threads, s.count, op.on(s))
		w.times, w.once = newTimes(threads), j.topic == "fresh"
		if w.once {
			w.commits = newTimes(threads)
		}
		works[t] = w
		settle := func() {
			if w.once {
				s.clear()
			}
			j.settle(t)
		}
		sides = append(sides, side{t.name, func(round int) float64 {
			if round < 0 { // all blocks once: a short pass does not reach them all
				j.whole(w)
				settle()
			}
			rate := j.pass(w, j.passTime).perSec
			settle()
			if round < 0 {
				w.times, w.commits = w.times[:0], w.commits[:0]
			}
			return rate
		}})
	}
	return j.rotate(1, j.rounds, sides), works
}

func (j *job) rateCells(size, threads int, perSec series) []any {
	cells := []any{sizeText(size), threads}
	for _, t := range j.targets {
		rates := perSec[t.name].times(float64(size) / 1e9)
		text := fmt.Sprintf("%.2f", median(rates))
		if t.name == shmName { // its spread shows how calm the machine was
			text += fmt.Sprintf(" (%.2f)", slices.Max(rates)/slices.Min(rates))
		}
		cells = append(cells, text)
		ratio := perSec.toBest(t.name)
		switch t.name {
		case kvfsName:
			cells = append(cells, ratio, j.atLeast(throughputGoals()[fmt.Sprintf("%s %d %s", j.topic, threads, sizeText(size))], ratio))
		case loopbackName:
			cells = append(cells, ratio)
		}
		if threads == 1 && t.name != loopbackName {
			j.point(j.topic, t.title(), size, median(rates))
		}
	}
	return cells
}

// throughputGoals are shares of the best reference.
func throughputGoals() map[string]float64 {
	return map[string]float64{
		"read 1 64 KiB": 0.45, "read 1 256 KiB": 0.65, "read 1 1 MiB": 0.85, "read 1 4 MiB": 0.95, "read 1 16 MiB": 1, "read 4 4 MiB": 1,
		"fresh 1 64 KiB": 0.40, "fresh 1 1 MiB": 0.60, "fresh 1 4 MiB": 0.80,
	}
}

// timesRow reports the times of one operation on kvfs and on a tmpfs, with huge pages if there is one.
func (j *job) timesRow(title string, size int, times func(*target) []time.Duration) {
	kvfs, other := j.target(kvfsName), j.target(hugeName)
	if other == nil {
		other = j.target(shmName)
	}
	ours, theirs := tailsOf(times(kvfs)), tailsOf(times(other))
	if j.topic == "read" {
		j.point("latency", "memory", size, ours.p50)
	}
	goal := 0.0 // how many times the p99 of the reference that of kvfs may be
	if j.topic == "fresh" && size == 4*mib {
		goal = 2
	}
	j.table(title, "(1 thread; all operations of all rounds)", "block", "kvfs mean us", "p50 / p99 / max us",
		other.title()+" mean us", "p50 / p99 / max us", "p99 to it", "goal").
		row(sizeText(size), microsText(ours.mean), ours.text(), microsText(theirs.mean), theirs.text(), ours.p99/theirs.p99,
			j.atMostText(goal, ours.p99/theirs.p99, "%.1f"))
}

// perTarget compares an operation whose time does not depend on the size: a row for each target.
func perTarget(title string, op blockOp, unit, ratio string, cells func(perSec, toBest float64) []any) func(*job) {
	return func(j *job) {
		j.startTargets()
		size := slices.Min(j.config.sizes)
		figs, _ := j.contest(1, j.blockSets(size, j.config.count(size)), op)
		t := j.table(title, "(1 thread)", "target", unit, ratio)
		for _, one := range j.targets {
			t.row(append([]any{one.title()}, cells(median(figs[one.name]), figs.toBest(one.name))...)...)
		}
	}
}

// requests counts the FUSE requests that kvfs gets for each operation of a client.
func (j *job) requests() {
	j.startTargets(kvfsName)
	t := j.table("FUSE requests of kvfs for each operation on a hot block", "", "operation", "block", "requests", "sum", "goal")
	for _, size := range j.config.sizes {
		set := j.blockSets(size, j.config.count(size))[j.targets[0]]
		for _, c := range []struct {
			name string
			op   blockOp
			goal string
			met  func(ops map[string]float64) bool
		}{
			{"open, read, close", (*blockSet).read, "OPEN and RELEASE only", onlyOpenRelease},
			{"stat", (*blockSet).stat, "none", func(ops map[string]float64) bool { return len(ops) == 0 }},
			{"the read, then stat", func(s *blockSet, c *client, i int) { s.read(c, i); s.stat(c, i) }, "", onlyOpenRelease},
			{"write, rename", (*blockSet).store, "", onlyOpenRelease},
		} {
			ops := j.countRequests(j.targets[0], newWork(1, set.count, c.op.on(set)))
			sum, each := 0.0, []string{}
			for _, name := range slices.Sorted(maps.Keys(ops)) {
				sum += ops[name]
				each = append(each, fmt.Sprintf("%s %.2f", name, ops[name]))
			}
			if len(ops) == 0 {
				each = []string{"none"}
			}
			t.row(c.name, sizeText(size), strings.Join(each, ", "), sum, j.verdict(c.goal, c.met(ops)))
		}
		set.remove()
	}
}

// countRequests returns the requests for each operation. It leaves out less than one in 100 operations.
func (j *job) countRequests(t *target, w *work) map[string]float64 {
	j.whole(w) // warm-up
	counters := func() map[string]uint64 {
		j.pause(200 * time.Millisecond) // for asynchronous requests: RELEASE, FORGET
		return t.status().Mount.Ops
	}
	before := counters()
	between := counters() // reading the status makes requests as well: this shows which ones
	repeats := max(1, 200/w.count)
	for range repeats {
		j.whole(w)
	}
	each := map[string]float64{}
	for name, n := range counters() {
		own := float64(between[name] - before[name])
		if of := (float64(n-between[name]) - own) / float64(repeats*w.count); of >= 0.01 {
			each[name] = of
		}
	}
	return each
}

func onlyOpenRelease(ops map[string]float64) bool {
	for name, n := range ops {
		if (name != "OPEN" && name != "RELEASE") || n > 1.01 {
			return false
		}
	}
	return true
}

// cpuGoal is the goal "near zero" in processor seconds of the daemon for each GB read hot.
const cpuGoal = 0.05

func (j *job) daemonCPU() {
	j.startTargets(kvfsName, loopbackName)
	head := []string{"block", "kvfs s/GB", "goal"}
	if len(j.targets) > 1 {
		head = append(head, "loopback s/GB")
	}
	table := j.table("Processor time of the daemon for each GB read hot", "(1 thread)", head...)
	for _, size := range j.config.sizes {
		cells := []any{sizeText(size)}
		sets := j.blockSets(size, j.config.count(size))
		for _, t := range j.targets {
			set := sets[t]
			j.settle(t)
			before := t.server.cpuTime()
			// Its clock ticks every 10 ms: all rounds in one pass.
			read := j.pass(newWork(1, set.count, set.read), max(100*time.Millisecond, time.Duration(j.rounds)*j.passTime))
			j.settle(t) // the last RELEASE counts too
			perGB := (t.server.cpuTime() - before).Seconds() * 1e9 / (float64(read.ops) * float64(size))
			if cells = append(cells, fmt.Sprintf("%.3f", perGB)); t.name == kvfsName {
				cells = append(cells, j.atMost(cpuGoal, perGB))
			}
			set.remove()
		}
		table.row(cells...)
	}
}

// readdirGoal is how many times as long as the disk's file system kvfs may take.
const readdirGoal = 3

func (j *job) readdir() {
	const size = 1 * kib
	j.startTargets()
	var sides []side
	for _, t := range j.targets {
		j.say("readdir: %d entries on %s", j.config.entries, t.name)
		s := newBlockSet(t, "readdir", size, 0, j.config.entries)
		j.once(j.config.maxThreads, s.count, func(c *client, i int) {
			c.stamp(i, size)
			c.create(s.final.at(i), size)
		})
		j.settle(t)
		j.later(func() { s.remove() })
		sides = append(sides, side{t.name, func(int) float64 {
			return 1000 * j.once(1, 1, func(c *client, _ int) {
				if n := c.readDir(s.dir); n != s.count {
					must(fmt.Errorf("%s: %d entries, want %d", s.dir, n, s.count))
				}
			}).Seconds()
		}})
	}
	// The first listing is before the kernel has seen the end of the directory.
	ms := j.rotate(0, j.rounds+1, sides)
	table := j.table(fmt.Sprintf("Listing a directory of %d blocks", j.config.entries), "(getdents until the end, 1 thread)",
		"target", "first ms", "then ms", "entries/s", "times tmpfs", "times disk", "goal")
	for _, t := range j.targets {
		then := median(ms[t.name][1:])
		toDisk, goal := then/median(ms[diskName][1:]), ""
		if t.name == kvfsName {
			goal = fmt.Sprintf("under %d", readdirGoal)
		}
		table.row(t.title(), fmt.Sprintf("%.1f", ms[t.name][0]), fmt.Sprintf("%.1f", then), fmt.Sprintf("%.0f", float64(j.config.entries)/then*1000),
			fmt.Sprintf("%.1f", then/median(ms[shmName][1:])), fmt.Sprintf("%.1f", toDisk), j.verdict(goal, toDisk < readdirGoal))
	}
}
