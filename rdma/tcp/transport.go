package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/kvfs/kvfs/rdma"
)

// rarePeriod is the time between two equal log lines that strangers cause.
const rarePeriod = 10 * time.Second

// proto is Caps.Proto. The greeting settles versions within it.
const proto = "tcp"

// Transport implements rdma.Transport over TCP. Every Peer of it is an rdma.Getter.
type Transport struct {
	opts     Options
	listener net.Listener
	addr     string
	counters counters
	chunks   chunks
	rate     pacer       // nil: no limit
	rarely   *zap.Logger // for messages that strangers can cause as often as they like
	source   atomic.Pointer[rdma.Source]
	patience rdma.Patience // of lend
	confirms rdma.Patience // of idle connections

	// ctx ends when Close begins. It is the parent of Lends and dials.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // the acceptor, the served connections, calls of peers

	mu struct {
		sync.Mutex
		closed  bool
		serving map[*session]struct{}
		// The sessions that have not greeted yet, the earliest first, and the number of those that
		// have.
		greeting []*session
		greeted  int
		peers    map[*Peer]struct{}
		regions  map[regionKey]*region
	}
}

// Open listens and begins to serve.
func Open(opts Options) (*Transport, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	t := &Transport{opts: opts, rarely: opts.Logger.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, rarePeriod, 1, 0)
	}))}
	t.patience.Time, t.confirms.Time = lendPatience, confirmDelay
	if opts.Rate > 0 {
		t.rate = rate.NewLimiter(rate.Limit(opts.Rate), rateTurn)
	}
	t.SetSource(opts.Source)
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.mu.serving = map[*session]struct{}{}
	t.mu.peers = map[*Peer]struct{}{}
	t.mu.regions = map[regionKey]*region{}

	lc := net.ListenConfig{Control: t.control, KeepAlive: opts.StallTimeout}
	t.listener, err = lc.Listen(t.ctx, "tcp", opts.Bind)
	if err != nil {
		t.cancel()
		return nil, fmt.Errorf("tcp: %w", err)
	}
	t.addr = opts.Advertise
	if t.addr == "" {
		t.addr = t.listener.Addr().String()
	}
	t.wg.Add(1)
	go t.accept() // ends when Close closes the listener
	return t, nil
}

// SetSource changes the source of blocks by name; nil: none, and each Get is told that this node is
// busy. It affects Lends that begin after it.
func (t *Transport) SetSource(s rdma.Source) { t.source.Store(&s) }

// Caps implements rdma.Transport.
func (t *Transport) Caps() rdma.Caps {
	return rdma.Caps{Proto: proto, Get: true, Encrypted: t.opts.ServerTLS != nil}
}

// Addr implements rdma.Transport.
func (t *Transport) Addr() string { return t.addr }

// Connect implements rdma.Transport. The Peer is a *Peer.
func (t *Transport) Connect(addr string) (rdma.Peer, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("tcp: connect: %w", err)
	}
	if host == "" || port == "" {
		return nil, fmt.Errorf("tcp: connect: address %q lacks host or port", addr)
	}
	p := newPeer(t, addr)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return nil, fmt.Errorf("tcp: connect to %s: %w", addr, rdma.ErrClosed)
	}
	t.mu.peers[p] = struct{}{}
	return p, nil
}

// Register implements rdma.Transport.
func (t *Transport) Register(file *os.File, size int64) (rdma.Region, error) {
	r, err := newRegion(t, file, size)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return nil, fmt.Errorf("tcp: register: %w", rdma.ErrClosed)
	}
	t.mu.regions[r.key] = r
	t.counters.regions.Add(1)
	return r, nil
}

// Close implements rdma.Transport.
func (t *Transport) Close() error {
	t.mu.Lock()
	first := !t.mu.closed
	t.mu.closed = true
	var peers []*Peer
	for p := range t.mu.peers {
		peers = append(peers, p)
	}
	for s := range t.mu.serving {
		s.cut()
	}
	t.mu.Unlock()

	var err error
	if first {
		t.cancel()
		err = t.listener.Close()
	}
	for _, p := range peers {
		p.Close()
	}
	t.wg.Wait()
	return err
}

// enter counts a call of a peer, so that Close can wait for it.
func (t *Transport) enter() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return rdma.ErrClosed
	}
	t.wg.Add(1)
	return nil
}

// control sets up a socket before it connects or listens. Accepted sockets inherit it.
func (t *Transport) control(_, _ string, c syscall.RawConn) error {
	if t.opts.Congestion == "" {
		return nil
	}
	var err error
	ctl := c.Control(func(fd uintptr) {
		err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, t.opts.Congestion)
	})
	if err = errors.Join(ctl, err); err != nil {
		return fmt.Errorf("congestion control %s: %w", t.opts.Congestion, err)
	}
	return nil
}

// noteProtocol counts and logs a violation of the protocol by a peer.
func (t *Transport) noteProtocol(addr string, err error) {
	t.counters.protocolErrors.Add(1)
	t.opts.Logger.Warn("bulk connection cut", zap.String("peer", addr), zap.Error(err))
}
