package gossip

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// maxPacket is the largest accepted packet, in bytes. Members send up to packetBytes.
	maxPacket = 4096

	// maxStreams bounds the incoming streams that memberlist handles. It reads up to 20 MiB
	// from each before it checks them.
	maxStreams = 128

	// maxEntered bounds all incoming streams, including those that have not yet proved a key.
	// strangerTime bounds the time until the proof.
	maxEntered   = 256
	strangerTime = 5 * time.Second

	// maxStreamBytes bounds what is read from one stream: the 20 MiB that memberlist allows,
	// and the overhead of encryption.
	maxStreamBytes = 24 << 20

	// acceptPause is the pause after accept failed for lack of file descriptors.
	acceptPause = 100 * time.Millisecond

	// packetBuffer is the wanted receive buffer, in bytes, for bursts. The kernel may give
	// less.
	packetBuffer = 2 << 20
)

// sockets is memberlist's transport over UDP and TCP on one port. With a keyring it accepts
// only fresh input from holders of a key: see guard for packets and channel for streams. It
// does not wrap memberlist's own transport: that one takes any number of streams of any length
// from any machine, and binds IPv6 where IPv4 is asked for.
type sockets struct {
	// constant after start
	guard     *guard   // nil without keys: all input is accepted
	channel   *channel // nil without keys
	rejects   *rejects
	advertise netip.AddrPort
	tcp       *net.TCPListener
	udp       *net.UDPConn
	packets   chan *memberlist.Packet
	streams   chan net.Conn

	quit context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup // accept, receive and every welcome

	mu      sync.Mutex // guards the fields below; held for moments
	conns   map[net.Conn]struct{}
	entered int // all incoming streams
	taken   int // incoming streams that memberlist handles
	closed  bool
}

var _ memberlist.NodeAwareTransport = (*sockets)(nil)

// listen opens both sockets. It receives nothing before start.
func listen(bind netip.AddrPort, keys *Keyring, rejects *rejects) (*sockets, error) {
	t := &sockets{
		rejects: rejects,
		packets: make(chan *memberlist.Packet), streams: make(chan net.Conn),
		conns: map[net.Conn]struct{}{},
	}
	if keys != nil {
		c, err := newChannel(keys)
		if err != nil {
			return nil, err
		}
		t.guard, t.channel = newGuard(keys), c
	}
	tries := 1
	if bind.Port() == 0 {
		tries = 16 // a port that is free for TCP may be taken for UDP
	}
	var err error
	for range tries {
		if t.tcp, t.udp, err = listenBoth(bind); !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("gossip: bind: %w", err)
	}
	// Best effort: a smaller buffer loses packets in bursts, which gossip tolerates.
	_ = t.udp.SetReadBuffer(packetBuffer)
	t.quit, t.stop = context.WithCancel(context.Background())
	return t, nil
}

func listenBoth(bind netip.AddrPort) (*net.TCPListener, *net.UDPConn, error) {
	// "tcp" with an IPv4 wildcard would also listen on IPv6. "tcp6" with the IPv6 wildcard
	// would not listen on IPv4.
	family := ""
	switch {
	case bind.Addr().Is4():
		family = "4"
	case !bind.Addr().IsUnspecified():
		family = "6"
	}
	tcp, err := net.ListenTCP("tcp"+family, net.TCPAddrFromAddrPort(bind))
	if err != nil {
		return nil, nil, err
	}
	port := tcp.Addr().(*net.TCPAddr).AddrPort().Port()
	udp, err := net.ListenUDP("udp"+family, net.UDPAddrFromAddrPort(netip.AddrPortFrom(bind.Addr(), port)))
	if err != nil {
		return nil, nil, errors.Join(err, tcp.Close())
	}
	return tcp, udp, nil
}

// local returns the listening address.
func (t *sockets) local() netip.AddrPort {
	a := t.tcp.Addr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// start begins to receive.
func (t *sockets) start(advertise netip.AddrPort) {
	t.advertise = advertise
	// Both end when Shutdown closes their sockets; it waits for them.
	t.wg.Go(t.accept)
	t.wg.Go(t.receive)
}

// FinalAdvertiseAddr is of memberlist's Transport.
func (t *sockets) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.advertise.Addr().AsSlice(), int(t.advertise.Port()), nil
}

// PacketCh is of memberlist's Transport.
func (t *sockets) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh is of memberlist's Transport.
func (t *sockets) StreamCh() <-chan net.Conn { return t.streams }

// WriteTo is of memberlist's Transport.
func (t *sockets) WriteTo(b []byte, addr string) (time.Time, error) {
	return t.WriteToAddress(b, memberlist.Address{Addr: addr})
}

// WriteToAddress sends a packet. It looks up no names: members have addresses.
func (t *sockets) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	to, err := netip.ParseAddrPort(a.Addr)
	if err != nil {
		return time.Time{}, err
	}
	if t.guard != nil {
		if b = t.guard.seal(to, b); b == nil {
			return time.Now(), nil // held until the peer has answered
		}
	}
	return time.Now(), t.send(b, to)
}

func (t *sockets) send(b []byte, to netip.AddrPort) error {
	_, err := t.udp.WriteToUDPAddrPort(b, to)
	return err
}

