package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/rdma"
)

// dial opens a connection. The caller has a permit for it; dial returns the permit if it fails.
func (p *Peer) dial(ctx context.Context) (*conn, error) {
	c, err := p.tryDial(ctx)
	if err == nil {
		p.mu.Lock()
		if !p.mu.closed {
			p.mu.busy[c] = struct{}{}
			p.mu.Unlock()
			return c, nil
		}
		p.mu.Unlock()
		c.close()
		err = rdma.ErrClosed
	}
	p.mu.Lock()
	p.freeLocked()
	p.mu.Unlock()
	return nil, err
}

func (p *Peer) tryDial(ctx context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.t.opts.DialTimeout)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()

	d := net.Dialer{Control: p.t.control, KeepAlive: p.t.opts.StallTimeout}
	nc, err := d.DialContext(ctx, "tcp", p.addr)
	if err != nil {
		return nil, err
	}
	l, err := newLink(nc.(*net.TCPConn), p.t.opts.StallTimeout)
	if err != nil {
		nc.Close()
		return nil, err
	}
	c := &conn{link: l, peer: p}
	c.nudge = func() { p.nudge(c) }
	p.t.counters.dialled.Add(1)
	p.t.counters.openOut.Add(1)
	c.timer = time.AfterFunc(time.Hour, c.nudge) // ends with close
	c.timer.Stop()
	if err := c.greet(ctx); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// greet does the TLS handshake and sends this side's versions. The peer's versions come before its
// first answer, so they cost no round trip.
func (c *conn) greet(ctx context.Context) error {
	if err := c.tcp.SetNoDelay(true); err != nil {
		return err
	}
	if f := c.peer.t.opts.ClientTLS; f != nil {
		conf := f(c.peer.addr)
		if conf == nil {
			return fmt.Errorf("no TLS configuration for %s", c.peer.addr)
		}
		b := &batch{TCPConn: c.tcp, reader: true}
		s := tls.Client(b, largeRecords(conf))
		if err := s.HandshakeContext(ctx); err != nil {
			return err
		}
		c.secure(s, b)
	}
	c.out = appendHello(c.out[:0], oldestVersion, newestVersion)
	return nil
}

// conn is a connection on which this side is the reader. The caller that got it from acquire owns
// all fields.
type conn struct {
	*link
	peer  *Peer
	nudge func()
	timer *time.Timer // runs while the connection is idle and has nothing to confirm
	wait  *rdma.Wait  // begun while it is idle and has something to confirm; else nil

	reused  bool // has been idle since it was dialled
	heard   bool // something came from the peer since acquire
	greeted bool // the peer's versions are known

	out       []byte // frames to send
	in        inbox  // bytes that came
	asked     uint32 // requests sent
	received  uint32 // answers consumed
	confirmed uint32 // answers that the peer knows to be consumed
}

// usable reports whether an idle connection is still open and silent.
func (c *conn) usable() bool {
	var n int
	var err error
	ctl := c.raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	})
	if ctl == nil && err == nil && n > 0 && c.greeted && c.Conn == net.Conn(c.tcp) {
		c.peer.t.noteProtocol(c.peer.addr, fmt.Errorf("%w: bytes that nobody asked for", rdma.ErrProtocol))
		return false
	}
	return ctl == nil && (err == unix.EAGAIN || err == nil && n > 0)
}

// rest has c tended, which is now idle.
func (c *conn) rest() {
	if c.confirmed != c.received {
		c.wait = c.peer.t.confirms.Begin(c.nudge)
	} else {
		c.timer.Reset(c.peer.t.opts.IdleTimeout)
	}
}

// tend does what is due on an idle connection.
func (c *conn) tend() error {
	if c.confirmed == c.received {
		return errIdle
	}
	return c.flush(appendRequest(c.out[:0], request{kind: kindConfirm, confirmed: c.received}))
}

// flush sends frames, the last of which confirms all that was received.
func (c *conn) flush(frames []byte) error {
	c.out = frames[:0]
	if err := c.write(frames); err != nil {
		return err
	}
	c.confirmed = c.received
	return nil
}

// rouse ends what rest has begun.
func (c *conn) rouse() {
	c.timer.Stop()
	if c.wait != nil {
		c.peer.t.confirms.End(c.wait)
		c.wait = nil
	}
}

// close ends the connection.
func (c *conn) close() {
	c.rouse()
	c.tcp.Close()
	c.peer.t.counters.openOut.Add(-1)
}

