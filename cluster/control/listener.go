package control

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/peer"
)

const (
	// maxConns bounds the connections of the control channel. A peer needs one.
	maxConns = 1 << 14

	// strangeShare is the part of the connections on which no peer has made a call yet, and maxStrange their number.
	strangeShare = 8
	maxStrange   = 1024
)

// listener bounds the connections of the control channel and keeps track of each. A call marks
// a connection as a peer's, and Options.Closed hears of its end. Of those on which no peer has
// made a call there are fewer: a new one takes the place of the oldest on which nothing came, else of the oldest.
// A peer speaks at once, so those that do not keep no peer out.
type listener struct {
	net.Listener
	v    *Server
	once sync.Once
	err  error
	mu   struct {
		sync.Mutex
		conns     int
		strangers []*Conn // the oldest first
	}
}

func newListener(l net.Listener, v *Server) *listener { return &listener{Listener: l, v: v} }

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		s := &Conn{Conn: c, l: l}
		// A peer calls soon after it connects. A stranger may only keep the connection open.
		s.limit = time.AfterFunc(time.Hour, func() {
			if !s.friend.Load() {
				s.Close()
			}
		})
		ok, instead := l.enter(s)
		if instead != nil {
			instead.Close()
		}
		if ok {
			s.limit.Reset(l.v.o.Stranger) // not before limit is set
			return s, nil
		}
		s.limit.Stop()
		l.v.o.Counters.TooMany.Add(1)
		c.Close()
	}
}

// enter counts a connection. It returns the one to close in its stead, if any, and false if there is no place.
func (l *listener) enter(s *Conn) (ok bool, instead *Conn) {
	most := l.v.o.MaxConns
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.mu.strangers); n > 0 && (n >= min(max(1, most/strangeShare), maxStrange) || l.mu.conns >= most) {
		at := max(0, slices.IndexFunc(l.mu.strangers, func(c *Conn) bool { return !c.spoke.Load() }))
		instead = l.mu.strangers[at]
		l.leaveLocked(instead)
	}
	if l.mu.conns >= most {
		return false, instead
	}
	l.mu.conns++
	l.mu.strangers = append(l.mu.strangers, s)
	return true, instead
}

// leaveLocked undoes enter, once.
func (l *listener) leaveLocked(c *Conn) {
	if c.left {
		return
	}
	c.left = true
	l.mu.conns--
	l.knownLocked(c)
}

// knownLocked takes a connection out of those of strangers.
func (l *listener) knownLocked(c *Conn) {
	if at := slices.Index(l.mu.strangers, c); at >= 0 {
		l.mu.strangers = slices.Delete(l.mu.strangers, at, at+1)
	}
}

// Close implements net.Listener. The server calls it a second time; that call does nothing.
func (l *listener) Close() error {
	l.once.Do(func() { l.err = l.Listener.Close() })
	return l.err
}

func (l *listener) open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.conns
}

// Conn is one connection of a Server.
type Conn struct {
	net.Conn
	l      *listener
	friend atomic.Bool // a peer made a call on it
	spoke  atomic.Bool // something came on it
	closed atomic.Bool
	once   sync.Once
	limit  *time.Timer // bounds the time until the first call of a peer
	left   bool        // it is not counted any more; guarded by l.mu
}

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.spoke.Load() {
		c.spoke.Store(true)
	}
	return n, err
}

// known notes that a peer made a call on a connection.
func (c *Conn) known() {
	if c == nil || c.friend.Swap(true) {
		return
	}
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.l.knownLocked(c)
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.once.Do(func() {
		c.limit.Stop()
		c.closed.Store(true)
		c.l.mu.Lock()
		c.l.leaveLocked(c)
		c.l.mu.Unlock()
		if !c.friend.Load() {
			c.l.v.o.Counters.Strangers.Add(1)
		}
		c.l.v.o.Closed(c)
	})
	return c.Conn.Close()
}

// Closed reports whether the connection has been closed.
func (c *Conn) Closed() bool { return c.closed.Load() }

// RemoteAddr implements net.Conn. A call finds its connection by this address.
func (c *Conn) RemoteAddr() net.Addr { return connAddr{c.Conn.RemoteAddr(), c} }

type connAddr struct {
	net.Addr
	conn *Conn
}

// ConnOf returns the connection of a call, or nil if the call did not come over the network.
func ConnOf(ctx context.Context) *Conn {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return nil
	}
	a, _ := p.Addr.(connAddr)
	return a.conn
}
