package cluster

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/peer"
)

// maxConns bounds the connections of the control channel. A peer needs one.
const maxConns = 4096

// listener bounds the connections, and follows each of them: what was done on it tells
// friend from stranger, and what it has leased ends with it.
type listener struct {
	net.Listener
	n     *Node
	conns atomic.Int64
	once  sync.Once
	err   error
}

func newListener(l net.Listener, n *Node) *listener { return &listener{Listener: l, n: n} }

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.conns.Add(1) <= maxConns {
			s := &serverConn{Conn: c, l: l}
			// A peer that connects calls at once. Who only keeps the connection open is none.
			s.limit = time.AfterFunc(time.Hour, func() {
				if !s.friend.Load() {
					s.Close()
				}
			})
			s.limit.Reset(l.n.o.tuning.stranger) // not before limit is set
			return s, nil
		}
		l.conns.Add(-1)
		l.n.counters.tooMany.Add(1)
		c.Close()
	}
}

// Close implements net.Listener. A second call does nothing: the server closes it, too.
func (l *listener) Close() error {
	l.once.Do(func() { l.err = l.Listener.Close() })
	return l.err
}

func (l *listener) open() int { return int(l.conns.Load()) }

// serverConn is one connection of the control channel.
type serverConn struct {
	net.Conn
	l      *listener
	friend atomic.Bool // a peer made a call on it
	closed atomic.Bool
	once   sync.Once
	limit  *time.Timer // of the time in which it has to prove a friend
}

// Close implements net.Conn.
func (c *serverConn) Close() error {
	c.once.Do(func() {
		c.limit.Stop()
		c.closed.Store(true)
		c.l.conns.Add(-1)
		if !c.friend.Load() {
			c.l.n.counters.strangers.Add(1)
		}
		c.l.n.leases.abandon(c)
	})
	return c.Conn.Close()
}

// RemoteAddr implements net.Conn. The address leads calls back to their connection.
func (c *serverConn) RemoteAddr() net.Addr { return connAddr{c.Conn.RemoteAddr(), c} }

type connAddr struct {
	net.Addr
	conn *serverConn
}

// connOf returns the connection of a call; nil if it did not come over the network.
func connOf(ctx context.Context) *serverConn {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return nil
	}
	a, _ := p.Addr.(connAddr)
	return a.conn
}
