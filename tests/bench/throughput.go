package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// series holds one figure a round for each target, by its name.
type series map[string][]float64

// ratio is the ratio of the medians of a target and of the best reference.
func (s series) ratio(name string) float64 {
	best := 0.0
	for _, r := range references() {
		if len(s[r]) > 0 {
			best = max(best, median(s[r]))
		}
	}
	return median(s[name]) / best
}

// contest measures one operation on all targets in turn, as rates a second.
// prepare makes each target's work; settle runs untimed after every pass.
func (b *bench) contest(ctx context.Context, prepare func(*target) *work,
	settle func(*target) error) (series, error) {
	works := map[string]*work{}
	out := series{}
	pass := func(t *target) (float64, error) {
		result, err := b.pool.run(ctx, works[t.name], b.config.passTime)
		if err != nil {
			return 0, err
		}
		return result.perSec, errors.Join(settle(t), t.settle(ctx))
	}
	for _, t := range b.targets {
		works[t.name] = prepare(t)
		// Warm-up: all blocks once, because a short pass does not reach them all.
		err := errors.Join(b.pool.once(ctx, works[t.name]), settle(t))
		if err == nil {
			_, err = pass(t)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.name, err)
		}
		works[t.name].times, works[t.name].commits = works[t.name].times[:0], works[t.name].commits[:0]
	}
	for round := range b.config.rounds {
		for i := range b.targets {
			// Each round begins with another target, so that no target always follows the same
			// neighbour.
			t := b.targets[(round+i)%len(b.targets)]
			rate, err := pass(t)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", t.name, err)
			}
			out[t.name] = append(out[t.name], rate)
		}
	}
	return out, nil
}

func nothingToSettle(*target) error { return nil }

// blockSets are the blocks of one size on each target, by its name.
type blockSets map[string]*blockSet

