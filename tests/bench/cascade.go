package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvfs/kvfs/tiers/lane"
)

const (
	// drainGoal is the goal for the cascade as a share of fio's write bandwidth.
	drainGoal = 0.90
	// backlogShare is how much of the blocks must be left at the first answer of status, so that the rest gives a rate.
	backlogShare = 0.5
	drainWriters = 2
)

func (j *job) drain() {
	total, note := j.fit(j.config.diskBytes, 2, 2)
	total = max(total, slices.Max(j.config.sizes))
	table := j.table("Cascade to the disk",
		fmt.Sprintf("(%s of blocks%s, which a daemon without a disk tier left in memory and the next one, with an empty "+
			"disk tier, finds and takes there at once, checksums included; fio writes one fresh, fallocated file; \"left\" is "+
			"what was not yet on the disk when status first answered, and what is timed; below %.0f %% the time counts from "+
			"the start of the daemon)", sizeText(total), note, 100*backlogShare),
		"block", "fio GB/s", "drain GB/s", "min-max", "to fio", "goal", "left %")
	file := filepath.Join(j.dirIn(j.config.diskDir), "drain")
	for _, size := range j.config.sizes {
		count := total / size
		j.say("drain: %d blocks of %s", count, sizeText(size))
		var left samples
		figs := j.rotate(0, j.rounds, []side{
			{kvfsName, func(int) (speed float64) {
				j.scope(func(j *job) {
					rate, share := j.drainPass(size, count)
					speed, left = rate/1e9, append(left, 100*share)
				})
				return speed
			}},
			{fioName, func(int) float64 {
				defer func() { must(errors.Join(os.Remove(file), syncFS(j.config.diskDir))) }()
				return fio(j.ctx, file, "write", size, count*size, coldReaders, "--fallocate=native")
			}},
		})
		ratio := figs.over(kvfsName, fioName)
		table.row(sizeText(size), figs[fioName], figs[kvfsName], figs[kvfsName].spread(), ratio, j.atLeast(drainGoal, ratio),
			fmt.Sprintf("%.0f", median(left)))
	}
}

// drainMount is a kvfs with room for all blocks in memory and in the queue.
func drainMount(total int, flags ...string) mountOptions {
	return mountOptions{"kvfs-drain", total*5/4 + 256*mib, 2*total + diskSlack, total*5/4 + 64*mib, flags}
}

// drainPass has one daemon leave blocks in memory and times how the next one takes them to a fresh tier. The tier is
// fresh because used slots are faster to write than fresh ones, and fio has no used ones.
func (j *job) drainPass(size, count int) (perSec, left float64) {
	total := size * count
	j.later(func() { must(syncFS(j.config.diskDir)) })
	kept := true
	j.later(func() { // what is left is freed when a daemon starts and stops cleanly
		if kept {
			s := j.kvfs("kvfs-drain", mebibytes(drainMount(total).memory))
			must(start(context.Background(), s))
			must(s.stop())
		}
	})
	j.scope(func(j *job) {
		o := drainMount(total, "--memory-keep")
		o.disk = 0
		set := newBlockSet(j.mount(o), "drain", size, 0, count)
		j.once(drainWriters, count, set.store)
	})
	begin := time.Now()
	t := j.mount(drainMount(total))
	kept = false
	var points []drainPoint
	j.drained(t, &lane.Stats{}, count, func(at time.Time, s *lane.Stats) {
		points = append(points, drainPoint{at.Sub(begin), s.CascadedBytes})
	})
	if got := points[len(points)-1].bytes; got != uint64(total) {
		must(fmt.Errorf("status tells %d bytes cascaded, want the %d that were in memory", got, total))
	}
	return drainRates(points)
}

type drainPoint struct {
	at    time.Duration
	bytes uint64 // stored since then
}

