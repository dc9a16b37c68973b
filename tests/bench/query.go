package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	queryBlockBytes = 4 * kib
	queryGroup      = "exists"
	hitGroups       = 4

	// The goals, in keys a second, as a multiple of the speed of the mount itself, and in
	// milliseconds.
	existsJSONGoal   = 2e6
	existsBinaryGoal = 8e6
	statGoal         = 20
	redisGoal        = 1.5
	hitGoal          = 2
)

// controlTopics are about the files of the control directory.
func controlTopics() []string { return []string{"query", "events"} }

// measureControl measures these topics. If one fails, the others are still measured.
func (b *bench) measureControl(ctx context.Context) error {
	if !slices.Contains(b.config.targets, kvfsName) {
		return nil
	}
	steps := map[string]func(context.Context) error{"query": b.query, "events": b.events}
	var errs []error
	for _, topic := range controlTopics() {
		if !b.config.wants(topic) || ctx.Err() != nil {
			continue
		}
		b.say("%s", topic)
		if err := steps[topic](ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", topic, err))
		}
	}
	return errors.Join(errs...)
}

// queryBench is a mount with blocks to query.
type queryBench struct {
	*bench
	kvfs   *target
	names  int // in a request; half of them exist
	sets   [][]string
	prompt []string // hashes of the prompt of longest_hit; all groups have them
	table  *table
}

// query measures the answers of .kvfs/query, beside system calls with the same answers.
func (b *bench) query(ctx context.Context) (err error) {
	q := &queryBench{bench: b, kvfs: &target{name: kvfsName}, names: 10_000}
	blocks, prompt := 100_000, 4000
	if b.config.quick {
		q.names, blocks, prompt = 400, 2000, 100
	}
	// Two contenders of each round need names that the kernel has not seen.
	q.makeSets(max(blocks, 2*b.config.rounds*q.names/2))
	q.prompt = queryNames(0, prompt)
	total := len(q.sets)*q.names/2 + hitGroups*prompt
	need := total*queryBlockBytes*5/4 + 256*mib
	if available := memInfo("MemAvailable"); need > available/3*2 {
		return fmt.Errorf("%d MiB of memory are free, want %d: too little", available/mib, need/mib*3/2)
	}
	if q.kvfs.server, err = b.kvfs("kvfs-query", mebibytes(need)); err != nil {
		return err
	}
	q.kvfs.dir = q.kvfs.server.mount
	if err := b.start(ctx, q.kvfs.server); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.kvfs.server.stop()) }()
	if err := q.store(ctx); err != nil {
		return err
	}
	// The next daemon adopts the blocks, and the kernel knows no names of its mount.
	q.kvfs.server.crash()
	if err := q.kvfs.server.start(ctx); err != nil {
		return err
	}
	q.table = b.report.table("query", fmt.Sprintf("Queries over %d blocks of %s", total, sizeText(queryBlockBytes)),
		"(1 thread, one descriptor kept open; a request is ready before the clock runs, its answer is decoded; "+
			"names have 64 hexadecimal digits; processor time of the daemon)",
		"what", "value", "min-max", "goal", "", "p50 ms", "daemon ns/key")
	if err := q.exists(ctx); err != nil {
		return err
	}
	return q.longestHits(ctx)
}

// makeSets makes sets of names; half of them, mixed, are those of blocks.
func (q *queryBench) makeSets(blocks int) {
	half := q.names / 2
	const absent = 1 << 32
	for first := 0; first+half <= blocks; first += half {
		set := append(queryNames(first, half), queryNames(absent+first, half)...)
		r := rand.New(rand.NewPCG(uint64(first), 1))
		r.Shuffle(len(set), func(i, j int) { set[i], set[j] = set[j], set[i] })
		q.sets = append(q.sets, set)
	}
}

// queryNames returns names as an engine gives them to native blocks.
func queryNames(first, count int) []string {
	out := make([]string, count)
	for i := range out {
		var index [8]byte
		binary.LittleEndian.PutUint64(index[:], uint64(first+i))
		out[i] = fmt.Sprintf("%x", sha256.Sum256(index[:]))
	}
	return out
}

