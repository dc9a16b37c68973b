package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	coldReaders = 8 // threads, as many as fio has requests in flight
	// diskSlack is the room of a disk tier besides its blocks: partly filled slabs, headers.
	diskSlack = 1 * gib
	pollEvery = 10 * time.Millisecond
	// timedPollEvery bounds the error of a drain's end, if it counts. The daemon takes a fifth of a millisecond to answer.
	timedPollEvery = 5 * time.Millisecond
)

func noDisk(b *bench) string {
	if fsType(b.config.diskDir) == "tmpfs" {
		return b.config.diskDir + " is on tmpfs; give -disk a directory on a disk"
	}
	return noRoot(b)
}

// noRoot says why there are no figures of what only root can do.
func noRoot(*bench) string {
	if os.Geteuid() != 0 {
		return "only root can drop caches, and take a mount over"
	}
	return ""
}

// fit returns how many of the wanted bytes of blocks can be used if a byte takes onDisk bytes on the disk and inMemory
// bytes in memory. It also returns a note if that is less than all.
func (j *job) fit(want int, onDisk, inMemory float64) (int, string) {
	var st unix.Statfs_t
	must(unix.Statfs(j.config.diskDir, &st))
	free, available := int(st.Bavail)*int(st.Bsize), memInfo("MemAvailable")
	got := fitBytes(want, free-diskSlack, available, onDisk, inMemory)
	if got < 16*mib && got < want {
		must(fmt.Errorf("%d MiB of disk and %d MiB of memory are free: too little", free/mib, available/mib))
	}
	if got < want {
		return got, fmt.Sprintf("; REDUCED from %s: %d MiB of disk and %d MiB of memory are free", sizeText(want), free/mib, available/mib)
	}
	return got, ""
}

// fitBytes leaves a tenth of the disk and a third of the memory free.
func fitBytes(want, free, available int, onDisk, inMemory float64) int {
	got := int(min(0.9*float64(free)/onDisk, 0.66*float64(available)/inMemory))
	return max(0, min(want, got/mib*mib))
}

// dropCaches writes back dirty pages and drops cached ones; "2" drops names and inodes.
func (j *job) dropCaches(what ...string) {
	must(syncFS(j.config.diskDir))
	for _, one := range append(what, "1") {
		must(os.WriteFile("/proc/sys/vm/drop_caches", []byte(one), 0))
	}
}

// pretouch touches bytes of new memory. A virtual machine returns freed memory to its host after a moment (free page
// reporting), and the first use after that takes ten times as long.
func pretouch(bytes int) {
	p := get(unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS))
	unix.Madvise(p, unix.MADV_HUGEPAGE) // if possible
	for at := 0; at < len(p); at += pageBytes {
		p[at] = 1
	}
	must(unix.Munmap(p))
}

// coldBlocks are blocks of a kvfs whose lower tier has them.
type coldBlocks struct {
	*job
	at  *target
	set *blockSet
}

// coldBlocks mounts a kvfs, stores blocks, and waits until the disk tier has them.
func (j *job) coldBlocks(name string, size, count int, flags ...string) *coldBlocks {
	total := size * count
	c := &coldBlocks{job: j, at: j.mount(mountOptions{name, total*5/4 + 256*mib, 2*total + diskSlack, total*5/4 + 64*mib, flags})}
	c.set = newBlockSet(c.at, "cold", size, 0, count)
	base := c.at.lower()
	j.storeMarked(c.set)
	j.drained(c.at, base, count, nil)
	return c
}

// promoting empties memory and the page cache, and calls f, which brings count blocks into memory. It fails if they did
// not come from the tier below memory.
func (c *coldBlocks) promoting(count int, f func()) {
	before := c.at.lower().Promoted
	c.empty(c.at)
	c.dropCaches()
	pretouch(count*c.set.size*5/4 + 256*mib)
	f()
	c.settle(c.at) // the last RELEASE counts too
	// One in a hundred may have been busy when its memory was to be freed.
	if promoted := int(c.at.lower().Promoted - before); promoted < count-count/100 {
		must(fmt.Errorf("only %d of %d blocks came from below memory: not cold", promoted, count))
	}
}

// timed is the speed with which bring brings all blocks into memory, in another order each round.
func (c *coldBlocks) timed(round int, bring func(order []int)) (speed float64) {
	c.promoting(c.set.count, func() {
		order := shuffled(c.set, round)
		begin := time.Now()
		bring(order)
		speed = gbs(c.set.count*c.set.size, time.Since(begin)) // a block counts when it is there
	})
	return speed
}

