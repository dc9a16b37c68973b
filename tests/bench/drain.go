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
	// drainGoal is the share of fio's write bandwidth that the cascade wants to
	// reach.
	drainGoal = 0.90
	// backlogShare is how much of the blocks must be left when the last write
	// ends, for the rest to tell a rate.
	backlogShare = 0.25
	drainWriters = 2
)

// drain measures how fast the cascade takes blocks to the disk.
func (d *diskBench) drain(ctx context.Context) error {
	total, note, err := d.fit(d.config.diskBytes, 2, 2, diskSlack)
	if err != nil {
		return err
	}
	total = max(total, slices.Max(d.config.sizes))
	table := d.report.table("drain", "Cascade to the disk",
		fmt.Sprintf("(%s of blocks%s, written by %d threads at full speed into an empty tier; fio writes one fresh, "+
			"fallocated file; \"in all\" counts from the first write, \"alone\" from the last one until the queue "+
			"is empty, which is judged; a round that has less than %.0f %% left then counts in all)",
			sizeText(total), note, drainWriters, 100*backlogShare),
		"block", "fio GB/s", "in all GB/s", "left %", "alone GB/s", "min-max", "to fio", "goal", "")
	for _, size := range d.config.sizes {
		if err := d.drainSize(ctx, table, size, total/size); err != nil {
			return fmt.Errorf("%s: %w", sizeText(size), err)
		}
	}
	return nil
}

func (d *diskBench) drainSize(ctx context.Context, table *table, size, count int) error {
	d.say("drain: %d blocks of %s", count, sizeText(size))
	var rates []drainRate
	contenders := []contender{{kvfsName, func(ctx context.Context, _ int) (float64, error) {
		rate, err := d.drainPass(ctx, size, count)
		rates = append(rates, rate)
		return rate.judged(), err
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
	d.drainRow(table, size, perSec, rates)
	return nil
}

// drainPass fills a fresh tier: slots that were used before are faster to write
// than fresh ones, and fio has none.
func (d *diskBench) drainPass(ctx context.Context, size, count int) (rate drainRate, err error) {
	total := size * count
	m, err := d.mount(ctx, "kvfs-disk", total*5/4+256*mib, 2*total+diskSlack, total*5/4+64*mib)
	if err != nil {
		return drainRate{}, err
	}
	defer func() { err = errors.Join(err, m.close(), d.syncDisk()) }()
	set, err := newBlockSet(&m.target, "drain", size, 0, count)
	if err != nil {
		return drainRate{}, err
	}
	if err := errors.Join(m.settle(ctx), d.syncDisk()); err != nil {
		return drainRate{}, err
	}
	base, err := m.tier()
	if err != nil {
		return drainRate{}, err
	}
	begin := time.Now()
	if err := d.readers.once(ctx, newWork(drainWriters, count, set.store)); err != nil {
		return drainRate{}, err
	}
	var points []drainPoint
	err = m.drained(ctx, base, count, func(at time.Time, s *tierStatus) {
		points = append(points, drainPoint{at.Sub(begin), s.CascadedBytes - base.CascadedBytes})
	})
	if err != nil {
		return drainRate{}, err
	}
	rate = drainRates(points)
	if got := points[len(points)-1].bytes; got < uint64(total) {
		return rate, fmt.Errorf("status tells %d bytes cascaded, want %d", got, total)
	}
	return rate, nil
}

// drainPoint is what status told at a time since the first write.
type drainPoint struct {
	at    time.Duration
	bytes uint64 // stored since the first write
}

// drainRate is the outcome of one pass, in bytes a second.
type drainRate struct {
	inAll float64 // from the first write
	alone float64 // from the last write; 0: too little was left
	left  float64 // share of the bytes that were left when the last write ended
}

func (r drainRate) judged() float64 {
	if r.alone > 0 {
		return r.alone
	}
	return r.inAll
}

// drainRates computes the rates from the points since the last write, of which the
// last one saw the queue empty. The rate alone counts from the first change, as
// at the first point a store was half done.
func drainRates(points []drainPoint) drainRate {
	first, last := points[0], points[len(points)-1]
	if last.bytes == 0 || last.at <= 0 {
		return drainRate{}
	}
	r := drainRate{
		inAll: float64(last.bytes) / last.at.Seconds(),
		left:  1 - float64(first.bytes)/float64(last.bytes),
	}
	edge := slices.IndexFunc(points, func(p drainPoint) bool { return p.bytes > first.bytes })
	if edge < 0 {
		return r
	}
	from := points[edge]
	// The last change is when the queue ran empty; what is polled later tells
	// nothing.
	end := slices.IndexFunc(points, func(p drainPoint) bool { return p.bytes == last.bytes })
	to := points[end]
	if float64(to.bytes-from.bytes) >= backlogShare*float64(last.bytes) {
		r.alone = float64(to.bytes-from.bytes) / (to.at - from.at).Seconds()
	}
	return r
}

func (d *diskBench) drainRow(table *table, size int, perSec series, rates []drainRate) {
	r := row{Topic: "drain", Target: kvfsName, BlockBytes: size, Threads: drainWriters, Unit: "GB/s",
		Samples: gigabytes(perSec[kvfsName])}
	r.Value = median(r.Samples)
	var inAll, left, alone []float64
	for _, rate := range rates {
		inAll, left = append(inAll, rate.inAll/1e9), append(left, 100*rate.left)
		if rate.alone > 0 {
			alone = append(alone, rate.alone/1e9)
		}
	}
	d.report.add(row{Topic: "drain", Target: kvfsName, BlockBytes: size, Threads: drainWriters,
		Unit: "GB/s from the first write on", Value: median(inAll), Samples: inAll})
	base, verdict := "no fio", d.fio.skipped(drainGoal)
	if d.fio.missing == "" {
		fio := row{Topic: "drain", Target: fioName, BlockBytes: size, Unit: "GB/s", Samples: gigabytes(perSec[fioName])}
		fio.Value = median(fio.Samples)
		d.report.add(fio)
		base, verdict = fmt.Sprintf("%.2f", fio.Value), d.versus(&r, perSec, fioName, drainGoal)
	}
	d.report.add(r)
	aloneText := "n/a"
	if len(alone) > 0 {
		aloneText = fmt.Sprintf("%.2f", median(alone))
	}
	cells := []string{sizeText(size), base, fmt.Sprintf("%.2f", median(inAll)), fmt.Sprintf("%.0f", median(left)),
		aloneText, spread(r.Samples)}
	table.add(append(cells, verdict...)...)
}
