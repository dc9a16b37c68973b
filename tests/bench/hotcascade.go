package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// hotCascadeGoal is the share of their speed that hot reads keep during a cascade.
	hotCascadeGoal = 0.90
	// cascadeBlockBytes is the size of the blocks that keep the cascade busy.
	cascadeBlockBytes = 4 * mib
)

// The states in which hot reads are measured, as names of a series.
const (
	quietState   = "alone"         // no writer
	writerState  = "with a writer" // into a mount without a disk tier
	cascadeState = "with a writer and its cascade"
)

// cascadeBench is a mount with and a mount without a disk tier. Each has a ring of blocks that a
// writer overwrites.
type cascadeBench struct {
	*diskBench
	tier, plain         *tierMount
	tierRing, plainRing *blockSet
	bytesPerSec         float64   // rate limit of the writer; 0: none
	cascaded            []float64 // bytes a second, in each pass of cascadeState
	written             series    // bytes a second, by state
}

// hotCascade measures how much a cascade slows down reads of blocks in memory. The writer slows
// them down, too. So the baseline has the same writer, at the same rate, without a disk tier.
func (d *diskBench) hotCascade(ctx context.Context) (err error) {
	// The ring is larger than the queue. So no block is replaced while it waits, and every written
	// block is cascaded.
	ring, note, err := d.fit(d.config.diskBytes*3/2, 2, 3, diskSlack)
	if err != nil {
		return err
	}
	blocks := max(4, ring/cascadeBlockBytes)
	ring = blocks * cascadeBlockBytes
	hot := 0 // bytes of the largest set of blocks to read
	for _, size := range d.config.sizes {
		hot = max(hot, size*d.config.count(size))
	}
	memory := (ring+hot)*5/4 + 256*mib
	c := &cascadeBench{diskBench: d, written: series{}}
	d.say("hotcascade: %d blocks of %s to write", blocks, sizeText(cascadeBlockBytes))
	if c.plain, err = d.mount(ctx, "kvfs-plain", memory, 0, 0); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.plain.close()) }()
	if c.tier, err = d.mount(ctx, "kvfs-disk", memory, 3*ring+diskSlack, max(ring/3, 64*mib)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.tier.close(), d.syncDisk()) }()
	if err := c.prepare(ctx, blocks); err != nil {
		return err
	}
	table := d.report.table("hotcascade", "Hot reads while a cascade runs",
		fmt.Sprintf("(1 thread reads; one more writes blocks of %s, held to %.2f GB/s, the rate at which the cascade "+
			"took them without readers%s)", sizeText(cascadeBlockBytes), c.bytesPerSec/1e9, note),
		"block", "alone GB/s", "writer, no disk tier", "writer and cascade", "min-max", "to no disk tier", "goal", "",
		"to alone", "cascade GB/s", "written GB/s")
	for _, size := range d.config.sizes {
		d.say("hotcascade %s", sizeText(size))
		if err := c.size(ctx, table, size); err != nil {
			return fmt.Errorf("%s: %w", sizeText(size), err)
		}
	}
	return nil
}

// prepare fills the rings and measures how fast the cascade can take blocks from the writer.
func (c *cascadeBench) prepare(ctx context.Context, blocks int) error {
	var err error
	if c.tierRing, err = newBlockSet(&c.tier.target, "ring", cascadeBlockBytes, 0, blocks); err != nil {
		return err
	}
	if c.plainRing, err = newBlockSet(&c.plain.target, "ring", cascadeBlockBytes, 0, blocks); err != nil {
		return err
	}
	for _, ring := range []*blockSet{c.tierRing, c.plainRing} {
		if err := c.writer.once(ctx, newWork(1, blocks, ring.store)); err != nil {
			return err
		}
	}
	if err := c.settle(ctx); err != nil {
		return err
	}
	if c.bytesPerSec, err = c.cascadeRate(ctx, func() error {
		return pause(ctx, 4*c.passTime())
	}); err != nil {
		return err
	}
	return c.settle(ctx)
}

// cascadeRate returns the bytes a second that the disk tier took during f, while
// the writer wrote.
func (c *cascadeBench) cascadeRate(ctx context.Context, f func() error) (float64, error) {
	w := c.startWriter(ctx, c.tierRing)
	rate, err := c.busy(ctx, f)
	written, writeErr := w.stop()
	c.written[cascadeState] = append(c.written[cascadeState], written)
	return rate, errors.Join(err, writeErr)
}

// busy waits until the cascade runs, then measures its rate during f.
func (c *cascadeBench) busy(ctx context.Context, f func() error) (float64, error) {
	if err := pause(ctx, c.passTime()/2); err != nil {
		return 0, err
	}
	before, err := c.tier.tier()
	begin := time.Now()
	if err == nil {
		err = f()
	}
	if err != nil {
		return 0, err
	}
	after, err := c.tier.tier()
	if err != nil {
		return 0, err
	}
	return float64(after.CascadedBytes-before.CascadedBytes) / time.Since(begin).Seconds(), nil
}

// settle waits until both daemons are idle. The cascade may have dropped blocks when its queue was
// full, because it had to be busy.
func (c *cascadeBench) settle(ctx context.Context) error {
	if err := errors.Join(c.plain.settle(ctx), c.tier.settle(ctx)); err != nil {
		return err
	}
	now, err := c.tier.tier()
	if err != nil {
		return err
	}
	return c.tier.drained(ctx, now, 0, nil)
}

// passTime is long enough for the cascade to finish blocks.
func (c *cascadeBench) passTime() time.Duration {
	return max(c.config.passTime, 100*time.Millisecond)
}

func (c *cascadeBench) size(ctx context.Context, table *table, size int) error {
	perSec, err := c.states(ctx, size)
	if err == nil {
		c.row(table, size, perSec)
	}
	return err
}

