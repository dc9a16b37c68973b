package rdmatest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/kvfs/kvfs/rdma"
)

// Harness makes the transports for the checks.
type Harness struct {
	// Open returns a transport that serves source, which may be nil, on its own address. All
	// transports of a Harness reach each other. The suite closes them.
	Open func(tb testing.TB, source rdma.Source) rdma.Transport

	// Cut breaks the connections between two transports. None can be made until heal is called.
	// Nil: checks that need it are skipped.
	Cut func(a, b rdma.Transport) (heal func())
	// Stall stops the bytes between two transports, without an error on either side, until resume
	// is called, maybe after they were closed. Nil: checks that need it are skipped.
	Stall func(a, b rdma.Transport) (resume func())
	// GivesUp: a read over a silent link fails with rdma.ErrUnavailable by itself, well within
	// patience.
	GivesUp bool
}

const (
	patience = 4 * time.Minute // how long the suite waits for an event, and the limit of a check; the processor may be emulated
	attempts = 100             // how often a check tries to catch a read in the middle
)

// need is a requirement of a check.
type need int

const (
	nothing need = iota
	get          // Caps.Get
	cut          // Harness.Cut
	stall        // Harness.Stall
	giveUp       // Harness.Stall and GivesUp
)

// check is one part of the suite.
type check struct {
	name  string
	needs need
	run   func(e *env)
}

// all are the checks.
func all() []check { return slices.Concat(byName(), byKey()) }

// byName are the checks of Get.
func byName() []check {
	return []check{
		{"get sizes", get, checkGetSizes},
		{"get order", get, checkGetOrder},
		{"get many", get, checkGetMany},
		{"get limits", get, checkGetLimits},
		{"get headers", get, checkGetHeaders},
		{"get refused large", get, checkGetRefusedLarge},
		{"get unwritable", get, checkGetUnwritable},
		{"get short file", get, checkGetShortFile},
		{"cancel before", get, checkCancelBefore},
		{"cancel during transfer", get, checkCancelDuringTransfer},
		{"cancel during lend", get, checkCancelDuringLend},
		{"slow source", get, checkSlowSource},
		{"slow items in order", get, checkSlowItemsInOrder},
		{"peer closed", get, checkPeerClosed},
		{"peer closed during get", get, checkPeerClosedDuringGet},
		{"transport closed", get, checkTransportClosed},
		{"transport closed during get", get, checkTransportClosedDuringGet},
		{"transport closed during lend", get, checkTransportClosedDuringLend},
		{"holder dies", get, checkHolderDies},
		{"holder absent", get, checkHolderAbsent},
		{"parallel", get, checkParallel},
	}
}

// byKey are the checks of Register and Read, and of what both ways have in common.
func byKey() []check {
	return []check{
		{"caps", nothing, checkCaps},
		{"read sizes", nothing, checkReadSizes},
		{"read pieces", nothing, checkReadPieces},
		{"read many", nothing, checkReadMany},
		{"regions of one file", nothing, checkRegionsOfOneFile},
		{"read bad keys", nothing, checkReadBadKeys},
		{"read stale keys", nothing, checkReadStaleKeys},
		{"read size lies", nothing, checkReadSizeLies},
		{"read unwritable", nothing, checkReadUnwritable},
		{"read churn", nothing, checkReadChurn},
		{"read held up", nothing, checkReadHeldUp},
		{"read cancel before", nothing, checkReadCancelBefore},
		{"read cancel during", nothing, checkReadCancelDuring},
		{"read peer closed", nothing, checkReadPeerClosed},
		{"read peer closed during", nothing, checkReadPeerClosedDuring},
		{"read transport closed", nothing, checkReadTransportClosed},
		{"read transport closed during", nothing, checkReadTransportClosedDuring},
		{"read region closed during", nothing, checkReadRegionClosedDuring},
		{"read holder dies", nothing, checkReadHolderDies},
		{"read holder absent", nothing, checkReadHolderAbsent},
		{"read cut", cut, checkReadCut},
		{"read stalled", stall, checkReadStalled},
		{"read stalled close", stall, checkReadStalledClose},
		{"read stall given up", giveUp, checkReadStallGivenUp},
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
	if why := c.lacks(e); why != "" {
		tb.Skip(why)
	}
	c.run(e)
	e.close()
}

// lacks returns what the check needs and lacks; "" if it can run.
func (c check) lacks(e *env) string {
	switch {
	case c.needs == get && !e.holder.Caps().Get:
		return "the transport has no Get"
	case c.needs == cut && e.h.Cut == nil:
		return "the harness has no Cut"
	case c.needs >= stall && e.h.Stall == nil:
		return "the harness has no Stall"
	case c.needs == giveUp && !e.h.GivesUp:
		return "the transport does not give up by itself"
	}
	return ""
}

// env is a holder and a reader.
type env struct {
	testing.TB
	h      *Harness
	ctx    context.Context
	source *source
	holder rdma.Transport
	reader rdma.Transport
	peer   rdma.Peer // the reader's connection to the holder
}

func newEnv(tb testing.TB, h *Harness) *env {
	e := &env{TB: tb, h: h, source: newSource(tb)}
	var cancel context.CancelFunc
	e.ctx, cancel = context.WithTimeout(context.Background(), patience)
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

// connect returns a connection from the reader to t.
func (e *env) connect(t rdma.Transport) rdma.Peer {
	p, err := e.reader.Connect(t.Addr())
	if err != nil {
		e.Fatalf("connect to %s: %v", t.Addr(), err)
	}
	return p
}

// close ends a check: nothing may be held any more, and everything was held correctly.
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

// within returns the result of f, or an error if f does not return.
func (e *env) within(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }() // ends with f; if f hangs, the test has failed anyway
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		return context.DeadlineExceeded
	}
}

// await polls until ok.
func (e *env) await(what string, ok func() bool) {
	e.Helper()
	for end := time.Now().Add(patience); !ok(); {
		if time.Now().After(end) {
			e.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(time.Millisecond) // reason: polls for what has no event
	}
}
