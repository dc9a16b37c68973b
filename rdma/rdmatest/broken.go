package rdmatest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/kvfs/kvfs/rdma"
)

// large is more than buffers between two nodes hold: a transfer of it can be caught
// in the middle.
const large int64 = 64 << 20

// mark is what untouched puts into a file.
var mark = sync.OnceValue(func() []byte { return pattern(42, 1<<20) })

// untouched shows that nothing writes to the file of w any more. It marks the file from its end on,
// so that a writer that still writes from the beginning on overwrites a mark. settle returns once
// no writer is left.
func (w *want) untouched(e *env, settle func()) {
	e.Helper()
	if w.file == nil {
		return
	}
	mark := mark()
	step := int64(len(mark))
	for off := large - step; off >= 0; off -= step {
		if _, err := w.file.WriteAt(mark, off); err != nil {
			e.Fatalf("write mark: %v", err)
		}
	}
	settle()
	for off := int64(0); off < large; off += step {
		if !holds(e, w.file, off, mark) {
			e.Errorf("%.40q: written to after the call returned, near offset %d", w.name, off)
			return
		}
	}
}

// allBack reports whether the source has everything back.
func (e *env) allBack() bool {
	return e.source.get(&e.source.mu.lent) == e.source.get(&e.source.mu.back)
}

// interrupted gets a small and a large block and one more. It calls f when the large one begins to
// come, and checks that the others fail with kind.
func (e *env) interrupted(ctx context.Context, p rdma.Peer, f func(), kind error) {
	e.Helper()
	e.source.put("small", blockOf{content: pattern(1, 1000)})
	e.source.put("large", blockOf{content: make([]byte, large)})
	a, b, c := &want{name: "small"}, &want{name: "large", hook: f}, &want{name: "small"}
	err := e.get(ctx, p, a, b, c)
	if !errors.Is(err, kind) {
		e.Errorf("interrupted get: %v, want %v", err, kind)
	}
	a.holds(e, pattern(1, 1000))
	b.fails(e, kind)
	c.fails(e, kind)
	b.untouched(e, func() { e.await("the holder to let go", e.allBack) })
}

// works shows that p can be used.
func (e *env) works(p rdma.Peer) {
	e.Helper()
	e.source.put("works", blockOf{content: pattern(8, 70_000)})
	w := &want{name: "works"}
	if err := e.get(e.ctx, p, w); err != nil {
		e.Errorf("get: %v", err)
	}
	w.holds(e, pattern(8, 70_000))
}

func checkCancelBefore(e *env) {
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	w := &want{name: "a"}
	if err := e.get(ctx, e.peer, w); !errors.Is(err, context.Canceled) {
		e.Errorf("get with an ended context: %v", err)
	}
	w.fails(e, context.Canceled)
	e.works(e.peer)
}

func checkCancelDuringTransfer(e *env) {
	for range 3 {
		ctx, cancel := context.WithCancel(e.ctx)
		e.interrupted(ctx, e.peer, cancel, context.Canceled)
		e.works(e.peer)
	}
}

func checkCancelDuringLend(e *env) {
	e.source.put("slow", blockOf{content: pattern(1, 10), gate: make(chan struct{})})
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	go func() { // ends when the source has been asked, or with the test
		for e.source.get(&e.source.mu.waiting) == 0 && ctx.Err() == nil {
			if e.ctx.Err() != nil {
				return
			}
		}
		cancel()
	}()
	w := &want{name: "slow"}
	if err := e.get(ctx, e.peer, w); !errors.Is(err, context.Canceled) {
		e.Errorf("cancelled get: %v", err)
	}
	w.fails(e, context.Canceled)
	e.await("the context of Lend to end", func() bool { return e.source.get(&e.source.mu.ended) == 1 })
	e.works(e.peer)
}

