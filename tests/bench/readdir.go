package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// readdirGoal is how many times as long as the disk's file system kvfs may take.
const readdirGoal = 3

// readdir lists a directory with many small blocks.
func (b *bench) readdir(ctx context.Context) error {
	const size = 1 * kib
	sets := blockSets{}
	for _, t := range b.targets {
		b.say("readdir: %d entries on %s", b.config.entries, t.name)
		s, err := newBlockSet(t, "readdir", size, 0, b.config.entries)
		if err != nil {
			return err
		}
		create := newWork(b.config.maxThreads, s.count, func(c *client, i int) error {
			c.stamp(i, size)
			return c.create(s.final.at(i), size)
		})
		if err := errors.Join(b.pool.once(ctx, create), t.settle(ctx)); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		sets[t.name] = s
	}
	times, err := b.listings(ctx, sets)
	if err != nil {
		return err
	}
	b.readdirTable(times)
	for _, s := range sets {
		b.say("readdir: remove %s", s.dir)
		if err := s.remove(); err != nil {
			return err
		}
	}
	return nil
}

// listings returns milliseconds. Each target has one listing more than there are rounds: the first
// one, before the kernel has seen the end of the directory.
func (b *bench) listings(ctx context.Context, sets blockSets) (series, error) {
	out := series{}
	for range b.config.rounds + 1 {
		for _, t := range b.targets {
			set := sets[t.name]
			dir, err := unix.BytePtrFromString(set.dir)
			if err != nil {
				return nil, err
			}
			list := newWork(1, 1, func(c *client, _ int) error {
				n, err := c.readDir(dir)
				if err == nil && n != set.count {
					return fmt.Errorf("%s: %d entries, want %d", set.dir, n, set.count)
				}
				return err
			})
			list.once = true
			result, err := b.pool.run(ctx, list, time.Hour)
			if err != nil {
				return nil, err
			}
			out[t.name] = append(out[t.name], result.elapsed.Seconds()*1000)
		}
	}
	return out, nil
}

func (b *bench) readdirTable(times series) {
	title := fmt.Sprintf("Listing a directory of %d blocks", b.config.entries)
	table := b.report.table("readdir", title, "(getdents until the end, 1 thread)",
		"target", "first ms", "then ms", "entries/s", "times tmpfs", "times disk", "goal", "")
	for _, t := range b.targets {
		r := row{Topic: "readdir", Target: t.name, Threads: 1, Unit: "ms", Samples: times[t.name]}
		r.Value = median(times[t.name][1:])
		r.Ratio = r.Value / median(times[shmName][1:])
		cells := []string{t.title(),
			fmt.Sprintf("%.1f", times[t.name][0]), fmt.Sprintf("%.1f", r.Value),
			fmt.Sprintf("%.0f", float64(b.config.entries)/r.Value*1000), fmt.Sprintf("%.1f", r.Ratio)}
		if b.target(diskName) == nil {
			cells = append(cells, "n/a", "", "")
		} else {
			timesDisk := r.Value / median(times[diskName][1:])
			cells = append(cells, fmt.Sprintf("%.1f", timesDisk), "", "")
			if t.name == kvfsName {
				cells[6] = fmt.Sprintf("under %d", readdirGoal)
				cells[7] = b.report.judge(&r, readdirGoal, timesDisk < readdirGoal)
			}
		}
		b.report.add(r)
		table.add(cells...)
	}
}
