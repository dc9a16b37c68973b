// Package simnet is the network of a simulated cluster: all nodes are in one process, and the clock is that of a bubble of
// testing/synctest. It carries memberlist's packets and streams, and the connections of the control channel.
//
//	net := simnet.New()
//	host := net.Host("")            // memberlist's transport; also listens and dials
//	net.Cut(func(from, to string) bool { ... })
package simnet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// Ports of the hosts.
const (
	gossipPort  = 7946
	controlPort = 7947
)

var errUnreachable = errors.New("no answer")

// Net connects hosts. Its methods may be called in parallel.
type Net struct {
	mu struct {
		sync.Mutex
		hosts map[netip.Addr]*Host
		last  uint16
		cut   func(from, to string) bool          // nil: nothing is cut
		delay func(from, to string) time.Duration // nil: there is none
		news  chan struct{}                       // closed when cut changes
	}
}

// New returns a network without hosts.
func New() *Net {
	s := &Net{}
	s.mu.hosts, s.mu.news = map[netip.Addr]*Host{}, make(chan struct{})
	return s
}

// Host is one machine: memberlist's transport, and the network of a control channel.
type Host struct {
	net     *Net
	addr    netip.Addr
	packets chan *memberlist.Packet
	streams chan net.Conn
	control atomic.Pointer[listener]

	received atomic.Uint64
}

var _ memberlist.NodeAwareTransport = (*Host)(nil)

// Host adds a host. With the gossip address of a former one it takes its place.
func (s *Net) Host(addr string) *Host {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ip netip.Addr
	if addr == "" {
		s.mu.last++
		ip = netip.AddrFrom4([4]byte{10, 0, byte(s.mu.last >> 8), byte(s.mu.last)})
	} else {
		ip = netip.MustParseAddrPort(addr).Addr()
	}
	// As many packets as some milliseconds bring; more are lost, as they would be.
	h := &Host{net: s, addr: ip, packets: make(chan *memberlist.Packet, 256), streams: make(chan net.Conn, 128)}
	s.mu.hosts[ip] = h
	return h
}

// Cut makes a partition: what cut says goes nowhere, until the next call. It gets gossip addresses, or for control channels those
// of both hosts' channels. Connections stay open, and go on afterwards.
func (s *Net) Cut(cut func(from, to string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.cut = cut
	close(s.mu.news)
	s.mu.news = make(chan struct{})
}

// Delay says how long packets and the bytes of control channels are under way. It gets gossip addresses.
func (s *Net) Delay(delay func(from, to string) time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.delay = delay
}

// route returns the host at an address, nil if nothing gets there, and how long that takes.
func (s *Net) route(from *Host, addr string) (*Host, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, err := netip.ParseAddrPort(addr)
	to := s.mu.hosts[at.Addr()]
	if err != nil || to == nil || s.mu.cut != nil && s.mu.cut(from.at(at.Port()), addr) {
		return nil, 0
	}
	return to, s.delayLocked(from, to)
}

func (s *Net) delayLocked(from, to *Host) time.Duration {
	if s.mu.delay == nil {
		return 0
	}
	return s.mu.delay(from.Addr(), to.Addr())
}

// reaches waits until the control channels of two hosts are not cut. It returns how long bytes are under way.
func (s *Net) reaches(from, to *Host) time.Duration {
	for {
		s.mu.Lock()
		news, delay := s.mu.news, s.delayLocked(from, to)
		cut := s.mu.cut != nil && s.mu.cut(from.ControlAddr(), to.ControlAddr())
		s.mu.Unlock()
		if !cut {
			return delay
		}
		<-news
	}
}

// Addr returns the gossip address.
func (h *Host) Addr() string { return h.at(gossipPort) }

// ControlAddr returns the address for Listen.
func (h *Host) ControlAddr() string { return h.at(controlPort) }

func (h *Host) at(port uint16) string { return netip.AddrPortFrom(h.addr, port).String() }

// Received returns the bytes of packets and control channels that have come.
func (h *Host) Received() uint64 { return h.received.Load() }

// FinalAdvertiseAddr implements memberlist.Transport.
func (h *Host) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return h.addr.AsSlice(), gossipPort, nil
}