// checkSlowSource shows that a Get that waits for a device delays no other.
func checkSlowSource(e *env) {
	gate := make(chan struct{})
	e.source.put("slow", blockOf{content: pattern(1, 5000), gate: gate})
	slow := &want{name: "slow"}
	done := make(chan error, 1)
	go func() { done <- e.get(e.ctx, e.peer, slow) }() // ends when gate is open
	e.await("the source to be asked", func() bool { return e.source.get(&e.source.mu.waiting) == 1 })
	e.works(e.peer)
	e.works(e.connect(e.holder))
	close(gate)
	if err := <-done; err != nil {
		e.Errorf("get of a slow block: %v", err)
	}
	slow.holds(e, pattern(1, 5000))
}

// checkSlowItemsInOrder shows that items behind a slow one wait for it.
func checkSlowItemsInOrder(e *env) {
	gate := make(chan struct{})
	e.source.put("fast", blockOf{content: pattern(1, 5000)})
	e.source.put("slow", blockOf{content: pattern(2, 5000), gate: gate})
	wants := []*want{{name: "fast"}, {name: "slow"}, {name: "fast"}, {name: "absent"}}
	done := make(chan error, 1)
	go func() { done <- e.get(e.ctx, e.peer, wants...) }() // ends when gate is open
	e.await("the source to be asked", func() bool { return e.source.get(&e.source.mu.waiting) == 1 })
	close(gate)
	if err := <-done; err != nil {
		e.Errorf("get: %v", err)
	}
	for i, w := range wants[:3] {
		w.holds(e, pattern(uint64(i%2+1), 5000))
	}
	wants[3].fails(e, rdma.ErrGone)
}

func checkPeerClosed(e *env) {
	e.works(e.peer)
	for range 2 {
		if err := e.within(e.peer.Close); err != nil {
			e.Errorf("close peer: %v", err)
		}
	}
	w := &want{name: "a"}
	if err := e.get(e.ctx, e.peer, w); !errors.Is(err, rdma.ErrClosed) {
		e.Errorf("get from a closed peer: %v", err)
	}
	w.fails(e, rdma.ErrClosed)
	e.works(e.connect(e.holder))
}

func checkPeerClosedDuringGet(e *env) {
	e.interrupted(e.ctx, e.peer, func() { e.peer.Close() }, rdma.ErrClosed)
	e.works(e.connect(e.holder))
}

func checkTransportClosed(e *env) {
	e.works(e.peer)
	if err := e.within(e.reader.Close); err != nil {
		e.Errorf("close: %v", err)
	}
	w := &want{name: "a"}
	if err := e.get(e.ctx, e.peer, w); !errors.Is(err, rdma.ErrClosed) {
		e.Errorf("get with a closed transport: %v", err)
	}
	if _, err := e.reader.Connect(e.holder.Addr()); !errors.Is(err, rdma.ErrClosed) {
		e.Errorf("connect with a closed transport: %v", err)
	}
	if _, err := e.reader.Register(newFile(e, []byte("x")), 1); !errors.Is(err, rdma.ErrClosed) {
		e.Errorf("register with a closed transport: %v", err)
	}
}

func checkTransportClosedDuringGet(e *env) {
	f, wait := e.closing(e.reader)
	e.interrupted(e.ctx, e.peer, f, rdma.ErrClosed)
	wait()
}

// closing returns a function that begins to close t, and one that waits for that: Close waits for
// the call in which the first one may be called.
func (e *env) closing(t rdma.Transport) (begin, wait func()) {
	closed := make(chan struct{})
	begin = func() {
		go func() { // ends when Close does
			defer close(closed)
			t.Close()
		}()
		e.await("the transport to be closed", func() bool {
			p, err := t.Connect(e.holder.Addr())
			if err == nil {
				p.Close()
			}
			return errors.Is(err, rdma.ErrClosed)
		})
	}
	wait = func() {
		if err := e.within(func() error { <-closed; return nil }); err != nil {
			e.Errorf("close during a get does not return")
		}
	}
	return begin, wait
}

