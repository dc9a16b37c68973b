package rdmatest

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvfs/kvfs/rdma"
)

// Harness makes the transports to be checked.
type Harness struct {
	// Open returns a transport that serves source, which may be nil, on an address of
	// its own. All that a Harness opens reach each other. The suite closes them.
	Open func(tb testing.TB, source rdma.Source) rdma.Transport

	// Patience is how long the suite waits for what must happen; 0: 1 min.
	Patience time.Duration
}

// check is one part of the suite.
type check struct {
	name string
	get  bool // needs Caps.Get
	run  func(e *env)
}

// all are the checks.
func all() []check {
	return []check{
		{"caps", false, checkCaps},
		{"get sizes", true, checkGetSizes},
		{"get order", true, checkGetOrder},
		{"get many", true, checkGetMany},
		{"get limits", true, checkGetLimits},
		{"get headers", true, checkGetHeaders},
		{"get refused large", true, checkGetRefusedLarge},
		{"get unwritable", true, checkGetUnwritable},
		{"get short file", true, checkGetShortFile},
		{"get no source", true, checkGetNoSource},
		{"read ranges", false, checkReadRanges},
		{"read gone", false, checkReadGone},
		{"region close", false, checkRegionClose},
		{"region close during read", false, checkRegionCloseDuringRead},
		{"cancel before", true, checkCancelBefore},
		{"cancel during transfer", true, checkCancelDuringTransfer},
		{"cancel during lend", true, checkCancelDuringLend},
		{"slow source", true, checkSlowSource},
		{"slow items in order", true, checkSlowItemsInOrder},
		{"peer closed", true, checkPeerClosed},
		{"peer closed during get", true, checkPeerClosedDuringGet},
		{"transport closed", true, checkTransportClosed},
		{"transport closed during get", true, checkTransportClosedDuringGet},
		{"transport closed during lend", true, checkTransportClosedDuringLend},
		{"holder dies", true, checkHolderDies},
		{"holder absent", true, checkHolderAbsent},
		{"loans", true, checkLoans},
		{"parallel", true, checkParallel},
	}
}

// Run checks the transports of the harness.
func Run(t *testing.T, harness func(testing.TB) *Harness) {
	for _, c := range all() {
		t.Run(c.name, func(t *testing.T) { c.on(t, harness(t)) })
	}
}

// on runs c with transports of h.
func (c check) on(tb testing.TB, h *Harness) {
	e := newEnv(tb, h)
	if c.get && !e.holder.Caps().Get {
		tb.Skip("the transport has no Get")
	}
	c.run(e)
	e.close()
}

// Check runs one part of the suite, as Run names it, and reports whether it failed,
// without tb failing. It is for those who test the suite.
func Check(tb testing.TB, harness func(testing.TB) *Harness, name string) (failed bool) {
	for _, c := range all() {
		if c.name != name {
			continue
		}
		r := &recorder{TB: tb}
		done := make(chan struct{})
		go func() { // ends with the check, which is waited for
			defer close(done)
			defer r.cleanup()
			c.on(r, harness(r))
		}()
		<-done
		return r.failed.Load()
	}
	tb.Fatalf("the suite has no %q", name)
	return false
}

// recorder is a test that may fail without consequences.
type recorder struct {
	testing.TB
	failed atomic.Bool

	mu       sync.Mutex // a call that hangs may outlive its check
	cleanups []func()
}

// Errorf implements testing.TB.
func (r *recorder) Errorf(string, ...any) { r.failed.Store(true) }

// Error implements testing.TB.
func (r *recorder) Error(...any) { r.failed.Store(true) }

// Fatalf implements testing.TB.
func (r *recorder) Fatalf(string, ...any) {
	r.failed.Store(true)
	runtime.Goexit()
}

// Fatal implements testing.TB.
func (r *recorder) Fatal(...any) { r.Fatalf("") }

// Skip implements testing.TB.
func (r *recorder) Skip(...any) { runtime.Goexit() }

// Cleanup implements testing.TB.
func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

func (r *recorder) cleanup() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		r.cleanups[i]()
	}
}

// env is a holder and a reader.
type env struct {
	testing.TB
	h        *Harness
	patience time.Duration
	ctx      context.Context
	source   *source
	holder   rdma.Transport
	reader   rdma.Transport
	peer     rdma.Peer // the reader's connection to the holder
}

func newEnv(tb testing.TB, h *Harness) *env {
	e := &env{TB: tb, h: h, patience: h.Patience, source: newSource(tb)}
	if e.patience == 0 {
		e.patience = time.Minute
	}
	var cancel context.CancelFunc
	e.ctx, cancel = context.WithTimeout(context.Background(), e.patience)
	tb.Cleanup(cancel)
	e.holder = e.open(e.source)
	e.reader = e.open(nil)
	e.peer = e.connect(e.holder)
	return e
}

// open opens another transport.
func (e *env) open(s rdma.Source) rdma.Transport {
	t := e.h.Open(e, s)
	e.Cleanup(func() { t.Close() })
	return t
}

// connect returns a connection of the reader's to t.
func (e *env) connect(t rdma.Transport) rdma.Peer {
	p, err := e.reader.Connect(t.Addr())
	if err != nil {
		e.Fatalf("connect to %s: %v", t.Addr(), err)
	}
	return p
}

// close ends a check: nothing may be held any more, and all was held rightly.
func (e *env) close() {
	for _, t := range []rdma.Transport{e.reader, e.holder} {
		if err := e.within(func() error { return t.Close() }); err != nil {
			e.Errorf("close: %v", err)
		}
		if err := t.Close(); err != nil {
			e.Errorf("second close: %v", err)
		}
	}
	e.source.settle(e)
}

// within returns what f returns, or an error if it does not.
func (e *env) within(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }() // ends with f; if f hangs, the test has failed anyway
	select {
	case err := <-done:
		return err
	case <-time.After(e.patience):
		return context.DeadlineExceeded
	}
}

// await polls until ok.
func (e *env) await(what string, ok func() bool) {
	e.Helper()
	for end := time.Now().Add(e.patience); !ok(); {
		if time.Now().After(end) {
			e.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(time.Millisecond) // reason: polls for what has no event
	}
}