func (j *job) cold() {
	total, note := j.fit(j.config.diskBytes, 4, 2.5)
	total = max(total, slices.Max(j.config.sizes))
	toFio := j.table("Cold reads", fmt.Sprintf("(open, one read, close; each block once, in random order, page cache dropped; "+
		"%s of blocks, with 1 and 2 readers a quarter of them%s; fio has as many requests in flight)", sizeText(total), note),
		"block", "readers", "fio GB/s", "kvfs GB/s", "min-max", "to fio", "goal")
	cpu := j.table(fmt.Sprintf("Processor time of the daemon for cold reads by %d readers", coldReaders), "", "block", "daemon s/GB", "goal")
	layout := filepath.Join(j.dirIn(j.config.diskDir), "cold")
	layOut(j.ctx, layout, total)
	for _, size := range j.config.sizes {
		j.say("cold: %d blocks of %s", total/size, sizeText(size))
		j.scope(func(j *job) {
			c := j.coldBlocks("kvfs-disk", size, total/size)
			c.promoting(c.set.count, func() { // each block once, untimed, and all bytes compared
				j.once(1, c.set.count, j.readWhole(c.set))
			})
			for _, readers := range []int{1, 2, coldReaders} {
				figs, perGB := c.depth(readers, layout)
				ratio := figs.over(kvfsName, fioName)
				toFio.row(sizeText(size), readers, figs[fioName], figs[kvfsName], figs[kvfsName].spread(), ratio, j.atLeast(coldGoals()[size][readers], ratio))
				if readers == coldReaders {
					cpu.row(sizeText(size), perGB, j.atMost(map[int]float64{64 * kib: 0.8, mib: 0.2, 4 * mib: 0.1}[size], perGB))
				}
			}
		})
	}
}

// coldGoals are shares of fio's speed, by size and readers.
func coldGoals() map[int]map[int]float64 {
	return map[int]map[int]float64{
		64 * kib: {1: 0.70, 2: 0.80, 8: 0.80},
		mib:      {1: 0.80, 2: 0.95, 8: 0.95},
		4 * mib:  {1: 0.95, 2: 1, 8: 0.95},
		16 * mib: {8: 0.95},
	}
}

// depth compares one number of readers, and returns also the processor seconds of the daemon for each GB. Few readers
// are slow: they read a quarter of the blocks.
func (c *coldBlocks) depth(readers int, layout string) (figs series, perGB float64) {
	part := c.set.count
	if readers < coldReaders {
		part = max(1, part/4)
	}
	bytes := part * c.set.size
	var times []time.Duration // of each read through the mount, with one reader
	sides := []side{{kvfsName, func(round int) (speed float64) {
		c.promoting(part, func() {
			before := c.at.server.cpuTime()
			w := sequence(readers, shuffled(c.set, round)[:part], c.set.readMarked)
			w.times = newTimes(readers)
			speed = gbs(bytes, c.pass(w, time.Hour).elapsed)
			c.settle(c.at)
			times = append(times, w.times...)
			perGB += (c.at.server.cpuTime() - before).Seconds() * 1e9 / float64(bytes*c.rounds)
		})
		return speed
	}}}
	figs = c.rotate(0, c.rounds, append(sides, side{fioName, func(int) float64 {
		c.dropCaches()
		return fio(c.ctx, layout, "randread", c.set.size, bytes, readers)
	}}))
	if readers == 1 {
		c.point("latency", "SSD", c.set.size, tailsOf(times).p50)
	}
	return figs, perGB
}

// prefetch measures how fast .kvfs/prefetch brings blocks into memory, beside opening and reading them.
func (j *job) prefetch() {
	const size, one, all = mib, "cold reads, 1 reader", "cold reads, 8 readers"
	total, note := j.fit(j.config.diskBytes, 4, 2.5)
	count := max(1, total/size)
	c := j.coldBlocks("kvfs-disk", size, count)
	talk := j.dialogue(c.at, "prefetch")
	ask := func(order []int) {
		hashes := make([]string, len(order))
		for at, i := range order {
			hashes[at] = blockName(i)
		}
		request := get(json.Marshal(map[string]any{"group": "cold", "hashes": hashes}))
		checkPrefetch(j.askOnce(talk, request), len(order))
	}
	read := func(threads int) func([]int) {
		return func(order []int) { j.inOrder(threads, order, c.set.readMarked) }
	}
	var sides []side
	for _, s := range []struct {
		name  string
		bring func([]int)
	}{
		{"prefetch", ask}, {"prefetch, then 1 reader", func(order []int) { ask(order); read(1)(order) }}, {one, read(1)}, {all, read(coldReaders)},
	} {
		sides = append(sides, side{s.name, func(round int) float64 { return c.timed(round, s.bring) }})
	}
	figs := j.rotate(0, j.rounds, sides)
	table := j.table(fmt.Sprintf("Prefetch of %d blocks of %s from the SSD", count, sizeText(size)),
		"(one request, in random order, memory tier empty and page cache dropped; beside reads of the same blocks in the same order"+note+")",
		"how", "GB/s", "min-max", "to 1 reader", fmt.Sprintf("to %d readers", coldReaders))
	for _, s := range sides {
		table.row(s.name, figs[s.name], figs[s.name].spread(), figs.over(s.name, one), figs.over(s.name, all))
	}
}