// checkTransportClosedDuringLend closes the holder while its source is at work: that
// ends Lend's context, and Close waits for it.
func checkTransportClosedDuringLend(e *env) {
	e.source.put("slow", blockOf{content: pattern(1, 10), gate: make(chan struct{})})
	w := &want{name: "slow"}
	done := make(chan error, 1)
	go func() { done <- e.get(e.ctx, e.peer, w) }() // ends when the holder is closed
	e.await("the source to be asked", func() bool { return e.source.get(&e.source.mu.waiting) == 1 })
	if err := e.within(e.holder.Close); err != nil {
		e.Errorf("close: %v", err)
	}
	if n := e.source.get(&e.source.mu.waiting); n != 0 {
		e.Errorf("%d Lends under way after Close", n)
	}
	if err := <-done; !errors.Is(err, rdma.ErrUnavailable) {
		e.Errorf("get from a holder that was closed: %v", err)
	}
}

func checkHolderDies(e *env) {
	f, wait := e.closing(e.holder)
	e.interrupted(e.ctx, e.peer, f, rdma.ErrUnavailable)
	wait()
	w := &want{name: "small"}
	if err := e.get(e.ctx, e.peer, w); !errors.Is(err, rdma.ErrUnavailable) {
		e.Errorf("get from a dead holder: %v", err)
	}
}

func checkHolderAbsent(e *env) {
	e.works(e.peer)
	if err := e.within(e.holder.Close); err != nil {
		e.Errorf("close: %v", err)
	}
	for _, p := range []rdma.Peer{e.peer, e.connect(e.holder)} {
		a, b := &want{name: "a"}, &want{name: "b"}
		if err := e.get(e.ctx, p, a, b); !errors.Is(err, rdma.ErrUnavailable) {
			e.Errorf("get from an absent holder: %v", err)
		}
		a.fails(e, rdma.ErrUnavailable)
		b.fails(e, rdma.ErrUnavailable)
	}
}

// checkParallel mixes all calls that may go on at a time.
func checkParallel(e *env) {
	const blocks, workers, rounds = 30, 10, 8
	seed := rand.Uint64()
	e.Logf("seed %d", seed)
	var regions []rdma.Region
	var contents [][]byte
	for i := range blocks {
		content := pattern(uint64(i), (i%8)*(i%8)*4000+i)
		e.source.put(fmt.Sprint(i), blockOf{content: content})
		region, _ := e.register(content)
		regions = append(regions, region)
		contents = append(contents, content)
	}
	other := e.connect(e.holder)
	var wg sync.WaitGroup
	for worker := range workers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(worker)))
			for range rounds {
				e.parallelStep(rnd, []rdma.Peer{e.peer, other}[rnd.IntN(2)], regions, contents)
			}
		})
	}
	wg.Wait()
	for _, r := range regions {
		if err := r.Close(); err != nil {
			e.Errorf("close region: %v", err)
		}
	}
	e.await("all loans to come back", e.allBack)
}

func (e *env) parallelStep(rnd *rand.Rand, p rdma.Peer, regions []rdma.Region, contents [][]byte) {
	if rnd.IntN(4) == 0 {
		i := rnd.IntN(len(regions))
		n := int64(len(contents[i]))
		f, _, err := e.read(e.ctx, regions[i].Remote(), 0, n)
		if err != nil || !holds(e, f, 4096, contents[i]) {
			e.Errorf("parallel read: wrong bytes (%v)", err)
		}
		return
	}
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	var wants []*want
	var of []int
	for range 1 + rnd.IntN(25) {
		i := rnd.IntN(len(contents))
		of = append(of, i)
		wants = append(wants, &want{name: fmt.Sprint(i)})
	}
	cancelled := rnd.IntN(8) == 0
	if cancelled {
		wants[rnd.IntN(len(wants))].hook = cancel
	}
	if err := e.get(ctx, p, wants...); err != nil && !(cancelled && errors.Is(err, context.Canceled)) {
		e.Errorf("parallel get: %v", err)
	}
	for i, w := range wants {
		if w.err == nil || !cancelled {
			w.holds(e, contents[of[i]])
		}
		if w.file != nil {
			w.file.Close() // there are thousands
		}
	}
}