// ask is one block or range to get.
type ask struct {
	kind   kind
	name   []byte
	off, n int64 // of kindRead
	accept func(header []byte, size int64) (rdma.Dest, error)
	done   func(error)
}

// errUnwanted: the connection was closed because too many unwanted bytes were coming. Unanswered
// requests are repeated on another connection.
var errUnwanted = errors.New("unwanted bytes")

// exchange gets asks answered in their order and returns how many were.
func (c *conn) exchange(ctx context.Context, asks []ask) (answered int, err error) {
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, c.cut) // at most sets deadlines
		defer func() {
			if !stop() {
				c.cut() // spoilt, even if all the answers are there
			}
		}()
	}
	chunk := c.peer.t.chunks.get()
	defer c.peer.t.chunks.put(chunk)
	c.in = inbox{buf: chunk}
	sent, names := 0, 0
	for answered < len(asks) {
		// Ask ahead, so the holder always has something to do.
		frames := c.out
		for sent < len(asks) && (sent == answered || sent-answered < windowItems && names+len(asks[sent].name) <= windowNames) {
			a := asks[sent]
			frames = appendRequest(frames, request{kind: a.kind, seq: c.asked, confirmed: c.received, name: a.name, off: a.off, n: a.n})
			names += len(a.name)
			c.asked++
			sent++
		}
		if len(frames) > 0 {
			if err := c.flush(frames); err != nil {
				return answered, err
			}
		}
		ended, err := c.answer(asks[answered])
		if ended {
			names -= len(asks[answered].name)
			answered++
		}
		if err != nil {
			return answered, err
		}
	}
	if n := c.in.len(); n > 0 {
		return answered, fmt.Errorf("%w: %d bytes after the last answer", rdma.ErrProtocol, n)
	}
	return answered, nil
}

// answer receives the answer to a and calls its done, unless ended is false: then err is the error
// for a. A returned error means that the connection is unusable.
func (c *conn) answer(a ask) (ended bool, err error) {
	h, header, err := c.head()
	if err != nil {
		return false, err
	}
	if h.status != statusOK {
		c.received++
		a.done(h.status.err())
		return true, nil
	}
	if a.kind == kindRead && h.size != a.n {
		return false, fmt.Errorf("%w: %d bytes for a read of %d", rdma.ErrProtocol, h.size, a.n)
	}
	dst, refused := a.accept(header, h.size)
	c.in.use(len(header))
	left := h.size
	if refused == nil {
		left, refused, err = c.receive(dst, h.size)
		c.peer.t.counters.bytesIn.Add(h.size - left)
		if err = errors.Join(err, c.whole()); err != nil {
			return false, err
		}
	}
	if refused == nil {
		c.peer.t.counters.itemsIn.Add(1)
		c.received++
		a.done(nil)
		return true, nil
	}
	a.done(refused)
	if left > maxDiscard {
		return true, errUnwanted
	}
	if err := c.discard(left); err != nil {
		return true, err
	}
	c.received++
	return true, nil
}

// whole fails if the holder has ended the connection. The bytes received since the last
// confirmation may then come from pages that the holder has reused before they were read.
func (c *conn) whole() error {
	var ended bool
	if err := c.raw.Control(func(fd uintptr) { ended = hungUp(int(fd)) }); err != nil || !ended {
		return err
	}
	return errCut
}

// head receives the frame of the next answer and its header, which is valid until
// the next use of c.
func (c *conn) head() (answer, []byte, error) {
	if !c.greeted {
		if err := c.hello(); err != nil {
			return answer{}, nil, err
		}
	}
	for {
		if err := c.need(answerSize); err != nil {
			return answer{}, nil, err
		}
		h, err := parseAnswer(c.in.bytes(), c.received)
		if err != nil {
			return h, nil, err
		}
		c.in.use(answerSize)
		if h.kind == kindWait {
			continue
		}
		if err := c.need(h.header); err != nil {
			return h, nil, err
		}
		return h, c.in.bytes()[:h.header], nil
	}
}

// hello receives the peer's versions.
func (c *conn) hello() error {
	if err := c.need(len(magic)); err != nil {
		return err
	}
	if string(c.in.bytes()[:len(magic)]) != magic {
		return errStranger
	}
	if err := c.need(helloSize); err != nil {
		return err
	}
	_, err := parseHello(c.in.bytes())
	c.in.use(helloSize)
	c.greeted = true
	return err
}
