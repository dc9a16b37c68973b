package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// stores measures how fast blocks get into the bucket.
func (o *objectBench) stores(ctx context.Context) error {
	total := o.total / 2
	large := max(objectUploads, total/(16*mib))
	if err := o.storeSize(ctx, 16*mib, large, func(elapsed time.Duration) float64 {
		return float64(large*16*mib) / 1e9 / elapsed.Seconds()
	}, "GB/s", objectStoreGoal); err != nil {
		return err
	}
	small := total / (64 * kib)
	return o.storeSize(ctx, 64*kib, small, func(elapsed time.Duration) float64 {
		return float64(small) / elapsed.Seconds()
	}, "blocks/s", objectPackGoal)
}

// requests adds how many blocks one PUT has stored. The client stores one, and a store that is far away answers a client no
// faster than that.
func (o *objectBench) requests(ctx context.Context, prefix string, size, blocks int) error {
	_, objects, err := o.s3.extents(ctx, prefix)
	if err != nil {
		return err
	}
	r := row{Topic: "object", Target: kvfsName, BlockBytes: size, Unit: "blocks a PUT, store", Value: float64(blocks) / float64(objects)}
	r.Samples = []float64{r.Value}
	verdict := o.report.judge(&r, objectPackGoal, r.Value >= objectPackGoal)
	o.report.add(r)
	o.table.add("store, blocks a request", sizeText(size), fmt.Sprint(objectUploads), "", fmt.Sprintf("%.0f", r.Value), "", "1", clientName,
		fmt.Sprintf("%.0f", r.Value), fmt.Sprintf(">= %d", objectPackGoal), verdict)
	return nil
}

// storeSize compares a write to the mount until the bucket has all with a PUT for each block.
func (o *objectBench) storeSize(ctx context.Context, size, count int, rate func(time.Duration) float64, unit string, goal float64) (err error) {
	prefix := fmt.Sprintf("stores%d", size)
	m, end, err := o.blockMount(ctx, prefix, count*size)
	if err != nil {
		return err
	}
	other := prefix + "-client"
	defer func() { err = errors.Join(err, end(), o.s3.clear(other)) }()
	pass := 0
	kvfs := func(ctx context.Context, _ int) (float64, error) {
		pass++ // new names, so that nothing is replaced
		set, err := newBlockSet(&m.target, fmt.Sprintf("pass%d", pass), size, 0, count)
		if err != nil {
			return 0, err
		}
		base, err := m.tier()
		if err != nil {
			return 0, err
		}
		begin, end := time.Now(), time.Time{}
		if err = o.readers.once(ctx, newWork(objectUploads, count, set.store)); err == nil {
			err = m.drained(ctx, base, count, func(at time.Time, _ *tierStatus) { end = at })
		}
		if err != nil {
			return 0, err
		}
		return rate(end.Sub(begin)), errors.Join(m.settle(ctx), m.empty(ctx), m.settle(ctx))
	}
	order := make([]int, count)
	for i := range order {
		order[i] = i
	}
	client := func(ctx context.Context, _ int) (float64, error) {
		elapsed, err := o.parallel(ctx, objectUploads, order, size, func(ctx context.Context, i int, buf []byte) error {
			return o.s3.put(ctx, fmt.Sprintf("%s/%d", other, i), buf)
		})
		return rate(elapsed), errors.Join(err, o.s3.clear(other))
	}
	figures, err := o.warmRotate(ctx, []contender{{kvfsName, kvfs}, {clientName, client}})
	if err != nil {
		return err
	}
	o.row("store", size, objectUploads, unit, figures, kvfsName, clientName, goal)
	if goal == objectPackGoal {
		return o.requests(ctx, prefix, size, count*pass)
	}
	return nil
}

// hot measures reads of blocks in memory while a writer keeps the object tier busy, as topic hotcascade does with the
// disk tier.
func (o *objectBench) hot(ctx context.Context) (err error) {
	const size = 4 * mib
	blocks := max(4, o.total/cascadeBlockBytes)
	ring := blocks * cascadeBlockBytes
	memory := (ring+size*o.config.count(size))*5/4 + 256*mib
	c := &cascadeBench{diskBench: &diskBench{bench: o.bench, readers: o.readers, writer: o.writer}, written: series{}}
	plain, err := o.kvfs("kvfs-plain", mebibytes(memory))
	if err != nil {
		return err
	}
	c.plain = &tierMount{bench: o.bench, target: target{name: kvfsName, dir: plain.mount, server: plain}}
	if err := o.start(ctx, plain); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.plain.close()) }()
	// Replaced blocks leave the bucket with each refresh, so that it stays small.
	c.tier, err = o.mount(ctx, "kvfs-object", "hot", memory, fmt.Sprintf("cascade_queue=%dMiB", mebibytes(max(ring/3, 64*mib))), "refresh=2s")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.tier.close(), o.s3.clear("hot")) }()
	if err := c.prepare(ctx, blocks); err != nil {
		return err
	}
	figures, err := c.states(ctx, size)
	if err != nil {
		return err
	}
	for state := range figures {
		figures[state] = gigabytes(figures[state])
	}
	const beside = "and its stores to the bucket"
	figures[beside] = figures[cascadeState]
	o.row("hot read, a writer "+beside, size, 1, "GB/s", figures, beside, writerState, objectHotGoal)
	return nil
}
