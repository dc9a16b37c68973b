package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	spreadNodes = 9
	spreadSize  = 16 * mib
	spreadLink  = "400mbit" // of each node: the processors of this machine have little to do then
	spreadGoal  = 4.5
)

// spread measures how long a block takes to reach all nodes that ask for it at once, in one zone and from another zone, and
// how often the node that has it sends it.
func (p *peerBench) spread(ctx context.Context) error {
	table := p.report.table("spread", "A block that all nodes want at once",
		fmt.Sprintf("(one node has it; each node sends %s at most; the time until one reader has it, and until all have it that ask at once)", spreadLink),
		"block", "readers", "in the zone of the node", "one, ms", "all, ms", "min-max", "all to one", "goal", "", "sent by the node", "goal", "")
	for _, zoned := range []bool{false, true} {
		if err := p.spreadIn(ctx, zoned, table); err != nil {
			return err
		}
	}
	return nil
}

// spreadIn is spread for one way to lay out zones.
func (p *peerBench) spreadIn(ctx context.Context, zoned bool, table *table) (err error) {
	nodes := spreadNodes
	if p.config.quick {
		nodes = 3
	}
	c, err := p.join(ctx, peerOptions{nodes: nodes, memoryBytes: 2*p.config.rounds*spreadSize + 128*mib, zoned: zoned})
	defer func() { err = errors.Join(err, c.close()) }()
	if err != nil {
		return err
	}
	for i := range nodes {
		if out, err := c.net.Run(i, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", spreadLink, "burst", "256kb", "latency", "100ms"); err != nil {
			p.report.skip("spread", fmt.Sprintf("this kernel cannot slow down a link: %v %s", err, out))
			return nil
		}
	}
	set, err := newBlockSet(c.nodes[0], "hot", spreadSize, 0, 2*p.config.rounds)
	if err != nil {
		return err
	}
	var one, all, sent []float64
	for round := range p.config.rounds {
		for at, readers := range [][]*target{c.nodes[1:2], c.nodes[1:]} {
			before, err := lentBlocks(c.nodes[0])
			if err != nil {
				return err
			}
			took, err := c.readAtOnce(ctx, set, 2*round+at, readers)
			if err != nil {
				return err
			}
			after, err := lentBlocks(c.nodes[0])
			if err != nil {
				return err
			}
			if at == 0 {
				one = append(one, took.Seconds()*1e3)
			} else {
				all, sent = append(all, took.Seconds()*1e3), append(sent, after-before)
			}
		}
	}
	r := row{Topic: "spread", Target: kvfsName, BlockBytes: spreadSize, Threads: nodes - 1, Unit: "ms", Value: median(all), Samples: all}
	ratio, where := r.Value/median(one), "yes"
	r.RatioTo = map[string]float64{"one reader": ratio}
	goals := make([]string, 4) // of the ratio within a zone, and of how often it is sent into one
	if zoned {
		r.Target, where = "kvfs, from another zone", "no"
		times := row{Topic: "spread", Target: r.Target, BlockBytes: spreadSize, Threads: nodes - 1, Unit: "times", Value: median(sent), Samples: sent}
		goals[2], goals[3] = "<= 1", p.report.judge(&times, 1, times.Value <= 1)
		p.report.add(times)
	} else {
		goals[0], goals[1] = fmt.Sprintf("<= %g", spreadGoal), p.report.judge(&r, spreadGoal, ratio <= spreadGoal)
	}
	p.report.add(r)
	table.add(sizeText(spreadSize), fmt.Sprint(nodes-1), where, fmt.Sprintf("%.0f", median(one)), fmt.Sprintf("%.0f", r.Value), spread(all),
		fmt.Sprintf("%.2f", ratio), goals[0], goals[1], fmt.Sprintf("%.0f (%s)", median(sent), spread(sent)), goals[2], goals[3])
	return nil
}

// lentBlocks returns how often a node has sent a block to others.
func lentBlocks(n *target) (float64, error) {
	s, err := readStatus(n)
	if err != nil {
		return 0, err
	}
	for _, t := range s.Secondaries {
		var detail struct {
			Lent *float64 `json:"lent_blocks"`
		}
		if json.Unmarshal(t.Detail, &detail) == nil && detail.Lent != nil {
			return *detail.Lent, nil
		}
	}
	return 0, errors.New("the status has no count of blocks that were sent")
}

// readAtOnce stores block i and has some nodes read it at once, when they know of it.
func (c *peers) readAtOnce(ctx context.Context, set *blockSet, i int, readers []*target) (time.Duration, error) {
	if err := set.store(c.writer.clients[0], i); err != nil {
		return 0, err
	}
	name := filepath.Join(filepath.Base(set.dir), blockName(i))
	if err := c.await(ctx, "the readers know the block", func() (bool, error) {
		for _, n := range readers {
			if _, err := os.Stat(filepath.Join(n.dir, name)); err != nil {
				return false, nil
			}
		}
		return true, nil
	}); err != nil {
		return 0, err
	}
	var g errgroup.Group
	begin := time.Now()
	for _, n := range readers {
		g.Go(func() error {
			got, err := os.ReadFile(filepath.Join(n.dir, name))
			if err == nil {
				err = checkMarks(got, i)
			}
			return err
		})
	}
	err := g.Wait()
	return time.Since(begin), err
}
