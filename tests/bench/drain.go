package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	// drainGoal is the goal for the cascade as a share of fio's write bandwidth.
	drainGoal = 0.90
	// backlogShare is how much of the blocks must be left at the first answer of status, so that
	// the rest gives a rate.
	backlogShare = 0.5
	drainWriters = 2
	// drainMount is the mount point whose blocks one daemon leaves to the next.
	drainMount = "kvfs-drain"
)

// drain measures how fast the cascade takes blocks to the disk.
func (d *diskBench) drain(ctx context.Context) error {
	total, note, err := d.fit(d.config.diskBytes, 2, 2, diskSlack)
	if err != nil {
		return err
	}
	total = max(total, slices.Max(d.config.sizes))
	table := d.report.table("drain", "Cascade to the disk",
		fmt.Sprintf("(%s of blocks%s, which a daemon without a disk tier left in memory and the next one, with an empty "+
			"disk tier, finds and takes there at once, checksums included; fio writes one fresh, fallocated file; \"left\" is "+
			"what was not yet on the disk when status first answered, and what is timed; below %.0f %% the time counts from "+
			"the start of the daemon. Not judged: \"writers\" is the speed of %d threads that write such blocks while the "+
			"cascade runs, \"in all\" counts from their first write until the queue is empty)",
			sizeText(total), note, 100*backlogShare, drainWriters),
		"block", "fio GB/s", "drain GB/s", "min-max", "to fio", "goal", "", "left %", "writers GB/s", "in all GB/s")
	for _, size := range d.config.sizes {
		if err := d.drainSize(ctx, table, size, total/size); err != nil {
			return fmt.Errorf("%s: %w", sizeText(size), err)
		}
	}
	return nil
}

func (d *diskBench) drainSize(ctx context.Context, table *table, size, count int) error {
	d.say("drain: %d blocks of %s", count, sizeText(size))
	var drains []drainRate
	var writings []writingRate
	contenders := []contender{{kvfsName, func(ctx context.Context, _ int) (float64, error) {
		drained, err := d.drainPass(ctx, size, count)
		if err != nil {
			return 0, err
		}
		writing, err := d.writingPass(ctx, size, count)
		drains, writings = append(drains, drained), append(writings, writing)
		return drained.judged(), err
	}}}
	if d.fio.missing == "" {
		contenders = append(contenders, contender{fioName, func(ctx context.Context, _ int) (float64, error) {
			file := filepath.Join(d.rawDir, "drain")
			rate, err := d.fio.run(ctx, fioJob{file: file, pattern: "write", blockBytes: size,
				totalBytes: count * size, flags: []string{"--fallocate=native"}})
			return rate, errors.Join(err, os.Remove(file), d.syncDisk())
		}})
	}
	perSec, err := d.rotate(ctx, contenders)
	if err != nil {
		return err
	}
	d.drainRow(table, size, perSec, drains, writings)
	return nil
}

// drainPass has one daemon leave blocks in memory and times how the next one takes them to a fresh
// tier. The tier is fresh because used slots are faster to write than fresh ones, and fio has no
// used ones.
func (d *diskBench) drainPass(ctx context.Context, size, count int) (rate drainRate, err error) {
	total := size * count
	if err := d.leaveBlocks(ctx, size, count); err != nil {
		return drainRate{}, errors.Join(err, d.freeLeft(total))
	}
	begin := time.Now()
	m, err := d.mount(ctx, drainMount, drainMemory(total), 2*total+diskSlack, total*5/4+64*mib)
	if err != nil {
		return drainRate{}, errors.Join(err, d.freeLeft(total))
	}
	defer func() { err = errors.Join(err, m.close(), d.syncDisk()) }() // this frees the memory as well
	points, err := m.drainPoints(ctx, begin, &tierStatus{}, count)
	if err != nil {
		return drainRate{}, err
	}
	rate = drainRates(points)
	if got := points[len(points)-1].bytes; got != uint64(total) {
		return rate, fmt.Errorf("status tells %d bytes cascaded, want the %d that were in memory", got, total)
	}
	return rate, nil
}

func drainMemory(total int) int { return total*5/4 + 256*mib }

// leaveBlocks writes blocks into a daemon without a disk tier, whose clean stop
// leaves them in memory.
func (d *diskBench) leaveBlocks(ctx context.Context, size, count int) (err error) {
	m, err := d.mount(ctx, drainMount, drainMemory(size*count), 0, 0, "--memory-keep")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close(), d.syncDisk()) }()
	set, err := newBlockSet(&m.target, "drain", size, 0, count)
	if err != nil {
		return err
	}
	return d.readers.once(ctx, newWork(drainWriters, count, set.store))
}

// freeLeft frees what leaveBlocks may have left: it starts a daemon and stops it cleanly. It also
// works when ctx is done.
func (d *diskBench) freeLeft(total int) error {
	s, err := d.kvfs(drainMount, mebibytes(drainMemory(total)))
	if err == nil {
		err = d.start(context.Background(), s)
	}
	if err != nil {
		return fmt.Errorf("blocks may still be in memory, see 'kvfs doctor --clean': %w", err)
	}
	return s.stop()
}