// measureSize measures everything for one block size.
func (b *bench) measureSize(ctx context.Context, size int) error {
	count := b.config.count(size)
	b.say("%d blocks of %s on each target", count, sizeText(size))
	sets := blockSets{}
	for _, t := range b.targets {
		s, err := newBlockSet(t, fmt.Sprintf("g%d", size), size, 0, count)
		if err != nil {
			return err
		}
		if err := errors.Join(s.fill(ctx, b.pool), t.settle(ctx)); err != nil {
			return err
		}
		sets[t.name] = s
	}
	steps := []struct {
		topic   string
		step    func(context.Context, int, blockSets) error
		anySize bool // the size does not matter: once is enough
	}{
		{"read", b.reads, false},
		{"write", b.writes, false},
		{"fresh", b.freshWrites, false},
		{"open", b.opens, true},
		{"stat", b.stats, true},
		{"ops", b.requests, false},
		{"cpu", b.daemonCPU, false},
	}
	smallest := size == slices.Min(b.config.sizes)
	for _, s := range steps {
		if b.config.wants(s.topic) && (smallest || !s.anySize) {
			b.say("%s %s", s.topic, sizeText(size))
			if err := s.step(ctx, size, sets); err != nil {
				return fmt.Errorf("%s %s: %w", s.topic, sizeText(size), err)
			}
		}
	}
	for _, s := range sets {
		if err := s.remove(); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) reads(ctx context.Context, size int, sets blockSets) error {
	table := b.throughputTable("read", "Hot reads", "(open, one read, close)")
	return b.throughput(ctx, table, "read", size, func(t *target, threads int) *work {
		return newWork(threads, sets[t.name].count, sets[t.name].read)
	}, nothingToSettle)
}

// throughput reports rates with each number of threads. With one thread it also reports the times of single operations.
func (b *bench) throughput(ctx context.Context, table *table, topic string, size int, prepare func(t *target, threads int) *work,
	settle func(*target) error) error {
	for _, threads := range b.config.threads {
		works := map[string]*work{}
		figures, err := b.contest(ctx, func(t *target) *work {
			w := prepare(t, threads)
			w.times, works[t.name] = newTimes(threads), w
			return w
		}, settle)
		if err != nil {
			return err
		}
		b.throughputRow(table, topic, size, threads, figures)
		if threads > 1 {
			continue
		}
		b.timesRow(topic, table.title+": time of one", "us", size, func(t *target) []time.Duration { return works[t.name].times })
		if topic == "fresh" {
			b.timesRow(topic, table.title+": time of close and rename", "us of close and rename", size,
				func(t *target) []time.Duration { return works[t.name].commits })
		}
	}
	return nil
}

func (b *bench) writes(ctx context.Context, size int, sets blockSets) error {
	table := b.throughputTable("write", "Writes over existing names",
		"(open a temporary file, one write, close, rename over the block)")
	err := b.throughput(ctx, table, "write", size, func(t *target, threads int) *work {
		return newWork(threads, sets[t.name].count, sets[t.name].store)
	}, nothingToSettle)
	if err != nil {
		return err
	}
	for _, s := range sets { // What was written must read back.
		if err := b.pool.once(ctx, newWork(1, s.count, s.readVerified)); err != nil {
			return fmt.Errorf("%s: %w", s.dir, err)
		}
	}
	return nil
}

// freshWrites stores blocks under new names and removes them after each pass.
func (b *bench) freshWrites(ctx context.Context, size int, sets blockSets) error {
	table := b.throughputTable("fresh", "Writes of new names",
		"(the same; the blocks are removed outside of the timing)")
	fresh := blockSets{}
	for _, t := range b.targets {
		count := sets[t.name].count
		s, err := newBlockSet(t, fmt.Sprintf("f%d", size), size, count, count)
		if err != nil {
			return err
		}
		fresh[t.name] = s
	}
	err := b.throughput(ctx, table, "fresh", size, func(t *target, threads int) *work {
		w := newWork(threads, fresh[t.name].count, fresh[t.name].store)
		w.once, w.commits = true, newTimes(threads)
		return w
	}, func(t *target) error { return fresh[t.name].clear() })
	if err != nil {
		return err
	}
	for _, s := range fresh {
		if err := os.Remove(s.dir); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) throughputTable(topic, title, note string) *table {
	head := []string{"block", "threads"}
	for _, t := range b.targets {
		head = append(head, t.title()+" GB/s")
		switch {
		case t.name == shmName:
			head[len(head)-1] += " (max/min)"
		case !slices.Contains(references(), t.name):
			head = append(head, "to the best")
		}
		if t.name == kvfsName {
			head = append(head, "goal", "")
		}
	}
	return b.report.table(topic, title, note, head...)
}

func (b *bench) throughputRow(table *table, topic string, size, threads int, perSec series) {
	cells := []string{sizeText(size), fmt.Sprint(threads)}
	for _, t := range b.targets {
		r := row{Topic: topic, Target: t.name, BlockBytes: size, Threads: threads, Unit: "GB/s",
			Ratio: perSec.ratio(t.name)}
		for _, v := range perSec[t.name] {
			r.Samples = append(r.Samples, v*float64(size)/1e9)
		}
		r.Value = median(r.Samples)
		cells = append(cells, fmt.Sprintf("%.2f", r.Value))
		switch {
		case t.name == shmName: // its spread shows how calm the machine was
			cells[len(cells)-1] += fmt.Sprintf(" (%.2f)", slices.Max(r.Samples)/slices.Min(r.Samples))
		case !slices.Contains(references(), t.name):
			cells = append(cells, fmt.Sprintf("%.2f", r.Ratio))
		}
		if t.name == kvfsName {
			cells = append(cells, b.throughputVerdict(&r)...)
		}
		b.report.add(r)
	}
	table.add(cells...)
}

// throughputVerdict returns the cells for goal and verdict.
func (b *bench) throughputVerdict(r *row) []string {
	want := throughputGoal(r.Topic, r.Threads, r.BlockBytes)
	if want == 0 {
		return []string{"", ""}
	}
	return []string{fmt.Sprintf("%.2f", want), b.report.judge(r, want, r.Ratio >= want)}
}

// throughputGoal is the goal as a share of the best reference; 0: no goal.
func throughputGoal(topic string, threads, size int) float64 {
	switch fmt.Sprintf("%s %d %s", topic, threads, sizeText(size)) {
	case "read 1 16 MiB", "read 4 4 MiB":
		return 1
	case "read 1 4 MiB":
		return 0.95
	case "read 1 1 MiB":
		return 0.85
	case "read 1 256 KiB":
		return 0.65
	case "read 1 64 KiB":
		return 0.45
	case "fresh 1 4 MiB":
		return 0.80
	case "fresh 1 1 MiB":
		return 0.60
	case "fresh 1 64 KiB":
		return 0.40
	}
	return 0
}
