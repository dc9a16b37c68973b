package publish

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/kvfs/kvfs/tiers/block"
)

// Limits of a socket.
const (
	maxConns         = 256
	maxAddrConns     = maxConns / 2     // from one address
	idleTimeout      = 30 * time.Second // for a subscriber to subscribe
	rarePeriod       = 10 * time.Second // between two equal log lines that others cause
	handshakeTimeout = 10 * time.Second
	writeTimeout     = 30 * time.Second // for a peer to take some bytes
	closeTimeout     = time.Second      // for a peer to hang up after the last message
	acceptRetry      = 100 * time.Millisecond
)

// server is a ZeroMQ socket that is bound, or connects to others, or both.
type server struct {
	ln       net.Listener // nil: not bound
	typ      string       // of this socket
	accepted []string     // types of sockets that may connect
	serve    func(c *conn)
	log      *zap.Logger
	rarely   *zap.Logger   // for messages that others can cause as often as they like
	refused  atomic.Uint64 // connections beyond the limits
	idle     atomic.Int64  // idleTimeout, except in tests
	done     chan struct{} // closed by stop
	wg       sync.WaitGroup

	mu struct {
		sync.Mutex
		stopped bool
		conns   map[*conn]struct{}
		came    map[string]int // incoming connections by address
		total   int            // of the incoming connections
	}
}

// conn is a connection to a peer.
type conn struct {
	net.Conn
	r *bufio.Reader
	w *bufio.Writer // of writes with a deadline

	to      string // the endpoint that this server connected to; empty: incoming
	from    string // the address that it came from
	greeted bool   // the handshake is done; guarded by server.mu
}

// deadlineWriter fails writes if the peer takes nothing for writeTimeout.
type deadlineWriter struct{ net.Conn }

func (w deadlineWriter) Write(p []byte) (int, error) {
	if err := w.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return w.Conn.Write(p)
}

// newServer makes a socket on ln, which may be nil. The caller must start it.
func newServer(ln net.Listener, typ string, accepted []string, log *zap.Logger) *server {
	s := &server{ln: ln, typ: typ, accepted: accepted, log: log, done: make(chan struct{})}
	s.rarely = log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core { return zapcore.NewSamplerWithOptions(c, rarePeriod, 1, 0) }))
	s.idle.Store(int64(idleTimeout))
	s.mu.conns, s.mu.came = make(map[*conn]struct{}), make(map[string]int)
	return s
}

// start accepts connections and connects to endpoints. Connections run serve once the handshake is
// done. The connection is closed when serve returns, and fails once the server is stopped.
func (s *server) start(serve func(c *conn), endpoints ...string) {
	s.serve = serve
	if s.ln != nil {
		s.wg.Add(1)
		go s.accept() // ends when refuse closes the listener
	}
	for _, endpoint := range endpoints {
		s.wg.Add(1)
		go s.connect(endpoint) // ends at refuse, when its connection has
	}
}