// writingPass fills a fresh tier from empty memory.
func (d *diskBench) writingPass(ctx context.Context, size, count int) (rate writingRate, err error) {
	total := size * count
	m, err := d.mount(ctx, "kvfs-disk", drainMemory(total), 2*total+diskSlack, total*5/4+64*mib)
	if err != nil {
		return writingRate{}, err
	}
	defer func() { err = errors.Join(err, m.close(), d.syncDisk()) }()
	set, err := newBlockSet(&m.target, "drain", size, 0, count)
	if err != nil {
		return writingRate{}, err
	}
	if err := errors.Join(m.settle(ctx), d.syncDisk()); err != nil {
		return writingRate{}, err
	}
	base, err := m.tier()
	if err != nil {
		return writingRate{}, err
	}
	begin := time.Now()
	if err := d.readers.once(ctx, newWork(drainWriters, count, set.store)); err != nil {
		return writingRate{}, err
	}
	rate.writers = float64(total) / time.Since(begin).Seconds()
	points, err := m.drainPoints(ctx, begin, base, count)
	if err != nil {
		return writingRate{}, err
	}
	rate.inAll = float64(total) / lastChange(points).at.Seconds()
	return rate, nil
}

// drainPoint is the status at a time since the start or the first write.
type drainPoint struct {
	at    time.Duration
	bytes uint64 // stored since then
}

// drainPoints watches how the tier takes count blocks more than at base.
func (m *tierMount) drainPoints(ctx context.Context, begin time.Time, base *tierStatus, count int) ([]drainPoint, error) {
	var points []drainPoint
	err := m.drained(ctx, base, count, func(at time.Time, s *tierStatus) {
		points = append(points, drainPoint{at.Sub(begin), s.CascadedBytes - base.CascadedBytes})
	})
	return points, err
}

// lastChange returns when the queue became empty; later points have no meaning.
func lastChange(points []drainPoint) drainPoint {
	last := points[len(points)-1]
	return points[slices.IndexFunc(points, func(p drainPoint) bool { return p.bytes == last.bytes })]
}

// writingRate is the result of a writingPass, in bytes a second.
type writingRate struct {
	writers float64
	inAll   float64 // from the first write until the queue was empty
}

// drainRate is the result of a drainPass, in bytes a second.
type drainRate struct {
	started float64 // from the start of the daemon
	alone   float64 // from the first change in status; 0: too little was left
	left    float64 // share of the bytes left at the first answer of status
}

// judged is never too much: started is a lower bound.
func (r drainRate) judged() float64 {
	if r.alone > 0 {
		return r.alone
	}
	return r.started
}

// drainRates computes the rates from the points since the start of the daemon. At the last point
// the queue is empty. The rate alone counts from the first change, because at the first point a
// store was half done.
func drainRates(points []drainPoint) drainRate {
	first, to := points[0], lastChange(points)
	if to.bytes == 0 || to.at <= 0 {
		return drainRate{}
	}
	r := drainRate{
		started: float64(to.bytes) / to.at.Seconds(),
		left:    1 - float64(first.bytes)/float64(to.bytes),
	}
	edge := slices.IndexFunc(points, func(p drainPoint) bool { return p.bytes > first.bytes })
	if edge < 0 {
		return r
	}
	from := points[edge]
	if float64(to.bytes-from.bytes) >= backlogShare*float64(to.bytes) {
		r.alone = float64(to.bytes-from.bytes) / (to.at - from.at).Seconds()
	}
	return r
}

func (d *diskBench) drainRow(table *table, size int, perSec series, drains []drainRate, writings []writingRate) {
	r := row{Topic: "drain", Target: kvfsName, BlockBytes: size, Unit: "GB/s", Samples: gigabytes(perSec[kvfsName])}
	r.Value = median(r.Samples)
	base, verdict := "no fio", d.fio.skipped(drainGoal)
	if d.fio.missing == "" {
		fio := row{Topic: "drain", Target: fioName, BlockBytes: size, Unit: "GB/s", Samples: gigabytes(perSec[fioName])}
		fio.Value = median(fio.Samples)
		d.report.add(fio)
		base, verdict = fmt.Sprintf("%.2f", fio.Value), d.versus(&r, perSec, fioName, drainGoal)
	}
	d.report.add(r)
	var left, writers, inAll []float64
	for _, rate := range drains {
		left = append(left, 100*rate.left)
	}
	for _, rate := range writings {
		writers, inAll = append(writers, rate.writers/1e9), append(inAll, rate.inAll/1e9)
	}
	for _, more := range []struct {
		unit    string
		threads int
		samples []float64
	}{
		{"% left when status first answered", 0, left},
		{"GB/s of writers while the cascade runs", drainWriters, writers},
		{"GB/s from their first write until the queue is empty", drainWriters, inAll},
	} {
		d.report.add(row{Topic: "drain", Target: kvfsName, BlockBytes: size, Threads: more.threads, Unit: more.unit,
			Value: median(more.samples), Samples: more.samples})
	}
	cells := append([]string{sizeText(size), base, fmt.Sprintf("%.2f", r.Value), spread(r.Samples)}, verdict...)
	table.add(append(cells, fmt.Sprintf("%.0f", median(left)), fmt.Sprintf("%.2f", median(writers)),
		fmt.Sprintf("%.2f", median(inAll)))...)
}
