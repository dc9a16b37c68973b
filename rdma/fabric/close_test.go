//go:build ofi && cgo

package fabric

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/rdma"
)

// theEndpoint returns the endpoint that a peer has after reads one by one.
func theEndpoint(t *testing.T, p *Peer) *endpoint {
	t.Helper()
	pr := p.rails[0]
	pr.mu.Lock()
	defer pr.mu.Unlock()
	if len(pr.mu.shared) != 1 {
		t.Fatalf("%d endpoints", len(pr.mu.shared))
	}
	return pr.mu.shared[0]
}

// TestReportedTwice lets the library report twice that an operation is over: its slot is freed
// once.
func TestReportedTwice(t *testing.T) {
	const size = 1000
	a, b := open(t, Options{}), open(t, Options{})
	want := pattern(1, size)
	r := register(t, a, file(t, want), size)
	p := connect(t, b, a.Addr())
	must(t, reads(t, p, r.Remote(), 0, size, want))
	e := theEndpoint(t, p)
	e.mu.Lock()
	e.settleLocked(done{slot: 0})
	free, n := len(e.mu.free), e.mu.n
	e.mu.Unlock()
	if free != depth || n != 0 {
		t.Errorf("%d slots of %d are free, %d messages under way", free, depth, n)
	}
	if err := reads(t, p, r.Remote(), 0, size, want); err != nil {
		t.Error(err)
	}
}

// TestUnclosed reads by an endpoint that does not close: the destination stays mapped, because the
// bytes may still come, and the read says so.
func TestUnclosed(t *testing.T) {
	const size = 8 * mib
	n := &relays{tb: t}
	a := open(t, Options{})
	b := &relayed{Transport: open(t, Options{direct: true, StallTimeout: patience}), net: n}
	want := pattern(1, size)
	r := register(t, a, file(t, want), size)
	q, err := b.Connect(a.Addr())
	must(t, err)
	p := q.(*Peer)
	must(t, reads(t, p, r.Remote(), 0, size, want))
	e := theEndpoint(t, p)
	e.stall = 500 * time.Millisecond // from here on nothing moves
	e.close = func() error { return errors.Join(e.q.close(), syscall.EBUSY) }
	fd, err := unix.MemfdCreate("kvfs-unclosed", unix.MFD_CLOEXEC)
	must(t, err)
	dst := os.NewFile(uintptr(fd), "memfd")
	defer dst.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	defer n.Stall(a, b)()
	err = p.Read(ctx, r.Remote(), 0, size, rdma.Dest{File: dst})
	if !errors.Is(err, rdma.ErrUnavailable) || !errors.Is(err, errUnclosed) || !errors.Is(err, syscall.EBUSY) {
		t.Errorf("read by an endpoint that does not close: %v", err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	must(t, err)
	if !bytes.Contains(maps, []byte("kvfs-unclosed")) {
		t.Error("what may still be written to is not mapped any more")
	}
}

// TestPeerCloseCounts shows that a transport knows a peer until its endpoints are closed: its own
// Close waits for them.
func TestPeerCloseCounts(t *testing.T) {
	const size = 1000
	a, b := open(t, Options{}), open(t, Options{})
	want := pattern(1, size)
	r := register(t, a, file(t, want), size)
	p := connect(t, b, a.Addr())
	must(t, reads(t, p, r.Remote(), 0, size, want))
	e := theEndpoint(t, p)
	begun, goOn, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
	e.close = func() error {
		close(begun)
		<-goOn
		return e.q.close()
	}
	go func() { // ends with goOn
		defer close(over)
		p.Close()
	}()
	<-begun
	if n := b.Stats().Peers; n != 1 {
		t.Errorf("%d peers while one is being closed", n)
	}
	close(goOn)
	<-over
	if n := b.Stats().Peers; n != 0 {
		t.Errorf("%d peers after it was closed", n)
	}
}

// TestLimitTold shows the error for a peer that does not answer to connections: it names the time
// of the wait.
func TestLimitTold(t *testing.T) {
	tr := open(t, Options{StallTimeout: time.Hour})
	a, err := parseAddress(tr.Addr())
	must(t, err)
	a.rails[0].endpoint[2], a.rails[0].endpoint[3] = 0, 9 // discard: nobody listens
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := connect(t, tr, a.String()).Probe(ctx); err == nil || !strings.Contains(err.Error(), connectTime.String()) {
		t.Errorf("probe of nobody: %v", err)
	}
}
