package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"time"
)

// topic is a part of the benchmark that -only names, with a block of tables in docs/benchmarks.md.
type topic struct {
	name  string
	lacks func(*bench) string // why this machine cannot measure it, "" if it can
	run   func(*job)
}

// job is a topic while it is measured. It goes like a test: the first failure ends it (must, get), and what it started
// is stopped in reverse order (later).
type job struct {
	*bench
	ctx      context.Context
	topic    string
	rounds   int
	passTime time.Duration
	targets  []*target // of the topics that compare file systems
	undo     []func()
}

func (b *bench) newJob(ctx context.Context, topic string) *job {
	return &job{bench: b, ctx: ctx, topic: topic, rounds: b.config.rounds, passTime: b.config.passTime}
}

// failure is how must and get end a job.
type failure struct{ error }

var errSkipped = errors.New("skipped")

func must(err error) {
	if err != nil {
		fail(err)
	}
}

// get returns a value, or ends the job.
func get[T any](v T, err error) T {
	if err != nil {
		fail(err)
	}
	return v
}

// fail tells also the line that called its caller.
func fail(err error) {
	_, file, line, _ := runtime.Caller(2)
	panic(failure{fmt.Errorf("%s:%d: %w", filepath.Base(file), line, err)})
}

// try returns the error with which f failed.
func try(f func()) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			err = r.error
		default:
			panic(r)
		}
	}()
	f()
	return nil
}

// do runs f, then what it has left for later.
func (j *job) do(f func(*job)) error {
	err := try(func() { f(j) })
	for _, undo := range slices.Backward(j.undo) {
		err = errors.Join(err, try(undo))
	}
	return err
}

// later calls f at the end of the job, also if it fails.
func (j *job) later(f func()) { j.undo = append(j.undo, f) }

// scope is a part of a job with an end of its own.
func (j *job) scope(f func(*job)) {
	part := *j
	part.undo = nil
	must(part.do(f))
}

// skip ends the job without figures.
func (j *job) skip(why string) {
	j.report.skip(j.topic, why)
	panic(failure{errSkipped})
}

// pass runs w for a time.
func (j *job) pass(w *work, d time.Duration) tally { return j.pool.run(j.ctx, w, d) }

// whole runs w on each index once.
func (j *job) whole(w *work) tally {
	before := w.once
	w.once = true
	defer func() { w.once = before }()
	return j.pass(w, time.Hour)
}

// once runs an operation on each index once, and returns how long that took.
func (j *job) once(threads, count int, op func(*client, int)) time.Duration {
	return j.whole(newWork(threads, count, op)).elapsed
}

// inOrder runs an operation on all indexes of order; the threads share the queue.
func (j *job) inOrder(threads int, order []int, op func(*client, int)) time.Duration {
	return j.pass(sequence(threads, order, op), time.Hour).elapsed
}

func (j *job) pause(d time.Duration) { must(pause(j.ctx, d)) }

// settle lets targets finish the work of a pass, untimed. Otherwise write-back to the disk, or checksums and clean-up
// in a daemon, would run while the next one is measured.
func (j *job) settle(targets ...*target) {
	for _, t := range targets {
		if t.server != nil {
			t.server.awaitIdle(j.ctx)
		} else if t.name == diskName {
			must(syncFS(t.dir))
		}
	}
}

// await polls until done, or fails after clusterLimit.
func (j *job) await(what string, done func() bool) {
	for begin := time.Now(); !done(); j.pause(pollEvery) {
		if time.Since(begin) > clusterLimit {
			must(fmt.Errorf("after %v still not: %s", clusterLimit, what))
		}
	}
}

// side is one of those that a table compares. pass measures it once.
type side struct {
	name string
	pass func(round int) float64
}

// rotate measures all sides in turn, round after round. Each round begins with another side, so that none always
// follows the same neighbour. The rounds below 0 warm up; their figures do not count.
func (j *job) rotate(warm, rounds int, sides []side) series {
	out := series{}
	for round := -warm; round < rounds; round++ {
		for i := range sides {
			s := sides[(max(round, 0)+i)%len(sides)]
			must(context.Cause(j.ctx))
			value := 0.0
			if err := try(func() { value = s.pass(round) }); err != nil {
				must(fmt.Errorf("%s: %w", s.name, err))
			}
			if round >= 0 {
				out[s.name] = append(out[s.name], value)
			}
		}
	}
	return out
}

// samples are one figure a round.
type samples []float64

// series has the samples of each side.
type series map[string]samples

// over is the ratio of two medians.
func (s series) over(a, b string) float64 { return median(s[a]) / median(s[b]) }

// toBest is the ratio to the best reference.
func (s series) toBest(name string) float64 {
	best := 0.0
	for _, r := range references() {
		best = max(best, median(s[r]))
	}
	return median(s[name]) / best
}

func (s samples) times(factor float64) samples {
	out := make(samples, len(s))
	for i, v := range s {
		out[i] = v * factor
	}
	return out
}

func (s samples) spread() string {
	if len(s) == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f-%.2f", slices.Min(s), slices.Max(s))
}

func gbs(bytes int, d time.Duration) float64 { return float64(bytes) / 1e9 / d.Seconds() }

func (j *job) table(title, note string, head ...string) *table {
	return j.report.table(j.topic, title, note, head...)
}

// verdict is the cell of a goal, "" without one.
func (b *bench) verdict(goal string, met bool) string {
	switch {
	case goal == "":
		return ""
	case b.config.quick:
		return goal + ", quick"
	case met:
		return goal + ", met"
	}
	return goal + ", missed"
}

// atLeast is the cell of a goal with two digits; 0: none.
func (b *bench) atLeast(goal, value float64) string {
	if goal == 0 {
		return ""
	}
	return b.verdict(fmt.Sprintf("%.2f", goal), value >= goal)
}

// atMost is the same for what is to be small.
func (b *bench) atMost(goal, value float64) string { return b.atMostText(goal, value, "%.2f") }

func (b *bench) atMostText(goal, value float64, format string) string {
	if goal == 0 {
		return ""
	}
	return b.verdict(fmt.Sprintf(format, goal), value <= goal)
}

// point is a value for a plot.
type point struct {
	plot, line string
	x          int
	y          float64
}

func (b *bench) point(plot, line string, x int, y float64) {
	b.points = append(b.points, point{plot, line, x, y})
}
