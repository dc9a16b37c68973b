package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// work is an operation on the indexes 0 to count-1. The threads divide them: thread t takes t, t+threads, t+2*threads
// and so on.
type work struct {
	threads, count int
	op             func(c *client, i int)
	// once ends a pass after each index was done once, even if time is left.
	once bool
	// queue, if not nil, gives all threads their next index, so that no thread ends a pass long before the others. Set
	// once, too.
	queue *atomic.Int64
	// times, if not nil, gets the time of each operation, and commits the part of it from before the close of a written
	// file, until they are full: newTimes. Only for one thread.
	times, commits []time.Duration
	// next is where each thread continues in the next pass, so that short passes still cover all indexes.
	next []int
}

func newWork(threads, count int, op func(c *client, i int)) *work {
	w := &work{threads: min(threads, count), count: count, op: op}
	w.next = make([]int, w.threads)
	for t := range w.next {
		w.next[t] = t
	}
	return w
}

type tally struct {
	ops     int
	perSec  float64 // sum of the threads' own rates, operations per second
	elapsed time.Duration
}

// pool runs passes on clients that live as long as the program.
type pool struct{ clients []*client }

func newPool(threads, bufferBytes int) *pool {
	p := &pool{}
	for range threads {
		p.clients = append(p.clients, newClient(bufferBytes))
	}
	return p
}

func (p *pool) close() {
	for _, c := range p.clients {
		must(unix.Munmap(c.buf))
	}
}

// run repeats w for d on its own operating system threads, which start together and stop each after the operation under
// way. It returns when all have stopped, and fails with their errors; a done ctx stops them with its error.
func (p *pool) run(ctx context.Context, w *work, d time.Duration) (sum tally) {
	if w.threads > len(p.clients) {
		must(fmt.Errorf("%d threads, but %d clients", w.threads, len(p.clients)))
	}
	parts, errs := make([]tally, w.threads), make([]error, w.threads)
	start := make(chan struct{})
	var ready, done sync.WaitGroup
	ready.Add(w.threads)
	for t := range w.threads {
		done.Go(func() {
			// Never unlocked: the thread, its signal mask changed, dies here.
			runtime.LockOSThread()
			errs[t] = blockPreemption()
			ready.Done()
			<-start
			if errs[t] == nil {
				errs[t] = try(func() { p.loop(ctx, w, t, d, &parts[t]) })
			}
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
	must(errors.Join(errs...))
	for _, part := range parts {
		sum.ops += part.ops
		sum.perSec += part.perSec
		sum.elapsed = max(sum.elapsed, part.elapsed)
	}
	return sum
}

func (p *pool) loop(ctx context.Context, w *work, t int, d time.Duration, out *tally) {
	c := p.clients[t]
	share := (w.count - t + w.threads - 1) / w.threads
	if w.queue != nil {
		share = w.count // the end of the queue ends the pass
	}
	begin := time.Now()
	for out.elapsed < d && !(w.once && out.ops == share) {
		if ctx.Err() != nil {
			must(context.Cause(ctx))
		}
		i := w.take(t)
		if i >= w.count {
			break
		}
		w.op(c, i)
		out.ops++
		now := time.Since(begin)
		if len(w.times) < cap(w.times) {
			w.times = append(w.times, now-out.elapsed)
		}
		if len(w.commits) < cap(w.commits) {
			w.commits = append(w.commits, begin.Add(now).Sub(c.written))
		}
		out.elapsed = now
	}
	if out.ops > 0 { // a queue may leave a thread without work
		out.perSec = float64(out.ops) / out.elapsed.Seconds()
	}
}

// take returns the next index of thread t.
func (w *work) take(t int) int {
	if w.queue != nil {
		return int(w.queue.Add(1)) - 1
	}
	i := w.next[t]
	if w.next[t] += w.threads; w.next[t] >= w.count {
		w.next[t] = t
	}
	return i
}

// blockPreemption masks SIGURG on the calling thread. The Go runtime sends it every 10 ms to a busy thread. FUSE would
// turn each into an INTERRUPT request, which no engine causes.
func blockPreemption() error {
	var set unix.Sigset_t
	const bit = uint(unix.SIGURG) - 1
	const wordBits = 8 * uint(unsafe.Sizeof(set.Val[0]))
	set.Val[bit/wordBits] |= 1 << (bit % wordBits)
	return unix.PthreadSigmask(unix.SIG_BLOCK, &set, nil)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// sequence is a work whose threads take the indexes of order one after another.
func sequence(threads int, order []int, op func(c *client, i int)) *work {
	w := newWork(threads, len(order), func(c *client, i int) { op(c, order[i]) })
	w.once, w.queue = true, new(atomic.Int64)
	return w
}

// shuffled are the indexes of a set, in another order each round.
func shuffled(set *blockSet, round int) []int {
	return rand.New(rand.NewPCG(uint64(round), uint64(set.size))).Perm(set.count)
}

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

func (t tails) text() string {
	return microsText(t.p50) + " / " + microsText(t.p99) + " / " + microsText(t.max)
}

func microsText(us float64) string {
	if us < 100 {
		return fmt.Sprintf("%.1f", us)
	}
	return fmt.Sprintf("%.0f", us)
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}