// drainRates returns bytes a second, and the share of the bytes that was left at the first answer of status, from the
// points since the start of the daemon. At the last of them the queue is empty. The rate counts from the first change,
// because at the first point a store was half done; if less than backlogShare was left then, from the start of the
// daemon, which is never too much.
func drainRates(points []drainPoint) (perSec, left float64) {
	first, last := points[0], points[len(points)-1]
	to := points[slices.IndexFunc(points, func(p drainPoint) bool { return p.bytes == last.bytes })] // later ones have no meaning
	if to.bytes == 0 || to.at <= 0 {
		return 0, 0
	}
	from := drainPoint{}
	if edge := slices.IndexFunc(points, func(p drainPoint) bool { return p.bytes > first.bytes }); edge >= 0 {
		if p := points[edge]; p.at < to.at && float64(to.bytes-p.bytes) >= backlogShare*float64(to.bytes) {
			from = p
		}
	}
	return float64(to.bytes-from.bytes) / (to.at - from.at).Seconds(), 1 - float64(first.bytes)/float64(to.bytes)
}

// cascadeBlockBytes is the size of the blocks that keep a cascade busy.
const cascadeBlockBytes = 4 * mib

// The states in which hot reads are measured.
const (
	quietState   = "alone"
	writerState  = "with a writer" // into a mount without a lower tier
	cascadeState = "with a writer and its cascade"
)

// cascade is a mount with and a mount without a lower tier. Each has a ring of blocks that a writer overwrites.
type cascade struct {
	*job
	tier, plain         *target
	tierRing, plainRing *blockSet
	writer              *pool
	limit               float64 // of the writer, bytes a second; 0: none
	cascaded, written   series  // GB/s, by state
}

// cascade fills the rings and measures how fast the lower tier takes blocks from the writer.
func (j *job) cascade(tier, plain *target, blocks int) *cascade {
	c := &cascade{job: j, tier: tier, plain: plain, writer: newPool(1, cascadeBlockBytes), cascaded: series{}, written: series{}}
	j.later(c.writer.close)
	c.tierRing = newBlockSet(tier, "ring", cascadeBlockBytes, 0, blocks)
	c.plainRing = newBlockSet(plain, "ring", cascadeBlockBytes, 0, blocks)
	j.once(1, blocks, c.tierRing.store)
	j.once(1, blocks, c.plainRing.store)
	c.rest()
	c.whileWriting(c.tierRing, func() float64 { j.pause(4 * c.length()); return 0 })
	c.limit = 1e9 * c.cascaded[cascadeState][0]
	c.rest()
	return c
}

// length of a pass, in which the cascade finishes blocks.
func (c *cascade) length() time.Duration { return max(c.passTime, 100*time.Millisecond) }

// rest waits until both daemons are idle. The cascade may have dropped blocks when its queue was full, because it had
// to be busy.
func (c *cascade) rest() {
	c.settle(c.plain, c.tier)
	c.drained(c.tier, c.tier.lower(), 0, nil)
}

// whileWriting returns the figure of f, which runs while a thread overwrites a ring, and notes what was written and
// cascaded meanwhile.
func (c *cascade) whileWriting(ring *blockSet, f func() float64) float64 {
	ctx, stop := context.WithCancelCause(c.ctx)
	errStopped, ended := errors.New("stopped"), make(chan error, 1)
	var blocks atomic.Int64
	begin := time.Now()
	w := newWork(1, ring.count, func(cl *client, i int) {
		if c.limit > 0 {
			due := begin.Add(time.Duration(float64(blocks.Load()) * float64(ring.size) / c.limit * 1e9))
			if wait := time.Until(due); wait > 0 {
				must(pause(ctx, wait))
			}
		}
		blocks.Add(1)
		ring.store(cl, i)
	})
	go func() { // ends with stop
		ended <- try(func() { c.writer.run(ctx, w, time.Hour) })
	}()
	figure, state := 0.0, writerState
	err := try(func() {
		c.pause(c.length() / 2) // until the cascade runs
		if ring == c.plainRing {
			figure = f()
			return
		}
		state = cascadeState
		before, from := c.tier.lower().CascadedBytes, time.Now()
		figure = f()
		c.cascaded[state] = append(c.cascaded[state], gbs(int(c.tier.lower().CascadedBytes-before), time.Since(from)))
	})
	c.written[state] = append(c.written[state], gbs(int(blocks.Load())*ring.size, time.Since(begin)))
	stop(errStopped)
	if end := <-ended; !errors.Is(end, errStopped) {
		err = errors.Join(err, end)
	}
	must(err)
	return figure
}

