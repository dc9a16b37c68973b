package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// replicas measures how fast blocks written on one node get their copy on the other.
func (p *peerBench) replicas(ctx context.Context) (err error) {
	table := p.report.table("replica", "Copies on another node",
		"(replicas: 1; 2 threads write on one node, \"writers\" is their speed meanwhile; \"copies\" counts from the first write until "+
			"the other node has all of them in memory; iperf3 in the same direction and with the same congestion control)",
		"block", "iperf3 GB/s", "copies GB/s", "min-max", "to iperf3", "writers GB/s")
	for _, size := range []int{mib, 4 * mib} {
		if err := p.replicaSize(ctx, table, size); err != nil {
			return fmt.Errorf("%s: %w", sizeText(size), err)
		}
	}
	return nil
}

func (p *peerBench) replicaSize(ctx context.Context, table *table, size int) (err error) {
	count := p.config.count(size)
	total := size * count
	c, err := p.join(ctx, peerOptions{nodes: 2, memoryBytes: total*5/4 + 256*mib, congestion: "cubic",
		flags: []string{"--replicas", "1", "--peer-queue", fmt.Sprintf("%dMiB", mebibytes(total*5/4))}})
	defer func() { err = errors.Join(err, c.close()) }()
	if err != nil {
		return err
	}
	set, err := newBlockSet(c.nodes[0], "replica", size, 0, count)
	if err != nil {
		return err
	}
	perSec := series{}
	var writers []float64
	for range p.config.rounds {
		if err := c.iperfRound(ctx, perSec, peerMode{congestion: "cubic"}); err != nil {
			return err
		}
		if err := pretouch(total*5/2 + 256*mib); err != nil { // for the blocks on both nodes
			return err
		}
		copied, written, err := c.replicaPass(ctx, set)
		if err != nil {
			return err
		}
		perSec[kvfsName] = append(perSec[kvfsName], copied)
		writers = append(writers, written)
	}
	r := row{Topic: "replica", Target: kvfsName, BlockBytes: size, Threads: drainWriters, Unit: "GB/s", Samples: gigabytes(perSec[kvfsName])}
	r.Value = median(r.Samples)
	base, ratio := "no iperf3", "n/a"
	if p.iperf.missing == "" {
		name := baseLine(perSec)
		base, ratio = fmt.Sprintf("%.2f", median(gigabytes(perSec[name]))), p.versus(&r, perSec, name, 0)[0]
	}
	p.report.add(r)
	table.add(sizeText(size), base, fmt.Sprintf("%.2f", r.Value), spread(r.Samples), ratio, fmt.Sprintf("%.2f", median(gigabytes(writers))))
	return nil
}

// replicaPass writes the blocks, waits for their copies, and removes all of them.
func (c *peers) replicaPass(ctx context.Context, set *blockSet) (copied, written float64, err error) {
	total := set.count * set.size
	begin := time.Now()
	if err := c.writer.once(ctx, newWork(drainWriters, set.count, set.store)); err != nil {
		return 0, 0, err
	}
	written = float64(total) / time.Since(begin).Seconds()
	used := func() (int64, error) {
		s, err := readStatus(c.nodes[1])
		if err != nil {
			return 0, err
		}
		return s.Tiers[0].UsedBytes, nil
	}
	err = c.await(ctx, "all copies are there", func() (bool, error) {
		n, err := used()
		return n >= int64(total), err
	})
	copied = float64(total) / time.Since(begin).Seconds()
	if err != nil {
		return 0, 0, err
	}
	if err := set.clear(); err != nil {
		return 0, 0, err
	}
	return copied, written, c.await(ctx, "the removed are gone", func() (bool, error) {
		n, err := used()
		return n == 0, err
	})
}
