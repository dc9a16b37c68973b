//go:build ofi && cgo

package fabric

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/rdma"
)

// message is one read of the library: of bytes of a region to p, or of a word. The read of a word
// begins only when those before it are over, unless the provider keeps the order.
type message struct {
	p       []byte // nil: a word, then word has its value
	mem     memory // of p, if p must be registered
	at, key uint64 // address in the peer's memory
	ordered bool   // a word that is read after the messages begun before it

	to     *sink // takes p when the message is over; nil: p is the destination
	number int   // in to.pieces

	over bool // it has been read
	word uint64
}

// Reasons why an endpoint was closed. errBroken and errCut are no fault of the reads that end with
// it.
var (
	errBroken  = errors.New("connection broke")
	errCut     = errors.New("closed for a read that was given up")
	errStalled = errors.New("nothing moved")

	// errOwn is the failure of a read whose bytes could not be written on this node.
	errOwn = errors.New("write the read bytes")

	// errUnclosed is the failure of a read whose endpoint did not close: its destination stays
	// mapped and registered.
	errUnclosed = fmt.Errorf("the connection cannot be closed: %w", rdma.ErrUnsafe)
)

// errFailed is the failure of a message itself, as the card or the peer reported it.
type errFailed struct {
	err    error
	detail int
}

// Error implements error.
func (e *errFailed) Error() string {
	if e.detail != 0 {
		return fmt.Sprintf("%v (provider's code %d)", e.err, e.detail)
	}
	return e.err.Error()
}

// Unwrap returns the code.
func (e *errFailed) Unwrap() error { return e.err }

const (
	// window is how many messages of one read are under way at a time. That fills a link, lets
	// other reads take turns, and allows a read to be given up.
	window = 2
	// pollTime is the longest sleep of the endpoint before it checks whether it has stalled.
	pollTime = 50 * time.Millisecond
	// absence limits how much of the time between two polls counts as silence. If more time passed,
	// this process did not get the processor; that says nothing of the peer.
	absence = 2 * pollTime
	// retryTime is the sleep while something could not be posted: the connection is being made, or
	// a queue was full.
	retryTime = time.Millisecond
	// connectTime limits the attempts to make a connection: the providers try again and again.
	connectTime = 2 * time.Second
	// cancelGrace is how long a read that is given up waits for its messages before the endpoint is
	// closed. Closing would end the reads of others, too.
	cancelGrace = 100 * time.Millisecond
)

// endpoint reads from one rail of a peer. It has no goroutine: one of those that wait for their
// messages leads and makes progress for all. When its own messages are done, the next one leads. An
// unused endpoint costs only memory.
type endpoint struct {
	q     queue
	stall time.Duration
	log   *zap.Logger
	count *counters
	rail  *atomic.Int64 // bytes by this rail
	moved *atomic.Int64 // bytes from this peer
	stuck *atomic.Bool  // an endpoint of the transport did not close
	close func() error  // of q, except in tests
	// lead has an element while a goroutine leads.
	lead chan struct{}
	// over is closed when the endpoint is closed: it writes nothing any more.
	over chan struct{}

	// calls is held for reading in each function of q, and for writing to close it.
	calls  sync.RWMutex
	closed bool // guarded by calls

	mu struct {
		sync.Mutex
		err     error // why it is closed, or about to be
		stuck   error // why it did not close
		free    []int // slots
		under   [depth]*posted
		n       int       // messages under way
		users   int       // runs under way
		moved   time.Time // when a message last completed, or began after a pause
		looked  time.Time // when a leader last polled
		reached bool      // a message has begun at all
		starved map[*run]struct{}
	}
}

// posted is a message under way, with its run.
type posted struct {
	m *message
	r *run
}

// run is the messages that one caller waits for.
type run struct {
	ctx   context.Context
	todo  []*message
	to    *sink         // takes the messages; nil: they have none
	event chan struct{} // has an element when the caller should check again
	cutAt time.Time     // when the endpoint is closed for this run; zero: the run was not given up
	own   error         // why the sink did not take a message

	// Guarded by the endpoint's mu.
	posted  int   // messages of todo that have begun
	under   int   // messages under way
	stopped bool  // no more messages will begin
	err     error // the first failure of one of them
}

func newEndpoint(q queue, p *Peer, rail int) *endpoint {
	t := p.t
	e := &endpoint{
		q: q, stall: t.opts.StallTimeout, log: t.opts.Logger, count: &t.count, rail: &t.count.railBytes[rail], moved: &p.moved, stuck: &t.rings.stuck,
		close: q.close, lead: make(chan struct{}, 1), over: make(chan struct{}),
	}
	for i := range depth {
		e.mu.free = append(e.mu.free, i)
	}
	e.mu.starved = map[*run]struct{}{}
	return e
}

