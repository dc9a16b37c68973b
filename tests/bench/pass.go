package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// work is an operation on the indexes 0 to count-1. The threads divide them: thread t takes t,
// t+threads, t+2*threads and so on.
type work struct {
	threads int
	count   int
	op      func(c *client, i int) error
	// once ends a pass after each index was done once, even if time is left.
	once bool
	// queue, if not nil, gives all threads their next index, so that no thread ends a pass long
	// before the others. Set once, too.
	queue *atomic.Int64
	// times, if not nil, gets the time of each operation, and commits the part of it from before the close of a written
	// file, until they are full: newTimes. Only for one thread.
	times, commits []time.Duration
	// next is where each thread continues in the next pass, so that short passes still cover all
	// indexes.
	next []int
}

func newWork(threads, count int, op func(c *client, i int) error) *work {
	w := &work{threads: min(threads, count), count: count, op: op}
	w.next = make([]int, w.threads)
	for t := range w.next {
		w.next[t] = t
	}
	return w
}

// tally is the result of a pass.
type tally struct {
	ops     int
	perSec  float64 // sum of the threads' own rates, operations per second
	elapsed time.Duration
}

// pool runs passes on clients that live as long as the program.
type pool struct {
	clients []*client
}

func newPool(threads, bufferBytes int) (*pool, error) {
	p := &pool{}
	for range threads {
		c, err := newClient(bufferBytes)
		if err != nil {
			return nil, errors.Join(err, p.close())
		}
		p.clients = append(p.clients, c)
	}
	return p, nil
}

func (p *pool) close() error {
	var errs []error
	for _, c := range p.clients {
		errs = append(errs, c.close())
	}
	return errors.Join(errs...)
}

// once does every index of w one time and untimed: preparation and warm-up.
func (p *pool) once(ctx context.Context, w *work) error {
	before := w.once
	w.once = true
	defer func() { w.once = before }()
	_, err := p.run(ctx, w, time.Hour)
	return err
}

// run repeats w for d on its own operating system threads, which start together
// and stop each after the operation under way. It returns when all have stopped,
// with the first error; a done ctx stops them with its error.
func (p *pool) run(ctx context.Context, w *work, d time.Duration) (tally, error) {
	if w.threads > len(p.clients) {
		return tally{}, fmt.Errorf("%d threads, but %d clients", w.threads, len(p.clients))
	}
	parts := make([]tally, w.threads)
	errs := make([]error, w.threads)
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
				parts[t], errs[t] = p.loop(ctx, w, t, d)
			}
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
	sum := tally{}
	for _, part := range parts {
		sum.ops += part.ops
		sum.perSec += part.perSec
		sum.elapsed = max(sum.elapsed, part.elapsed)
	}
	return sum, errors.Join(errs...)
}

func (p *pool) loop(ctx context.Context, w *work, t int, d time.Duration) (tally, error) {
	c := p.clients[t]
	share := (w.count - t + w.threads - 1) / w.threads
	if w.queue != nil {
		share = w.count // the end of the queue ends the pass
	}
	var out tally
	begin := time.Now()
	for out.elapsed < d && !(w.once && out.ops == share) {
		if ctx.Err() != nil {
			return out, context.Cause(ctx)
		}
		i := w.take(t)
		if i >= w.count {
			break
		}
		if err := w.op(c, i); err != nil {
			return out, fmt.Errorf("block %d: %w", i, err)
		}
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
	return out, nil
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

// blockPreemption masks SIGURG on the calling thread. The Go runtime sends it every 10 ms to a busy
// thread. FUSE would turn each into an INTERRUPT request, which no engine causes.
func blockPreemption() error {
	var set unix.Sigset_t
	const bit = uint(unix.SIGURG) - 1
	const wordBits = 8 * uint(unsafe.Sizeof(set.Val[0]))
	set.Val[bit/wordBits] |= 1 << (bit % wordBits)
	return unix.PthreadSigmask(unix.SIG_BLOCK, &set, nil)
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