func checkPrefetch(answer []byte, blocks int) {
	answer = bytes.TrimSpace(answer)
	a := decodeJSON(answer[bytes.LastIndexByte(answer, '\n')+1:])
	// One in a hundred may have been busy when its memory was to be freed.
	if len(a.Errors) > 0 || len(a.Results) != blocks || strings.Contains(a.Results, ".") || a.Loaded < blocks-blocks/100 {
		must(fmt.Errorf("of %d blocks %d were loaded: %+v", blocks, a.Loaded, a))
	}
}

// lookFirst measures, for engines that look up before they read, a promotion at the open and one at the look-up. The
// engines are those of docs/engines: one thread looks all blocks of a request up, then readers read them.
func (j *job) lookFirst() {
	t := j.table("Blocks of the SSD that are looked up before they are read",
		"(one thread looks all names up, as soon as it has done so the readers read; GB/s of both together; memory tier, page cache and the kernel's names empty)",
		"as", "block", "blocks", "readers", "promotion.on: open, GB/s", "min-max", "lookup, GB/s", "min-max", "to open")
	for _, e := range []struct {
		engine                string
		size, blocks, readers int
	}{
		{"vLLM", 2 * mib, 64, 1}, {"SGLang", 256 * kib, 128, 1}, {"LMCache", 4 * mib, 32, 4}, {"llm-d", mib, 64, coldReaders},
	} {
		j.say("lookfirst: %s, %d blocks of %s", e.engine, e.blocks, sizeText(e.size))
		j.scope(func(j *job) {
			var sides []side
			for _, on := range []string{"open", "lookup"} {
				c := j.coldBlocks("kvfs-"+on, e.size, e.blocks, "--promotion-on", on)
				sides = append(sides, side{on, func(round int) float64 {
					j.dropCaches("2")
					return c.timed(round, func(order []int) {
						j.inOrder(1, order, c.set.stat)
						j.inOrder(e.readers, order, c.set.readMarked)
					})
				}})
			}
			figs := j.rotate(0, j.rounds, sides)
			open, lookup := figs["open"], figs["lookup"]
			t.row(e.engine, sizeText(e.size), e.blocks, e.readers, open, open.spread(), lookup, lookup.spread(), figs.over("lookup", "open"))
		})
	}
}

const startPasses = 3

// recovery measures how long a daemon needs to be ready with a disk tier full of small blocks, after a clean stop,
// which leaves an index, and after SIGKILL.
func (j *job) recovery() {
	// A page of header each; 3 KiB for the kernel's inodes and names.
	bytes, note := j.fit(j.config.recover*heapBlockBytes, 2.25, 2)
	count := max(1, bytes/heapBlockBytes)
	j.say("recovery: store %d blocks", count)
	t := j.mount(mountOptions{name: "kvfs-disk", memory: bytes*5/4 + 256*mib, disk: bytes*9/4 + diskSlack, queue: bytes*5/4 + 64*mib})
	table := j.table(fmt.Sprintf("Recovery of %d blocks of %s on the disk", count, sizeText(heapBlockBytes)),
		"(starts: from exec to ready, page cache dropped, memory tier empty; what the daemon itself says is in the last column"+note+")",
		"what", "s", "min-max", "s a million", "goal", "recovered %", "told by the daemon")
	row := func(name string, seconds samples, goal float64, whole bool, more ...any) {
		million := median(seconds) * 1e6 / float64(count)
		table.row(append([]any{name, seconds, seconds.spread(), million, j.verdict(fmt.Sprintf("under %g", goal), million < goal && whole)}, more...)...)
	}
	base := t.lower()
	names, _ := j.storeSmall(t, count)
	j.drained(t, base, count, nil)
	j.say("recovery: evict all from memory")
	begin := time.Now()
	j.command(j.kvfsPath, "evict", "--tier", "memory", "--all", t.dir)
	row("eviction of all from memory", samples{time.Since(begin).Seconds()}, 5, true)
	for _, kind := range []struct {
		name string
		goal float64
		end  func() // of the previous daemon
	}{
		{"with the index, after a clean stop", 0.5, func() { must(t.server.stop()) }}, {"with the index, after SIGKILL", 1, t.server.crash},
	} {
		var seconds samples
		told, share := "", 100.0
		for range min(startPasses, j.rounds) {
			j.say("recovery: start %s", kind.name)
			kind.end()
			j.dropCaches()
			begin := time.Now()
			must(t.server.start(j.ctx))
			seconds = append(seconds, time.Since(begin).Seconds())
			if used := t.memoryUsed(); used > int64(count*heapBlockBytes/100) {
				must(fmt.Errorf("%d bytes were in the memory tier: not a recovery of the disk tier", used))
			}
			told = "recovery_seconds " + t.told("recovery_seconds")
			share = min(share, 100*float64(j.awaitListed(t, count))/float64(count))
		}
		row(kind.name, seconds, kind.goal, share == 100, fmt.Sprintf("%.4g", share), told)
	}
	j.checkSmall(names, count)
}