// do reads the messages that have not been read yet. The caller has called enter. When do returns,
// none of them is under way. If a message fails, the error is an errFailed. ctx's error and the
// reason why the endpoint was closed are returned unchanged.
func (e *endpoint) do(ctx context.Context, messages []*message) error {
	r := &run{ctx: ctx, event: make(chan struct{}, 1)}
	for _, m := range messages {
		if m.p == nil && len(r.todo) > 0 {
			m.over = false // messages read before it are read again
		}
		if !m.over {
			r.todo = append(r.todo, m)
		}
		if m.to != nil {
			r.to = m.to
		}
	}
	defer e.leave(r)
	defer context.AfterFunc(ctx, e.wake)() // wakes the leader, which may be asleep

	given := ctx.Done()
	var cut <-chan time.Time
	for {
		e.post(r)
		e.empty(r)
		if e.settled(r) {
			return e.outcome(r)
		}
		select {
		case <-r.event:
		case <-e.over:
		case <-given:
			given, r.cutAt = nil, time.Now().Add(cancelGrace)
			timer := time.NewTimer(cancelGrace)
			defer timer.Stop()
			cut = timer.C
		case <-cut:
			e.fail(errCut)
		case e.lead <- struct{}{}:
			e.progress(r)
			<-e.lead
		}
	}
}

// enter counts a user of the endpoint. The caller that chose the endpoint calls it before do.
func (e *endpoint) enter() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.users == 0 {
		e.mu.moved = time.Now()
	}
	e.mu.users++
}

func (e *endpoint) leave(r *run) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.users--
	delete(e.mu.starved, r)
}

// settled reports whether no message of r is under way or will be.
func (e *endpoint) settled(r *run) bool {
	select {
	case <-e.over:
		return true
	default:
	}
	e.mu.Lock()
	failed, idle, all := r.err != nil, r.under == 0, r.stopped || r.posted == len(r.todo) && r.written()
	e.mu.Unlock()
	if failed {
		e.fail(errBroken)
		return true
	}
	return idle && all
}

// outcome returns the result of do.
func (e *endpoint) outcome(r *run) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	whole := true
	for _, m := range r.todo {
		whole = whole && m.over
	}
	switch {
	case e.mu.stuck != nil && r.under > 0:
		return fmt.Errorf("%w: %w", errUnclosed, e.mu.stuck)
	case r.own != nil:
		return r.own
	case whole && r.written():
		return nil
	case r.ctx.Err() != nil:
		return r.ctx.Err()
	case r.err != nil && !errors.Is(r.err, codeCanceled):
		return r.err
	}
	return e.mu.err
}

// written reports whether all bytes that go through a buffer have left it.
func (r *run) written() bool { return r.to == nil || r.to.taken == len(r.to.pieces) }

// empty writes to the file the messages of r that are next, and begins others in their place.
func (e *endpoint) empty(r *run) {
	for r.to != nil && e.next(r) {
		if err := r.to.write(); err != nil {
			r.own = fmt.Errorf("%w: %w", errOwn, err)
			continue
		}
		e.post(r)
	}
}

// next reports whether the next message of r can be written. The write of the previous one counts
// as movement, because a goroutine that writes does not poll.
func (e *endpoint) next(r *run) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.ctx.Err() != nil || r.own != nil {
		r.stopped = true
		return false
	}
	if r.written() || !r.to.pieces[r.to.taken].over {
		return false
	}
	e.mu.moved = time.Now()
	return true
}

// post begins the messages of r that have not begun, as far as possible now.
func (e *endpoint) post(r *run) {
	for {
		m, slot := e.take(r)
		if m == nil {
			return
		}
		err := e.begin(m, slot)
		e.mu.Lock()
		if err == nil {
			e.mu.reached = true
			e.mu.Unlock()
			continue
		}
		e.mu.under[slot] = nil
		e.mu.free = append(e.mu.free, slot)
		e.mu.n--
		r.under--
		r.posted--
		if errors.Is(err, codeAgain) {
			e.mu.starved[r] = struct{}{}
		} else if r.err == nil {
			r.err = &errFailed{err: err}
			e.count.failed.Add(1)
		}
		e.mu.Unlock()
		return
	}
}

// take returns the next message of r with a slot for it, or nil if there is none.
func (e *endpoint) take(r *run) (*message, int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, again := e.mu.starved[r]
	delete(e.mu.starved, r)
	if r.ctx.Err() != nil || e.mu.err != nil || r.err != nil || r.own != nil {
		r.stopped = true
		return nil, 0
	}
	if r.posted == len(r.todo) {
		return nil, 0
	}
	m := r.todo[r.posted]
	switch {
	case m.p == nil:
		if r.under > 0 && !m.ordered {
			return nil, 0
		}
	case m.to != nil:
		if !m.to.hasRoom(m.number) {
			return nil, 0
		}
	case r.under == window:
		return nil, 0
	}
	if len(e.mu.free) == 0 {
		e.mu.starved[r] = struct{}{}
		return nil, 0
	}
	slot := e.mu.free[len(e.mu.free)-1]
	e.mu.free = e.mu.free[:len(e.mu.free)-1]
	e.mu.under[slot] = &posted{m, r}
	if e.mu.n == 0 && !again {
		e.mu.moved = time.Now()
	}
	e.mu.n++
	r.posted++
	r.under++
	return m, slot
}