// states measures reads of blocks of one size in each state, in GB/s.
func (c *cascade) states(size int) series {
	count := c.config.count(size)
	hot := map[*target]*blockSet{}
	for _, t := range []*target{c.tier, c.plain} {
		hot[t] = newBlockSet(t, fmt.Sprintf("hot%d", size), size, 0, count)
		c.fill(hot[t])
	}
	c.rest()
	promoted := c.tier.lower().Promoted
	c.cascaded, c.written = series{}, series{}
	read := func(t *target) func() float64 {
		return func() float64 { return c.pass(newWork(1, count, hot[t].read), c.length()).perSec * float64(size) / 1e9 }
	}
	figs := c.rotate(0, c.rounds, []side{
		{quietState, func(int) float64 { return read(c.tier)() }},
		{writerState, func(int) float64 { defer c.rest(); return c.whileWriting(c.plainRing, read(c.plain)) }},
		{cascadeState, func(int) float64 { defer c.rest(); return c.whileWriting(c.tierRing, read(c.tier)) }},
	})
	if n := c.tier.lower().Promoted - promoted; n > 0 {
		must(fmt.Errorf("%d blocks had to be promoted: not a hot read", n))
	}
	for _, set := range hot {
		set.remove()
	}
	return figs
}

// hotCascade measures how much a cascade slows down reads of blocks in memory. The writer slows them down, too. So the
// baseline has the same writer, at the same rate, without a disk tier.
func (j *job) hotCascade() {
	// The ring is larger than the queue. So no block is replaced while it waits, and every written block is cascaded.
	ring, note := j.fit(j.config.diskBytes*3/2, 2, 3)
	blocks := max(4, ring/cascadeBlockBytes)
	ring = blocks * cascadeBlockBytes
	hot := 0 // bytes of the largest set of blocks to read
	for _, size := range j.config.sizes {
		hot = max(hot, size*j.config.count(size))
	}
	memory := (ring+hot)*5/4 + 256*mib
	j.say("hotcascade: %d blocks of %s to write", blocks, sizeText(cascadeBlockBytes))
	plain := j.mount(mountOptions{name: "kvfs-plain", memory: memory})
	tier := j.mount(mountOptions{name: "kvfs-disk", memory: memory, disk: 3*ring + diskSlack, queue: max(ring/3, 64*mib)})
	c := j.cascade(tier, plain, blocks)
	table := j.table("Hot reads while a cascade runs",
		fmt.Sprintf("(1 thread reads; one more writes blocks of %s, held to %.2f GB/s, the rate at which the cascade "+
			"took them without readers%s)", sizeText(cascadeBlockBytes), c.limit/1e9, note),
		"block", "alone GB/s", "writer, no disk tier", "writer and cascade", "min-max", "to no disk tier", "goal",
		"to alone", "cascade GB/s", "written GB/s")
	for _, size := range j.config.sizes {
		j.say("hotcascade %s", sizeText(size))
		figs := c.states(size)
		goal := j.atLeast(0.90, figs.over(cascadeState, writerState))
		if slices.Min(c.cascaded[cascadeState]) == 0 {
			goal = "no cascade ran" // then the figures have no meaning
		}
		table.row(sizeText(size), figs[quietState], figs[writerState], figs[cascadeState], figs[cascadeState].spread(),
			figs.over(cascadeState, writerState), goal, figs.over(cascadeState, quietState), c.cascaded[cascadeState],
			fmt.Sprintf("%.2f, %.2f", median(c.written[writerState]), median(c.written[cascadeState])))
	}
}
