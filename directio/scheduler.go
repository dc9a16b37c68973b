package directio

import (
	"context"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
)

// readShare is how many bytes of reads go to the kernel per byte of writes while both wait.
const readShare = 3

// scheduler is the common part of the engines. It queues ops, cuts them into pieces, decides which
// piece is next, judges results and wakes the callers of Do. The engines differ in how a piece gets
// to the kernel and its result back. Goroutines of the engine do that: they take pieces and finish
// them.
//
// A Do lives in a batch of requests, one an op. A request is queued until it is cut
// up. A piece is in flight from take to finish; what its result leaves to do
// is parked, and taken again before anything queued. A request is done when it has
// no bytes queued and no piece in flight or parked, a batch when its requests are.
//
// Reads go before writes, readShare bytes to one, so that neither starves. Writes fill at most
// three quarters of the slots and bytes in flight. So a read never waits behind a device full of
// writes.
//
// The queues have no limit of their own: each entry is a waiting caller.
type scheduler struct {
	name       string
	log        *zap.Logger
	chunkBytes int
	all        limits // of everything in flight
	writes     limits // of the writes among it

	wake func()        // says, without the lock, that there may be a piece to take
	stop func()        // says, without the lock, that the scheduler is closed
	gone chan struct{} // closed when the goroutines of the engine have ended

	mu struct {
		sync.Mutex
		queues [2]list[*request] // reads; writes and syncs
		parked list[*piece]
		flying list[*piece] // oldest first
		load   [2]limits    // in flight: reads; writes and syncs
		credit int64        // bytes of reads that went ahead of a waiting write
		ended  []func()     // called by the goroutine that unlocks next, see unlock
		closed bool
		stats  Stats
	}
}

// limits is a number of pieces and the sum of their bytes.
type limits struct {
	pieces int
	bytes  int64
}

// batch is one Do.
type batch struct {
	undone int           // requests. Guarded by scheduler.mu.
	err    error         // of the context, once it has ended. Guarded by scheduler.mu.
	done   chan struct{} // closed when undone is 0, unless there is then
	then   func()        // of a Start: called when undone is 0
}

// request is one op of a Do. All fields but the first three are guarded by
// scheduler.mu.
type request struct {
	batch *batch
	op    *Op
	size  int // bytes to move

	cut    int   // bytes that pieces were made of
	queued bool  // in a queue: more pieces are to be made
	pieces int   // in flight or parked
	moved  int   // bytes moved without a gap, if err
	err    error // of the lowest piece that failed
	links  node[*request]
}

// piece is a part of a request that is small enough to go to the kernel. It belongs to the
// engine that took it until it is finished.
type piece struct {
	req   *request
	start int // in op.Mem
	size  int
	moved int // bytes done of size

	idle    int // results in a row that moved no page
	retries int // results in a row that asked to try again

	began  time.Time // taken; guarded by scheduler.mu while in flight
	ready  bool      // parked and not waiting for its time; guarded by scheduler.mu
	parked bool      // guarded by scheduler.mu
	links  node[*piece]
}

// rest returns the memory of what is left of p.
func (p *piece) rest() []byte { return p.req.op.Mem[p.start+p.moved : p.start+p.size] }

// offset returns where in the file that belongs.
func (p *piece) offset() int64 { return p.req.op.Off + int64(p.start+p.moved) }

// class returns the index of the queue and load that ops of kind k belong to.
func (k Kind) class() int {
	if k == Read {
		return 0
	}
	return 1
}

// newScheduler returns a scheduler for slots pieces at a time. The engine fills in
// wake and stop, and closes gone.
func newScheduler(name string, slots int, o Options) *scheduler {
	s := &scheduler{name: name, log: o.Logger, chunkBytes: o.ChunkBytes, gone: make(chan struct{})}
	s.all = limits{slots, o.InFlightBytes}
	s.writes = limits{max(1, slots*3/4), max(int64(o.ChunkBytes), o.InFlightBytes/4*3)}
	return s
}

// Name returns what was given to newScheduler.
func (s *scheduler) Name() string { return s.name }

// Do implements Engine.
func (s *scheduler) Do(ctx context.Context, ops []Op) error {
	return s.do(ctx, ops, (*Op).check)
}

// do is Do for ops that pass check.
func (s *scheduler) do(ctx context.Context, ops []Op, check func(*Op) error) error {
	b := &batch{done: make(chan struct{})}
	reqs := b.requests(ops, func(op *Op) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return check(op)
	})
	if s.enqueue(b, reqs) {
		s.wake()
		select {
		case <-b.done:
		case <-ctx.Done():
			s.takeBack(reqs, ctx.Err())
			s.wake() // what stood behind may fit where that did not
			<-b.done
		}
	}
	for i := range ops {
		if ops[i].Err != nil {
			return ops[i].Err
		}
	}
	return nil
}

// Start implements Starter.
func (s *scheduler) Start(ops []Op, done func()) {
	b := &batch{then: done}
	if s.enqueue(b, b.requests(ops, (*Op).check)) {
		s.wake()
		return
	}
	go done() // there was nothing to do
}