// begin hands a message to the library.
func (e *endpoint) begin(m *message, slot int) error {
	e.calls.RLock()
	defer e.calls.RUnlock()
	switch {
	case e.closed:
		return codeCanceled
	case m.p == nil:
		return e.q.readWord(slot, m.at, m.key)
	}
	return e.q.read(slot, m.p, m.mem, m.at, m.key)
}

// progress leads until there is something to do for r.
func (e *endpoint) progress(r *run) {
	for {
		if err := e.poll(); err != nil {
			e.fail(fmt.Errorf("%w: %w", errBroken, err))
			return
		}
		if limit, stalled := e.stalled(); stalled {
			e.count.stalls.Add(1)
			e.fail(fmt.Errorf("%w for %v", errStalled, limit))
			return
		}
		e.post(r)
		select {
		case <-e.over:
			return
		default:
		}
		given := !r.cutAt.IsZero()
		if len(r.event) > 0 || given && time.Now().After(r.cutAt) || !given && r.ctx.Err() != nil {
			return
		}
	}
}

// poll waits until messages are over, and records that.
func (e *endpoint) poll() error {
	e.mu.Lock()
	e.lookLocked()
	wait := pollTime
	if len(e.mu.starved) > 0 {
		wait = retryTime
	}
	e.mu.Unlock()

	e.calls.RLock()
	defer e.calls.RUnlock()
	if e.closed {
		return rdma.ErrClosed
	}
	var room [batch]done
	over, err := e.q.poll(room[:0], int(wait.Milliseconds()))
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range over {
		if d.slot >= 0 {
			e.settleLocked(d)
		}
	}
	for r := range e.mu.starved {
		r.look()
	}
	return err
}

// settleLocked records that a message is over and wakes its run.
func (e *endpoint) settleLocked(d done) {
	p := e.mu.under[d.slot]
	if p == nil {
		e.log.Warn("libfabric reported an operation as complete twice: ignored", zap.Int("slot", d.slot), zap.Error(d.err))
		return
	}
	e.mu.under[d.slot] = nil
	e.mu.free = append(e.mu.free, d.slot)
	e.mu.n--
	e.mu.moved = time.Now()
	p.r.under--
	if d.err == nil {
		p.m.over = true
		if p.m.p == nil {
			p.m.word = e.q.word(d.slot)
		}
		e.count.reads.Add(1)
		e.count.readBytes.Add(int64(len(p.m.p)))
		e.rail.Add(int64(len(p.m.p)))
		e.moved.Add(int64(len(p.m.p)))
	} else {
		e.count.failed.Add(1)
		if p.r.err == nil {
			p.r.err = &errFailed{d.err, d.detail}
		}
	}
	if p.r.err != nil || p.r.under == 0 || p.r.posted < len(p.r.todo) || p.m.to != nil {
		p.r.look()
	}
}

// look makes r check again.
func (r *run) look() {
	select {
	case r.event <- struct{}{}:
	default:
	}
}

// lookLocked records that the leader polls. Time that passed without a poll since the last one does
// not count as time in which nothing moved.
func (e *endpoint) lookLocked() {
	now := time.Now()
	if unseen := now.Sub(e.mu.looked) - absence; unseen > 0 {
		e.mu.moved = e.mu.moved.Add(unseen)
		if e.mu.moved.After(now) {
			e.mu.moved = now
		}
	}
	e.mu.looked = now
}

// stalled reports whether nothing has moved for the limit that applies now.
func (e *endpoint) stalled() (limit time.Duration, stalled bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lookLocked()
	limit = e.stall
	if !e.mu.reached {
		limit = min(limit, connectTime)
	}
	return limit, time.Since(e.mu.moved) > limit
}

// doubtful reports whether nothing could begin for some time: the peer may be unreachable.
func (e *endpoint) doubtful() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.mu.reached && time.Since(e.mu.moved) > doubtTime
}

// wake wakes the leader.
func (e *endpoint) wake() {
	e.calls.RLock()
	defer e.calls.RUnlock()
	if !e.closed {
		e.q.wake()
	}
}

// load returns how many users e has, and why it can no longer be used.
func (e *endpoint) load() (users int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.users, e.mu.err
}

// fail closes the endpoint, which ends its messages at once. The first reason counts. When fail
// returns, the endpoint writes nothing any more.
func (e *endpoint) fail(why error) {
	e.mu.Lock()
	first := e.mu.err == nil
	if first {
		e.mu.err = why
	}
	e.mu.Unlock()
	if !first {
		<-e.over
		return
	}
	e.wake()
	e.calls.Lock()
	e.closed = true
	err := e.close()
	e.calls.Unlock()
	if err != nil {
		e.stuck.Store(true)
		e.mu.Lock()
		e.mu.stuck = err
		e.mu.Unlock()
		e.log.Error("endpoint does not close", zap.Error(err))
	}
	close(e.over)
}
