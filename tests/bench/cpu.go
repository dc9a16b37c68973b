package main

import (
	"context"
	"fmt"
	"time"
)

// cpuGoal is the goal "near zero" in processor seconds of the daemon for each GB read hot.
const cpuGoal = 0.05

// daemonCPU measures the processor time of the daemons for hot reads. Their clock ticks every 10
// ms, so this runs for all rounds without a break.
func (b *bench) daemonCPU(ctx context.Context, size int, sets blockSets) error {
	head := []string{"block"}
	cells := []string{sizeText(size)}
	for _, t := range b.targets {
		if t.server == nil {
			continue
		}
		perGB, err := b.cpuPerGB(ctx, t, sets[t.name])
		if err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		r := row{Topic: "cpu", Target: t.name, BlockBytes: size, Threads: 1,
			Value: perGB, Unit: "processor seconds of the daemon for each GB"}
		head = append(head, t.title()+" s/GB")
		cells = append(cells, fmt.Sprintf("%.3f", perGB))
		if t.name == kvfsName {
			head = append(head, "goal", "")
			cells = append(cells, fmt.Sprintf("%.2f", cpuGoal),
				b.report.judge(&r, cpuGoal, perGB <= cpuGoal))
		}
		b.report.add(r)
	}
	b.report.table("cpu", "Processor time of the daemon for each GB read hot", "(1 thread)", head...).
		add(cells...)
	return nil
}

func (b *bench) cpuPerGB(ctx context.Context, t *target, set *blockSet) (float64, error) {
	w := newWork(1, set.count, set.read)
	if err := t.settle(ctx); err != nil {
		return 0, err
	}
	before, err := t.server.cpu()
	if err != nil {
		return 0, err
	}
	result, err := b.pool.run(ctx, w, max(100*time.Millisecond,
		time.Duration(b.config.rounds)*b.config.passTime))
	if err != nil {
		return 0, err
	}
	if err := t.settle(ctx); err != nil { // The last RELEASE counts too.
		return 0, err
	}
	after, err := t.server.cpu()
	if err != nil {
		return 0, err
	}
	return (after - before).Seconds() * 1e9 / (float64(result.ops) * float64(set.size)), nil
}
