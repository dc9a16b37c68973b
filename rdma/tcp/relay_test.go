package tcp

import (
	"net"
	"sync"
	"testing"

	"github.com/kvfs/kvfs/rdma"
)

// relays are the relays in front of the transports of a test, by address.
type relays struct {
	mu sync.Mutex
	of map[string]*relay
}

func (n *relays) add(r *relay) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.of[r.addr()] = r
}

// each calls f for the relays of both.
func (n *relays) each(a, b rdma.Transport, f func(*relay)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, t := range []rdma.Transport{a, b} {
		f(n.of[t.Addr()])
	}
}

// relay passes connections on to a transport.
type relay struct {
	listener net.Listener
	to       string // set by serve
	wg       sync.WaitGroup

	mu     sync.Mutex
	moves  *sync.Cond // of mu: still or closed has changed
	still  bool
	isCut  bool
	closed bool
	conns  map[net.Conn]struct{}
}

func newRelay(tb testing.TB) *relay {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	r := &relay{listener: l, conns: map[net.Conn]struct{}{}}
	r.moves = sync.NewCond(&r.mu)
	tb.Cleanup(r.close)
	return r
}

// serve begins to pass connections on.
func (r *relay) serve(to string) {
	r.to = to
	r.wg.Go(r.accept) // ends with close
}

func (r *relay) addr() string { return r.listener.Addr().String() }

func (r *relay) accept() {
	for {
		in, err := r.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", r.to)
		if err != nil || !r.keep(in, out) {
			in.Close()
			if err == nil {
				out.Close()
			}
			continue
		}
		r.wg.Go(func() { r.pass(in, out) }) // both end with a connection
		r.wg.Go(func() { r.pass(out, in) })
	}
}

// keep notes connections, unless the relay is cut.
func (r *relay) keep(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isCut || r.closed {
		return false
	}
	for _, c := range conns {
		r.conns[c] = struct{}{}
	}
	return true
}

// pass moves bytes as long as both connections last, and while the relay is not stalled.
func (r *relay) pass(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil || !r.flows() {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// flows waits until the relay is not stalled. It returns false if the relay is closed.
func (r *relay) flows() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.still && !r.closed {
		r.moves.Wait()
	}
	return !r.closed
}

func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isCut = true
	for c := range r.conns {
		c.Close()
	}
	clear(r.conns)
}

func (r *relay) heal() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isCut = false
}

func (r *relay) stall() { r.setStill(true) }

func (r *relay) resume() { r.setStill(false) }

func (r *relay) setStill(still bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.still = still
	r.moves.Broadcast()
}

// close ends all connections.
func (r *relay) close() {
	r.listener.Close()
	r.mu.Lock()
	r.closed = true
	r.moves.Broadcast()
	r.mu.Unlock()
	r.cut()
	r.wg.Wait()
}