// receive passes packets to memberlist until the socket is closed.
func (t *sockets) receive() {
	buf := make([]byte, maxPacket+1)
	for {
		n, from, err := t.udp.ReadFromUDPAddrPort(buf)
		if err != nil {
			if t.quit.Err() != nil {
				return
			}
			if !t.pause() {
				return
			}
			continue
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		if n == 0 || n > maxPacket {
			t.rejects.add("packet of no possible length", from.String())
			continue
		}
		b := append([]byte(nil), buf[:n]...)
		if t.guard != nil {
			if b = t.guarded(b, from); b == nil {
				continue
			}
		}
		p := &memberlist.Packet{Buf: b, From: net.UDPAddrFromAddrPort(from), Timestamp: time.Now()}
		select {
		case t.packets <- p:
		case <-t.quit.Done():
			return
		}
	}
}

// guarded returns the payload of a packet for memberlist. It sends the replies that the guard
// asks for.
func (t *sockets) guarded(b []byte, from netip.AddrPort) []byte {
	payload, replies, err := t.guard.open(b, from)
	if err != nil {
		t.rejects.add(fmt.Sprint(err), from.String())
	}
	for _, r := range replies {
		_ = t.send(r.packet, r.to) // packets may be lost anyway
	}
	return payload
}

// pause waits for acceptPause. It returns false if the transport ends first.
func (t *sockets) pause() bool {
	select {
	case <-time.After(acceptPause):
		return true
	case <-t.quit.Done():
		return false
	}
}

// accept accepts streams until the socket is closed.
func (t *sockets) accept() {
	for {
		c, err := t.tcp.AcceptTCP()
		if err != nil {
			if !t.pause() {
				return
			}
			continue
		}
		if !t.enter(c) {
			t.rejects.add("too many streams at a time", c.RemoteAddr().String())
			_ = c.Close()
			continue
		}
		// Ends by its deadline or when Shutdown closes the connection.
		t.wg.Go(func() { t.welcome(c) })
	}
}

// enter counts a new incoming stream. It returns false if there are too many.
func (t *sockets) enter(c net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.entered >= maxEntered {
		return false
	}
	t.entered++
	t.conns[c] = struct{}{}
	return true
}

// settle counts a stream that memberlist is to handle. It returns false if there are too many.
func (t *sockets) settle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken >= maxStreams {
		return false
	}
	t.taken++
	return true
}

// forget removes a stream from the counts.
func (t *sockets) forget(c net.Conn, entered, taken int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
	t.entered -= entered
	t.taken -= taken
}

// welcome passes an incoming stream to memberlist. If there are keys, the other side must
// prove one first.
func (t *sockets) welcome(raw net.Conn) {
	conn, err := raw, error(nil)
	if t.channel != nil {
		conn, err = t.channel.accept(raw, strangerTime)
		if err != nil && t.quit.Err() == nil {
			t.rejects.add(fmt.Sprint(err), raw.RemoteAddr().String())
		}
	}
	if err != nil || !t.settle() {
		t.forget(raw, 1, 0)
		_ = raw.Close()
		return
	}
	s := &stream{Conn: conn, left: maxStreamBytes, done: sync.OnceFunc(func() { t.forget(raw, 1, 1) })}
	select {
	case t.streams <- s:
	case <-t.quit.Done():
		_ = s.Close()
	}
}

// DialTimeout is of memberlist's Transport.
func (t *sockets) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// DialAddressTimeout opens a stream to a node. If there are keys, both sides prove that they
// hold one. It ends early if the transport ends.
func (t *sockets) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	if _, err := netip.ParseAddrPort(a.Addr); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(timeout)
	d := net.Dialer{Deadline: deadline}
	raw, err := d.DialContext(t.quit, "tcp", a.Addr)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	closed := t.closed
	if !closed {
		t.conns[raw] = struct{}{}
	}
	t.mu.Unlock()
	conn := raw
	if closed {
		err = net.ErrClosed
	} else if t.channel != nil {
		conn, err = t.channel.dial(raw, time.Until(deadline))
	}
	if err != nil {
		t.forget(raw, 0, 0)
		return nil, errors.Join(err, raw.Close())
	}
	return &stream{Conn: conn, left: maxStreamBytes, done: sync.OnceFunc(func() { t.forget(raw, 0, 0) })}, nil
}

// Shutdown closes everything and waits until nothing runs. It may be called twice.
func (t *sockets) Shutdown() error {
	t.mu.Lock()
	first := !t.closed
	t.closed = true
	conns := t.conns
	t.conns = map[net.Conn]struct{}{}
	t.mu.Unlock()
	var err error
	if first {
		t.stop()
		err = errors.Join(t.tcp.Close(), t.udp.Close())
		for c := range conns {
			_ = c.Close() // its user closes it too
		}
	}
	t.wg.Wait()
	return err
}

// stream is a connection with a limit on the bytes read.
type stream struct {
	net.Conn
	left int64 // used by the one reader
	done func()
}

var errTooLong = errors.New("stream is too long")

// Read fails beyond the limit.
func (s *stream) Read(p []byte) (int, error) {
	if s.left <= 0 {
		return 0, errTooLong
	}
	n, err := s.Conn.Read(p[:min(int64(len(p)), s.left)])
	s.left -= int64(n)
	return n, err
}

// Close may be called twice.
func (s *stream) Close() error {
	s.done()
	return s.Conn.Close()
}