// WriteTo implements memberlist.Transport.
func (h *Host) WriteTo(b []byte, addr string) (time.Time, error) {
	if to, delay := h.net.route(h, addr); to != nil {
		from := net.UDPAddrFromAddrPort(netip.AddrPortFrom(h.addr, gossipPort))
		p := &memberlist.Packet{Buf: slices.Clone(b), From: from, Timestamp: time.Now().Add(delay)}
		if delay == 0 {
			to.take(p)
		} else {
			time.AfterFunc(delay, func() { to.take(p) })
		}
	}
	return time.Now(), nil
}

func (h *Host) take(p *memberlist.Packet) {
	select {
	case h.packets <- p:
		h.received.Add(uint64(len(p.Buf)))
	default:
	}
}

// DialTimeout implements memberlist.Transport.
func (h *Host) DialTimeout(addr string, _ time.Duration) (net.Conn, error) {
	to, _ := h.net.route(h, addr)
	if to == nil {
		return nil, errUnreachable
	}
	if back, _ := h.net.route(to, h.Addr()); back != h {
		return nil, errUnreachable // a stream needs both ways
	}
	mine, theirs := net.Pipe()
	select {
	case to.streams <- theirs:
		return mine, nil
	default:
		return nil, errUnreachable
	}
}

// WriteToAddress implements memberlist.NodeAwareTransport.
func (h *Host) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return h.WriteTo(b, a.Addr)
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (h *Host) DialAddressTimeout(a memberlist.Address, d time.Duration) (net.Conn, error) {
	return h.DialTimeout(a.Addr, d)
}

// PacketCh implements memberlist.Transport.
func (h *Host) PacketCh() <-chan *memberlist.Packet { return h.packets }

// StreamCh implements memberlist.Transport.
func (h *Host) StreamCh() <-chan net.Conn { return h.streams }

// Shutdown implements memberlist.Transport: the host is gone.
func (h *Host) Shutdown() error {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	if h.net.mu.hosts[h.addr] == h {
		delete(h.net.mu.hosts, h.addr)
	}
	return nil
}

// listener takes the connections of a control channel.
type listener struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// Listen implements control.Network, for ControlAddr.
func (h *Host) Listen(context.Context, string) (net.Listener, error) {
	l := &listener{
		addr:  net.TCPAddrFromAddrPort(netip.AddrPortFrom(h.addr, controlPort)),
		conns: make(chan net.Conn), closed: make(chan struct{}),
	}
	h.control.Store(l)
	return l, nil
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Addr() net.Addr { return l.addr }
func (l *listener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }

// Dial implements control.Network. Over a cut it waits until ctx ends.
func (h *Host) Dial(ctx context.Context, addr string) (net.Conn, error) {
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	to, delay := h.net.route(h, addr)
	if to == nil {
		if h.net.has(at.Addr()) {
			<-ctx.Done()
		}
		return nil, errUnreachable
	}
	l := to.control.Load()
	if l == nil {
		return nil, errUnreachable
	}
	pause(ctx, 2*delay)
	mine, near := net.Pipe()
	far, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
	case <-l.closed:
		return nil, errUnreachable
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	go h.net.carry(h, to, near, far) // these end when one of the sides closes its end
	go h.net.carry(to, h, far, near)
	return mine, nil
}

func (s *Net) has(addr netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.hosts[addr] != nil
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// carry moves bytes from one pipe to another.
func (s *Net) carry(from, to *Host, src, dst net.Conn) {
	type chunk struct {
		bytes []byte
		sent  time.Time
	}
	under := make(chan chunk, 64)
	go func() { // ends with src
		defer close(under)
		buf := make([]byte, 32<<10)
		for {
			n, err := src.Read(buf)
			if err != nil {
				return
			}
			under <- chunk{slices.Clone(buf[:n]), time.Now()}
		}
	}()
	for c := range under {
		delay := s.reaches(from, to)
		pause(context.Background(), time.Until(c.sent.Add(delay)))
		if _, err := dst.Write(c.bytes); err != nil {
			break
		}
		to.received.Add(uint64(len(c.bytes)))
	}
	src.Close()
	dst.Close()
	for range under {
	}
}