func (q *queryBench) path(group, name string) string { return q.kvfs.dir + "/" + group + "/" + name }

func hitGroup(i int) string { return fmt.Sprintf("layers%d", i) }

// store writes the blocks.
func (q *queryBench) store(ctx context.Context) error {
	present := queryNames(0, len(q.sets)*q.names/2)
	if err := q.storeGroup(ctx, queryGroup, present); err != nil {
		return err
	}
	for i := range hitGroups {
		if err := q.storeGroup(ctx, hitGroup(i), q.prompt); err != nil {
			return err
		}
	}
	return nil
}

func (q *queryBench) storeGroup(ctx context.Context, group string, names []string) error {
	q.say("query: store %d blocks in %s", len(names), group)
	if err := os.Mkdir(q.kvfs.dir+"/"+group, 0o755); err != nil {
		return err
	}
	files := newPaths(len(names), func(i int) string { return q.path(group, names[i]) })
	return q.pool.once(ctx, newWork(min(2, q.config.maxThreads), len(names), func(c *client, i int) error {
		c.stamp(i, queryBlockBytes)
		return c.create(files.at(i), queryBlockBytes)
	}))
}

// await polls until the first set has the right answer: adoption may go on when the mount is ready.
func (q *queryBench) await(ctx context.Context, asks []*asking) error {
	var err error
	for begin := time.Now(); time.Since(begin) < clusterLimit; {
		for _, a := range asks {
			if err = q.pool.once(ctx, a.work()); err != nil {
				break
			}
		}
		if err == nil {
			return nil
		}
		if err := pause(ctx, pollEvery); err != nil {
			return err
		}
	}
	return err
}

// asking is one kind of request, repeated on one descriptor.
type asking struct {
	name     string
	keys     int // of one request
	requests [][]byte
	check    func(answer []byte) error // also decodes it
	talk     *dialogue

	next    int
	took    []float64     // seconds of each request in timed passes
	perSec  []float64     // keys, one figure a round
	middle  []float64     // median of milliseconds, one figure a round
	asked   int           // requests in timed passes
	working time.Duration // processor time of the daemon in them
}

// work returns a work that makes all requests.
func (a *asking) work() *work {
	return newWork(1, len(a.requests), func(_ *client, i int) error {
		begin := time.Now()
		answer, err := a.talk.ask(a.requests[i])
		if err == nil {
			err = a.check(answer)
		}
		a.took = append(a.took, time.Since(begin).Seconds())
		return err
	})
}

// pass makes requests for a while.
func (q *queryBench) pass(ctx context.Context, a *asking) error {
	w := a.work()
	w.next[0] = a.next
	before, err := q.kvfs.server.cpuTime()
	if err != nil {
		return err
	}
	a.took = a.took[:0]
	result, err := q.pool.run(ctx, w, q.config.passTime)
	if err != nil {
		return fmt.Errorf("%s: %w", a.name, err)
	}
	if err := q.kvfs.settle(ctx); err != nil {
		return err
	}
	after, err := q.kvfs.server.cpuTime()
	a.next = w.next[0]
	a.asked += result.ops
	a.working += after - before
	a.perSec = append(a.perSec, result.perSec*float64(a.keys))
	a.middle = append(a.middle, 1000*median(a.took))
	return err
}

// cpuPerKey returns nanoseconds of the daemon's processor time.
func (a *asking) cpuPerKey() float64 {
	return float64(a.working.Nanoseconds()) / float64(a.asked*a.keys)
}

// cpuTime returns the processor time of the daemon in nanoseconds; cpu is less exact.
func (s *server) cpuTime() (time.Duration, error) {
	process := s.process.Load()
	if process == nil {
		return 0, os.ErrProcessDone
	}
	return cpuTimeOf(process.Pid)
}

func cpuTimeOf(pid int) (time.Duration, error) {
	const schedulerClock = 2 // CPUCLOCK_SCHED of the kernel, of a process: see clock_getcpuclockid(3)
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedulerClock), &ts); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}