// states measures reads of blocks of one size in each state, in bytes a second.
func (c *cascadeBench) states(ctx context.Context, size int) (perSec series, err error) {
	count := c.config.count(size)
	sets := map[*tierMount]*blockSet{}
	for _, m := range []*tierMount{c.tier, c.plain} {
		set, err := newBlockSet(&m.target, fmt.Sprintf("hot%d", size), size, 0, count)
		if err != nil {
			return nil, err
		}
		if err := set.fill(ctx, c.writer); err != nil {
			return nil, err
		}
		sets[m] = set
	}
	if err := c.settle(ctx); err != nil {
		return nil, err
	}
	before, err := c.tier.tier()
	if err != nil {
		return nil, err
	}
	c.cascaded, c.written = nil, series{}
	perSec, err = c.rotate(ctx, c.contenders(sets))
	if err != nil {
		return nil, err
	}
	after, err := c.tier.tier()
	if err != nil {
		return nil, err
	}
	if n := after.Promoted - before.Promoted; n > 0 {
		return nil, fmt.Errorf("%d blocks had to be promoted: not a hot read", n)
	}
	for _, set := range sets {
		err = errors.Join(err, set.remove())
	}
	return perSec, err
}

// contenders are the states. Each pass reads blocks for a while and returns bytes a second.
func (c *cascadeBench) contenders(sets map[*tierMount]*blockSet) []contender {
	read := func(ctx context.Context, m *tierMount) (float64, error) {
		set := sets[m]
		result, err := c.readers.run(ctx, newWork(1, set.count, set.read), c.passTime())
		return result.perSec * float64(set.size), err
	}
	return []contender{
		{quietState, func(ctx context.Context, _ int) (float64, error) { return read(ctx, c.tier) }},
		{writerState, func(ctx context.Context, _ int) (rate float64, err error) {
			w := c.startWriter(ctx, c.plainRing)
			if err = pause(ctx, c.passTime()/2); err == nil {
				rate, err = read(ctx, c.plain)
			}
			written, writeErr := w.stop()
			c.written[writerState] = append(c.written[writerState], written)
			return rate, errors.Join(err, writeErr, c.settle(ctx))
		}},
		{cascadeState, func(ctx context.Context, _ int) (rate float64, err error) {
			cascaded, err := c.cascadeRate(ctx, func() (err error) {
				rate, err = read(ctx, c.tier)
				return err
			})
			c.cascaded = append(c.cascaded, cascaded)
			return rate, errors.Join(err, c.settle(ctx))
		}},
	}
}

func (c *cascadeBench) row(table *table, size int, perSec series) {
	r := row{Topic: "hotcascade", Target: cascadeState, BlockBytes: size, Threads: 1, Unit: "GB/s",
		Samples: gigabytes(perSec[cascadeState])}
	r.Value = median(r.Samples)
	toAlone := c.versus(&r, perSec, quietState, 0)[0]
	verdict := c.versus(&r, perSec, writerState, hotCascadeGoal)
	c.report.add(r)
	for _, state := range []string{quietState, writerState} {
		base := row{Topic: "hotcascade", Target: state, BlockBytes: size, Threads: 1, Unit: "GB/s",
			Samples: gigabytes(perSec[state])}
		base.Value = median(base.Samples)
		c.report.add(base)
	}
	cascade := row{Topic: "hotcascade", Target: "cascade", BlockBytes: size, Unit: "GB/s", Samples: gigabytes(c.cascaded)}
	cascade.Value = median(cascade.Samples)
	c.report.add(cascade)
	if slices.Min(cascade.Samples) == 0 {
		verdict[2] = "no cascade ran" // then the figures have no meaning
	}
	written := func(state string) string { return fmt.Sprintf("%.2f", median(gigabytes(c.written[state]))) }
	text := func(state string) string { return fmt.Sprintf("%.2f", median(gigabytes(perSec[state]))) }
	cells := []string{sizeText(size), text(quietState), text(writerState), text(cascadeState), spread(r.Samples)}
	cells = append(cells, verdict...)
	table.add(append(cells, toAlone, fmt.Sprintf("%.2f", cascade.Value),
		written(writerState)+", "+written(cascadeState))...)
}

// errStopped ends a backgroundWriter.
var errStopped = errors.New("stopped")

// backgroundWriter overwrites the blocks of a ring, one after another, until it is
// stopped.
type backgroundWriter struct {
	cancel context.CancelCauseFunc
	begin  time.Time
	blocks atomic.Int64
	done   chan error
}

// startWriter starts a thread. The caller must stop it.
func (c *cascadeBench) startWriter(ctx context.Context, ring *blockSet) *backgroundWriter {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &backgroundWriter{cancel: cancel, begin: time.Now(), done: make(chan error, 1)}
	rate := c.bytesPerSec
	write := newWork(1, ring.count, func(cl *client, i int) error {
		if rate > 0 {
			due := w.begin.Add(time.Duration(float64(w.blocks.Load()) * float64(ring.size) / rate * 1e9))
			if wait := time.Until(due); wait > 0 {
				if err := pause(ctx, wait); err != nil {
					return err
				}
			}
		}
		w.blocks.Add(1)
		return ring.store(cl, i)
	})
	go func() { // Ends with cancel, which stop calls.
		_, err := c.writer.run(ctx, write, time.Hour)
		w.done <- err
	}()
	return w
}

// stop returns the bytes a second that were written.
func (w *backgroundWriter) stop() (float64, error) {
	elapsed := time.Since(w.begin)
	written := float64(w.blocks.Load()) * cascadeBlockBytes / elapsed.Seconds()
	w.cancel(errStopped)
	err := <-w.done
	if errors.Is(err, errStopped) {
		err = nil
	}
	return written, err
}
