package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// keptTimes is how many times a work keeps, the first ones: 2 MiB, and more than most topics have operations.
const keptTimes = 1 << 18

// newTimes is room for the times of a work with one thread. One with more has none.
func newTimes(threads int) []time.Duration {
	if threads > 1 {
		return nil
	}
	return make([]time.Duration, 0, keptTimes)
}

// tails are times of one operation, in microseconds.
type tails struct{ mean, p50, p99, max float64 }

// tailsOf sorts the times, of which there must be one at least.
func tailsOf(times []time.Duration) tails {
	slices.Sort(times)
	sum := time.Duration(0)
	for _, d := range times {
		sum += d
	}
	micros := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	// The smallest time that so many of all do not exceed.
	at := func(share float64) float64 { return micros(times[int(math.Ceil(share*float64(len(times))))-1]) }
	return tails{micros(sum) / float64(len(times)), at(0.5), at(0.99), at(1)}
}

// cells are the mean and, in one cell, the rest.
func (t tails) cells() []string {
	return []string{microsText(t.mean), strings.Join([]string{microsText(t.p50), microsText(t.p99), microsText(t.max)}, " / ")}
}

func microsText(us float64) string {
	if us < 100 {
		return fmt.Sprintf("%.1f", us)
	}
	return fmt.Sprintf("%.0f", us)
}

// rows are the figures for programs, the p50 at p50Row and the p99 at p99Row. Each is like r. Unit is "us" or says also of what.
func (t tails) rows(r row, unit string) []row {
	rows := []row{r, r, r, r}
	for i, name := range []string{"mean", "p50", "p99", "max"} {
		rows[i].Unit, rows[i].Value = unit+", "+name, []float64{t.mean, t.p50, t.p99, t.max}[i]
	}
	return rows
}

const p50Row, p99Row = 1, 2

// timesRow reports the times of one operation on kvfs and on a tmpfs, with huge pages if there is one.
func (b *bench) timesRow(topic, title, unit string, size int, times func(*target) []time.Duration) {
	kvfs, other := b.target(kvfsName), b.target(hugeName)
	if other == nil {
		other = b.target(shmName)
	}
	if kvfs == nil {
		return
	}
	table := b.report.table(topic, title, "(1 thread; all operations of all rounds)", "block",
		kvfs.title()+" mean us", "p50 / p99 / max us", other.title()+" mean us", "p50 / p99 / max us", "p99 to it", "goal", "")
	ours, theirs := tailsOf(times(kvfs)), tailsOf(times(other))
	b.report.add(theirs.rows(row{Topic: topic, Target: other.name, BlockBytes: size, Threads: 1}, unit)...)
	rows := ours.rows(row{Topic: topic, Target: kvfsName, BlockBytes: size, Threads: 1}, unit)
	ratio := ours.p99 / theirs.p99
	rows[p99Row].RatioTo = map[string]float64{other.name: ratio}
	verdict := []string{"", ""}
	if goal := tailGoal(topic, size); goal > 0 {
		verdict = []string{fmt.Sprintf("%.1f", goal), b.report.judge(&rows[p99Row], goal, ratio <= goal)}
	}
	b.report.add(rows...)
	cells := append(append([]string{sizeText(size)}, ours.cells()...), theirs.cells()...)
	table.add(append(append(cells, fmt.Sprintf("%.2f", ratio)), verdict...)...)
}

// tailGoal is how many times the p99 of the reference that of kvfs may be; 0: no goal.
func tailGoal(topic string, size int) float64 {
	if topic == "fresh" && size == 4*mib {
		return 2
	}
	return 0
}