// Run implements Starter.
func (s *scheduler) Run(ops []Op, done func()) {
	b := &batch{then: done}
	reqs := b.requests(ops, (*Op).check)
	s.mu.Lock()
	var p *piece
	queued := s.enqueueLocked(b, reqs)
	if queued && s.mu.flying.first == nil && s.mu.parked.first == nil {
		p = s.takeLocked()
	}
	s.mu.Unlock()
	if !queued {
		done() // there was nothing to do
		return
	}
	if p != nil {
		n, errno := p.transfer()
		s.finish(p, n, errno)
	}
	s.mu.Lock()
	left := s.anyLocked()
	s.mu.Unlock()
	if left {
		s.wake()
	}
}

// requests makes the requests of b, with the errors of those that cannot be done.
func (b *batch) requests(ops []Op, check func(*Op) error) []request {
	reqs := make([]request, len(ops))
	for i := range ops {
		op := &ops[i]
		op.N, op.Err = 0, check(op)
		reqs[i] = request{batch: b, op: op}
		if op.Kind != Sync {
			reqs[i].size = len(op.Mem)
		}
	}
	return reqs
}

// unlock releases the lock and tells the Starts that have ended under it.
func (s *scheduler) unlock() {
	ended := s.mu.ended
	s.mu.ended = nil
	s.mu.Unlock()
	for _, then := range ended {
		then()
	}
}

// enqueue queues the requests that have something to do and no error yet, and
// reports whether there were any.
func (s *scheduler) enqueue(b *batch, reqs []request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.enqueueLocked(b, reqs)
}

func (s *scheduler) enqueueLocked(b *batch, reqs []request) bool {
	for i := range reqs {
		r := &reqs[i]
		switch {
		case r.op.Err != nil:
			s.mu.stats.Failed++
		case s.mu.closed:
			r.op.Err = os.ErrClosed
			s.mu.stats.Failed++
		case r.size == 0 && r.op.Kind != Sync:
			s.countLocked(r.op)
		default:
			b.undone++
			r.queued = true
			s.mu.queues[r.op.Kind.class()].push(r, &r.links)
		}
	}
	return b.undone > 0
}

// takeBack ends what still waits of reqs, with err.
func (s *scheduler) takeBack(reqs []request, err error) {
	s.mu.Lock()
	defer s.unlock()
	for i := range reqs {
		if reqs[i].queued {
			s.failLocked(&reqs[i], reqs[i].cut, err)
		}
	}
	// What is in flight may come back with something left to do.
	mine := reqs[0].batch
	mine.err = err
	s.failParkedLocked(err, func(p *piece) bool { return p.req.batch == mine })
}

// failParkedLocked ends the parked pieces that match.
func (s *scheduler) failParkedLocked(err error, match func(*piece) bool) {
	for n := s.mu.parked.first; n != nil; {
		p := n.value
		n = n.next
		if match(p) {
			s.mu.parked.remove(&p.links)
			p.parked = false
			p.req.pieces--
			s.failLocked(p.req, p.start+p.moved, err)
		}
	}
}

// failLocked notes that r came no further than at, takes it out of its queue, and
// ends it unless a piece of it is outstanding.
func (s *scheduler) failLocked(r *request, at int, err error) {
	if r.err == nil || at < r.moved {
		r.moved, r.err = at, err
	}
	if r.queued {
		r.queued = false
		s.mu.queues[r.op.Kind.class()].remove(&r.links)
	}
	s.endLocked(r)
}

// endLocked ends r if nothing of it is outstanding.
func (s *scheduler) endLocked(r *request) {
	if r.queued || r.pieces > 0 {
		return
	}
	op := r.op
	op.N, op.Err = r.size, nil
	if r.err != nil {
		op.N, op.Err = r.moved, r.err
		s.mu.stats.Failed++
	}
	s.countLocked(op)
	if r.batch.undone--; r.batch.undone > 0 {
		return
	}
	if r.batch.then != nil {
		s.mu.ended = append(s.mu.ended, r.batch.then)
	} else {
		close(r.batch.done)
	}
}

// countLocked adds op to the totals of what was completed.
func (s *scheduler) countLocked(op *Op) {
	st := &s.mu.stats
	switch op.Kind {
	case Read:
		st.ReadBytes += uint64(op.N)
	case Write:
		st.WriteBytes += uint64(op.N)
	}
	if op.Err != nil {
		return
	}
	switch op.Kind {
	case Read:
		st.Reads++
	case Write:
		st.Writes++
	case Sync:
		st.Syncs++
	}
}

// Stats implements Engine.
func (s *scheduler) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.stats
}

// Stuck implements Engine.
func (s *scheduler) Stuck() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.flying.first == nil {
		return 0
	}
	return max(time.Since(s.mu.flying.first.value.began), 1)
}

// Close implements Engine.
func (s *scheduler) Close(ctx context.Context) error {
	s.mu.Lock()
	s.mu.closed = true
	for i := range s.mu.queues {
		for n := s.mu.queues[i].first; n != nil; n = s.mu.queues[i].first {
			s.failLocked(n.value, n.value.cut, os.ErrClosed)
		}
	}
	s.failParkedLocked(os.ErrClosed, func(*piece) bool { return true })
	s.unlock()
	s.stop()

	tick := time.NewTicker(closeLogInterval)
	defer tick.Stop()
	for {
		select {
		case <-s.gone:
			return nil
		case <-ctx.Done():
			s.log.Error("device does not answer: leaving what is with it", s.oldest()...)
			return ctx.Err()
		case <-tick.C:
			s.log.Warn("waiting for the device", s.oldest()...)
		}
	}
}
