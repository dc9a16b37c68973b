//go:build ofi && cgo

package fabric

import (
	"encoding/binary"
	"net"
	"sync"
	"testing"

	"github.com/kvfs/kvfs/rdma"
)

// relays stand between transports over sockets. A client is led to a relay instead of the peer, and
// the relay can be cut or stalled.
type relays struct {
	tb testing.TB

	mu  sync.Mutex
	all map[string]*relay // by the address of their target
}

// relayed is a Transport whose connections go through relays.
type relayed struct {
	*Transport
	net *relays
}

// Connect implements rdma.Transport.
func (r *relayed) Connect(addr string) (rdma.Peer, error) {
	a, err := parseAddress(addr)
	if err != nil {
		return nil, err
	}
	a.rails[0].endpoint = r.net.to(addr, a.rails[0].endpoint)
	return r.Transport.Connect(a.String())
}

// to returns the address of the relay to addr, whose socket address is endpoint, IPv4.
func (n *relays) to(addr string, endpoint []byte) []byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.all[addr]
	if r == nil {
		target := &net.TCPAddr{IP: net.IP(endpoint[4:8]), Port: int(binary.BigEndian.Uint16(endpoint[2:]))}
		l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: target.IP})
		if err != nil {
			n.tb.Fatal(err)
		}
		r = &relay{listener: l, target: target.String(), moves: make(chan struct{}), conns: map[net.Conn]struct{}{}}
		close(r.moves)
		n.all[addr] = r
		r.wg.Go(r.accept) // ends with close of the listener
		n.tb.Cleanup(r.close)
	}
	via := append([]byte{}, endpoint...)
	binary.BigEndian.PutUint16(via[2:], uint16(r.listener.Addr().(*net.TCPAddr).Port))
	return via
}

// both applies f to the relays to a and b.
func (n *relays) both(a, b rdma.Transport, f func(*relay)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, t := range []rdma.Transport{a, b} {
		if r := n.all[t.Addr()]; r != nil {
			f(r)
		}
	}
}

func (n *relays) cut(a, b rdma.Transport) (heal func()) {
	n.both(a, b, func(r *relay) { r.setCut(true) })
	return func() { n.both(a, b, func(r *relay) { r.setCut(false) }) }
}

func (n *relays) stall(a, b rdma.Transport) (resume func()) {
	n.both(a, b, (*relay).stall)
	return func() { n.both(a, b, (*relay).resume) }
}

// relay moves bytes between its clients and target.
type relay struct {
	listener net.Listener
	target   string
	wg       sync.WaitGroup

	mu    sync.Mutex
	isCut bool
	moves chan struct{} // closed while bytes move
	conns map[net.Conn]struct{}
}

func (r *relay) accept() {
	for {
		c, err := r.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp4", r.target)
		if err != nil || !r.add(c, far) {
			c.Close()
			if err == nil {
				far.Close()
			}
			continue
		}
		r.wg.Go(func() { r.move(c, far) }) // both end with either connection
		r.wg.Go(func() { r.move(far, c) })
	}
}

func (r *relay) add(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isCut {
		return false
	}
	for _, c := range conns {
		r.conns[c] = struct{}{}
	}
	return true
}

func (r *relay) move(to, from net.Conn) {
	defer func() {
		to.Close()
		from.Close()
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.conns, from)
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		r.mu.Lock()
		moves := r.moves
		r.mu.Unlock()
		<-moves
		if _, werr := to.Write(buf[:n]); werr != nil || err != nil {
			return
		}
	}
}

func (r *relay) setCut(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isCut = cut
	if cut {
		for c := range r.conns {
			c.Close()
		}
	}
}

func (r *relay) stall() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.moves = make(chan struct{})
}

func (r *relay) resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.moves:
	default:
		close(r.moves)
	}
}

func (r *relay) close() {
	r.listener.Close()
	r.resume()
	r.setCut(true)
	r.wg.Wait()
}
