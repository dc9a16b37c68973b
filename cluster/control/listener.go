package control

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/peer"
)

// maxConns bounds the connections of the control channel. A peer needs one.
const maxConns = 1 << 14

// listener bounds the connections of the control channel and keeps track of each. A call marks
// a connection as a peer's, and Options.Closed hears of its end.
type listener struct {
	net.Listener
	v     *Server
	conns atomic.Int64
	once  sync.Once
	err   error
}

func newListener(l net.Listener, v *Server) *listener { return &listener{Listener: l, v: v} }

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.conns.Add(1) <= maxConns {
			s := &Conn{Conn: c, l: l}
			// A peer calls soon after it connects. A stranger may only keep the connection open.
			s.limit = time.AfterFunc(time.Hour, func() {
				if !s.friend.Load() {
					s.Close()
				}
			})
			s.limit.Reset(l.v.o.Stranger) // not before limit is set
			return s, nil
		}
		l.conns.Add(-1)
		l.v.o.Counters.TooMany.Add(1)
		c.Close()
	}
}

// Close implements net.Listener. The server calls it a second time; that call does nothing.
func (l *listener) Close() error {
	l.once.Do(func() { l.err = l.Listener.Close() })
	return l.err
}

func (l *listener) open() int { return int(l.conns.Load()) }

// Conn is one connection of a Server.
type Conn struct {
	net.Conn
	l      *listener
	friend atomic.Bool // a peer made a call on it
	closed atomic.Bool
	once   sync.Once
	limit  *time.Timer // bounds the time until the first call of a peer
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.once.Do(func() {
		c.limit.Stop()
		c.closed.Store(true)
		c.l.conns.Add(-1)
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
