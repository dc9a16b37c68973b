package rdmatest

import (
	"net"
	"sync"
	"testing"

	"github.com/kvfs/kvfs/rdma"
)

// Relays are the relays in front of the transports of a test. Cut and Stall are those of a Harness.
type Relays struct {
	mu sync.Mutex
	of map[string]*Relay // by the address of the transport
}

// Relay returns the relay in front of the transport at addr; nil: there is none.
func (n *Relays) Relay(addr string) *Relay {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.of[addr]
}

// Add puts r in front of the transport at addr.
func (n *Relays) Add(addr string, r *Relay) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of == nil {
		n.of = map[string]*Relay{}
	}
	n.of[addr] = r
}

// Cut closes the connections to both transports, and refuses others until heal.
func (n *Relays) Cut(a, b rdma.Transport) (heal func()) {
	n.each(a, b, func(r *Relay) { r.setCut(true) })
	return func() { n.each(a, b, func(r *Relay) { r.setCut(false) }) }
}

// Stall holds back the bytes to and from both transports until resume.
func (n *Relays) Stall(a, b rdma.Transport) (resume func()) {
	n.each(a, b, func(r *Relay) { r.setStill(true) })
	return func() { n.each(a, b, func(r *Relay) { r.setStill(false) }) }
}

func (n *Relays) each(a, b rdma.Transport, f func(*Relay)) {
	for _, t := range []rdma.Transport{a, b} {
		if r := n.Relay(t.Addr()); r != nil {
			f(r)
		}
	}
}

// Relay passes TCP connections on.
type Relay struct {
	listener net.Listener
	to       string // set by Serve
	wg       sync.WaitGroup

	mu     sync.Mutex
	moves  *sync.Cond // of mu: still or closed has changed
	still  bool
	isCut  bool
	closed bool
	conns  map[net.Conn]struct{}
}

// NewRelay returns a relay that listens on host. It is closed when the test ends.
func NewRelay(tb testing.TB, host string) *Relay {
	tb.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		tb.Fatal(err)
	}
	r := &Relay{listener: l, conns: map[net.Conn]struct{}{}}
	r.moves = sync.NewCond(&r.mu)
	tb.Cleanup(r.close)
	return r
}

// Serve begins to pass connections on.
func (r *Relay) Serve(to string) {
	r.to = to
	r.wg.Go(r.accept) // ends with close
}

// Addr returns the address at which the relay listens.
func (r *Relay) Addr() *net.TCPAddr { return r.listener.Addr().(*net.TCPAddr) }

func (r *Relay) accept() {
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
func (r *Relay) keep(conns ...net.Conn) bool {
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
func (r *Relay) pass(from, to net.Conn) {
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
func (r *Relay) flows() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.still && !r.closed {
		r.moves.Wait()
	}
	return !r.closed
}

func (r *Relay) setCut(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isCut = cut
	if cut {
		for c := range r.conns {
			c.Close()
		}
		clear(r.conns)
	}
}

func (r *Relay) setStill(still bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.still = still
	r.moves.Broadcast()
}

// close ends all connections.
func (r *Relay) close() {
	r.listener.Close()
	r.mu.Lock()
	r.closed = true
	r.moves.Broadcast()
	r.mu.Unlock()
	r.setCut(true)
	r.wg.Wait()
}