func (s *server) accept() {
	defer s.wg.Done()
	for {
		nc, err := s.ln.Accept()
		if err == nil {
			if c := s.add(nc, ""); c != nil {
				go s.run(c) // ends when the peer hangs up or misbehaves, or at stop
			}
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		s.log.Warn("accepting a connection failed", zap.String("socket", s.typ), zap.Error(err))
		t := time.NewTimer(acceptRetry) // out of file descriptors, most likely
		select {
		case <-t.C:
		case <-s.done:
			t.Stop()
			return
		}
	}
}

// add makes a connection, incoming or to an endpoint. It returns nil if there are too many incoming
// ones, or the server is stopped. Otherwise the caller must run it.
func (s *server) add(nc net.Conn, to string) *conn {
	c := &conn{Conn: nc, to: to, r: bufio.NewReaderSize(nc, 1<<10), w: bufio.NewWriterSize(deadlineWriter{nc}, 16<<10)}
	if to == "" {
		c.from = nc.RemoteAddr().String() // "" or "@" for a Unix socket: no limit by address
		if host, _, err := net.SplitHostPort(c.from); err == nil {
			c.from = host
		}
	}
	s.mu.Lock()
	stopped := s.mu.stopped
	full := to == "" && (s.mu.total >= maxConns || nc.RemoteAddr().Network() == "tcp" && s.mu.came[c.from] >= maxAddrConns)
	if !stopped && !full {
		s.mu.conns[c] = struct{}{}
		s.countLocked(c, 1)
		s.wg.Add(1)
	}
	s.mu.Unlock()
	if !stopped && !full {
		return c
	}
	if !stopped { // counted before the client sees its end
		s.rarely.Warn("connection refused: too many connections", zap.String("socket", s.typ), zap.String("from", c.from),
			zap.Int("max", maxConns), zap.Int("max_of_one_address", maxAddrConns), zap.Uint64("refused", s.refused.Add(1)))
	}
	nc.Close()
	return nil
}

// countLocked counts an incoming connection, or its end.
func (s *server) countLocked(c *conn, by int) {
	if c.to != "" {
		return
	}
	s.mu.total += by
	if s.mu.came[c.from] += by; s.mu.came[c.from] == 0 {
		delete(s.mu.came, c.from)
	}
}

// run serves a connection until it ends. It fails if the handshake failed.
func (s *server) run(c *conn) error {
	defer s.wg.Done()
	defer func() {
		c.Close()
		s.mu.Lock()
		delete(s.mu.conns, c)
		s.countLocked(c, -1)
		s.mu.Unlock()
	}()
	err := c.SetDeadline(time.Now().Add(handshakeTimeout))
	if err == nil {
		err = handshake(c.Conn, c.r, s.typ, s.accepted)
	}
	if err == nil {
		err = c.SetDeadline(time.Time{})
	}
	if err != nil {
		s.log.Debug("handshake failed", zap.String("socket", s.typ), zap.Error(err))
		return err
	}
	s.mu.Lock()
	c.greeted = !s.mu.stopped
	s.mu.Unlock()
	if c.greeted {
		if c.to != "" {
			s.log.Info("connected to a subscriber", zap.String("endpoint", c.to))
		}
		s.serve(c)
	}
	return nil
}

// refuse closes the listener, and connections without a complete handshake.
func (s *server) refuse() {
	s.mu.Lock()
	stopped := s.mu.stopped
	s.mu.stopped = true
	for c := range s.mu.conns {
		if !c.greeted {
			c.Close()
		}
	}
	s.mu.Unlock()
	if !stopped {
		close(s.done)
		if s.ln != nil {
			s.ln.Close()
		}
	}
}

// stop closes the listener and all connections and waits until their goroutines have ended.
func (s *server) stop() {
	s.refuse()
	s.mu.Lock()
	for c := range s.mu.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// endpoint returns the address of the socket; "" if it is not bound.
func (s *server) endpoint() string {
	if s.ln == nil {
		return ""
	}
	a := s.ln.Addr()
	if a.Network() == "unix" {
		return "ipc://" + a.String()
	}
	return a.Network() + "://" + a.String()
}

// listen binds an endpoint, tcp://host:port, with any host or *, or ipc://path.
func listen(ctx context.Context, endpoint string) (net.Listener, error) {
	network, address, err := parseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, network, address)
	if err != nil && network == "unix" && errors.Is(err, syscall.EADDRINUSE) {
		if info, no := os.Lstat(address); no == nil && info.Mode().Type() != os.ModeSocket {
			err = fmt.Errorf("%s exists and is not a socket: name another path, or remove it", address)
		} else if abandoned(address) {
			if err = os.Remove(address); err == nil {
				ln, err = lc.Listen(ctx, network, address)
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("bind %s: %w", endpoint, err)
	}
	return ln, nil
}

// abandoned reports whether a Unix socket is left from a process that has ended.
func abandoned(path string) bool {
	c, err := net.Dial("unix", path)
	if err == nil {
		c.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// parseEndpoint returns the network and the address of an endpoint in the way of package net.
func parseEndpoint(endpoint string) (network, address string, err error) {
	if path, ok := strings.CutPrefix(endpoint, "ipc://"); ok && path != "" {
		return "unix", path, nil
	}
	address, ok := strings.CutPrefix(endpoint, "tcp://")
	host, port, err := net.SplitHostPort(address)
	if !ok || err != nil || port == "" {
		return "", "", fmt.Errorf("endpoint %q: want tcp://HOST:PORT or ipc://PATH: %w", endpoint, block.ErrInvalid)
	}
	if host == "*" {
		host = ""
	}
	if port == "*" {
		port = "0"
	}
	return "tcp", net.JoinHostPort(host, port), nil
}
