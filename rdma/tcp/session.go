package tcp

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/rdma"
)

// Sizes of the holder's side.
const (
	requestBuffer = 16 << 10 // bytes of requests read at a time
	smallBody     = 16 << 10 // up to this a block is copied and sent in one call with its frame
)

// acceptPause is how long the acceptor waits after an error such as too many open files.
const acceptPause = 100 * time.Millisecond

// errTooMany ends a connection beyond the limit.
var errTooMany = errors.New("too many connections")

// accept takes connections until the listener is closed.
func (t *Transport) accept() {
	defer t.wg.Done()
	for {
		c, err := t.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			t.opts.Logger.Warn("cannot accept a bulk connection", zap.Error(err))
			select {
			case <-t.ctx.Done():
				return
			case <-time.After(acceptPause):
			}
			continue
		}
		l, err := newLink(c.(*net.TCPConn), t.opts.StallTimeout)
		if err != nil {
			c.Close()
			continue
		}
		t.admit(l)
	}
}

// admit begins to serve l. If too many connections have not greeted, it drops the oldest of them,
// so a client that connects and stays silent keeps no peer out.
func (t *Transport) admit(l *link) {
	s := &session{t: t, link: l, peer: l.RemoteAddr().String()}
	var oldest *session
	t.mu.Lock()
	if t.mu.closed {
		t.mu.Unlock()
		l.abort()
		return
	}
	if len(t.mu.greeting) >= t.opts.maxGreeting() {
		oldest = t.mu.greeting[0]
		t.mu.greeting = t.mu.greeting[1:]
	}
	s.ctx, s.cancel = context.WithCancel(t.ctx)
	t.mu.serving[s] = struct{}{}
	t.mu.greeting = append(t.mu.greeting, s)
	t.wg.Add(1)
	t.mu.Unlock()
	t.counters.openIn.Add(1)
	if oldest != nil {
		t.refused(oldest, "too many that do not greet", t.opts.maxGreeting())
		oldest.cancel()
		oldest.cut()
	}
	go s.run() // ends with the connection, which Close cuts
}

// refused counts and logs a connection beyond a limit.
func (t *Transport) refused(s *session, why string, limit int) {
	total := t.counters.refused.Add(1)
	t.rarely.Warn("bulk connection refused: "+why, zap.String("peer", s.peer), zap.Int("max", limit), zap.Int64("refused", total))
}

// place counts s among the connections that have greeted, or returns false if there are too many.
func (s *session) place() bool {
	t := s.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if at := slices.Index(t.mu.greeting, s); at >= 0 {
		t.mu.greeting = slices.Delete(t.mu.greeting, at, at+1)
	}
	if t.mu.greeted >= t.opts.MaxConns {
		return false
	}
	t.mu.greeted++
	s.placed = true
	return true
}

// session is a connection on which this side is the holder. Its fields belong to
// the goroutine of run; others may only cut.
type session struct {
	*link
	t      *Transport
	peer   string
	ctx    context.Context // ends with the connection
	cancel context.CancelFunc
	placed bool // counts in Transport.mu.greeted
	in     *bufio.Reader
	out    []byte // frame under construction, reused

	seq   uint32 // of the next request
	freed uint32 // requests that the reader has confirmed
	held  []hold // in the order of their numbers
}

// hold is a block whose pages may still be in transit.
type hold struct {
	seq     uint32
	release func()
}

// run serves until the connection ends.
func (s *session) run() {
	defer s.t.wg.Done()
	err := s.greet()
	if err != nil {
		if !s.wasCut() {
			s.t.counters.strangers.Add(1)
			s.t.opts.Logger.Debug("stranger on the bulk port", zap.String("peer", s.peer), zap.Error(err))
		}
	} else if !s.place() {
		s.t.refused(s, "too many", s.t.opts.MaxConns)
		err = errTooMany
	} else {
		s.t.counters.accepted.Add(1)
		for err == nil {
			err = s.serveOne()
		}
		s.note(err)
	}
	s.end(err == io.EOF)
}

// note counts why the connection ended.
func (s *session) note(err error) {
	switch {
	case err == io.EOF || s.wasCut() || errors.Is(err, errIdle):
	case errors.Is(err, rdma.ErrProtocol):
		s.t.noteProtocol(s.peer, err)
	default:
		s.t.counters.broken.Add(1)
		s.t.opts.Logger.Debug("bulk connection ended", zap.String("peer", s.peer), zap.Error(err))
	}
}

// finishLimit bounds how long the end of a connection waits for a reader that takes nothing. Such a
// reader gets a reset, and the bytes queued for it are dropped.
const finishLimit = 100 * time.Millisecond

// end closes the connection and then releases the held blocks. The reader may have bytes that it
// has not looked at yet, in pages that are reused soon. It knows from the end of the connection
// that they do not count (see conn.whole).
func (s *session) end(orderly bool) {
	s.cancel()
	if orderly && len(s.held) == 0 {
		s.tcp.Close()
	} else {
		if len(s.held) > 0 && s.Conn == s.tcp {
			s.finish(finishLimit)
		}
		s.abort()
	}
	for _, h := range s.held {
		s.letGo(h)
	}
	s.t.mu.Lock()
	delete(s.t.mu.serving, s)
	if s.placed {
		s.t.mu.greeted--
	} else if at := slices.Index(s.t.mu.greeting, s); at >= 0 {
		s.t.mu.greeting = slices.Delete(s.t.mu.greeting, at, at+1)
	}
	s.t.mu.Unlock()
	s.t.counters.openIn.Add(-1)
}

// greet does the TLS handshake and the exchange of versions.
func (s *session) greet() error {
	if err := s.tcp.SetNoDelay(true); err != nil {
		return err
	}
	if err := errors.Join(s.armRead(s.t.opts.DialTimeout), s.armWrite(s.t.opts.DialTimeout)); err != nil {
		return err
	}
	if s.t.opts.ServerTLS != nil {
		b := &batch{TCPConn: s.tcp}
		c := tls.Server(b, s.t.opts.ServerTLS)
		if err := c.HandshakeContext(s.ctx); err != nil {
			return err
		}
		s.link.secure(c, b)
	}
	s.in = bufio.NewReaderSize(s.Conn, requestBuffer)
	var b [helloSize]byte
	if _, err := io.ReadFull(s.in, b[:len(magic)]); err != nil {
		return err
	}
	if string(b[:len(magic)]) != magic {
		return errStranger
	}
	if _, err := io.ReadFull(s.in, b[len(magic):]); err != nil {
		return err
	}
	if err := s.write(appendHello(nil, oldestVersion, newestVersion)); err != nil {
		return err
	}
	_, err := parseHello(b[:])
	return err
}

// errIdle: the peer has not used the connection for long.
var errIdle = errors.New("idle")

// serveOne answers one request. io.EOF: the peer has closed the connection.
func (s *session) serveOne() error {
	r, err := s.next()
	if err != nil {
		return err
	}
	if err := s.confirm(r.confirmed); err != nil || r.kind == kindConfirm {
		return err
	}
	if r.seq != s.seq {
		return fmt.Errorf("%w: request %d where %d belongs", rdma.ErrProtocol, r.seq, s.seq)
	}
	if s.seq-s.freed >= windowItems {
		return fmt.Errorf("%w: more than %d requests without confirmation", rdma.ErrProtocol, windowItems)
	}
	s.seq++
	if r.kind == kindRead {
		return s.serveRead(r)
	}
	return s.serveGet(r)
}

// next reads a request. Its name is valid until the next call.
func (s *session) next() (request, error) {
	var r request
	// Longer than the reader's own limit: the reader closes first, and never finds that a
	// connection it took for idle is dead.
	limit := 2 * s.t.opts.IdleTimeout
	if len(s.held) > 0 {
		limit = s.stall
	}
	if err := s.armRead(limit); err != nil {
		return r, err
	}
	_, err := s.in.Peek(1)
	if errors.Is(err, os.ErrDeadlineExceeded) && len(s.held) == 0 {
		return r, errIdle
	}
	if err != nil {
		return r, err
	}
	if s.in.Buffered() < requestSize {
		if err := s.armRead(s.stall); err != nil {
			return r, err
		}
	}
	b, err := s.in.Peek(requestSize)
	if err != nil {
		return r, noEOF(err)
	}
	r, rest, err := parseRequest(b)
	if err != nil {
		return r, err
	}
	s.in.Discard(requestSize)
	if s.in.Buffered() < rest {
		if err := s.armRead(s.stall); err != nil {
			return r, err
		}
	}
	if b, err = s.in.Peek(rest); err != nil {
		return r, noEOF(err)
	}
	err = r.parseRest(b)
	s.in.Discard(rest) // leaves b as it is until the next read
	return r, err
}

// noEOF turns an end in the middle of a frame into an error.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// confirm releases the blocks that the reader has received.
func (s *session) confirm(upTo uint32) error {
	if upTo-s.freed > s.seq-s.freed {
		return fmt.Errorf("%w: %d requests confirmed of %d", rdma.ErrProtocol, upTo, s.seq)
	}
	s.freed = upTo
	n := 0
	for ; n < len(s.held) && int32(s.held[n].seq-upTo) < 0; n++ {
		s.letGo(s.held[n])
	}
	s.held = append(s.held[:0], s.held[n:]...)
	return nil
}

func (s *session) letGo(h hold) {
	h.release()
	s.t.counters.loans.Add(-1)
}

// keep holds a block until the reader confirms request s.seq-1 or the connection ends.
func (s *session) keep(release func()) {
	s.t.counters.loans.Add(1)
	s.held = append(s.held, hold{s.seq - 1, release})
}

// serveGet answers a request by name.
func (s *session) serveGet(r request) error {
	loan, err := s.lend(r.name)
	if err != nil {
		if s.ctx.Err() != nil || s.wasCut() {
			return errCut
		}
		return s.refuse(err)
	}
	s.keep(func() {
		if loan.Close != nil {
			loan.Close()
		}
	})
	if len(loan.Header) > rdma.MaxHeader || loan.Size < 0 || loan.File == nil {
		return s.refuse(fmt.Errorf("tcp: source lent header of %d bytes, size %d", len(loan.Header), loan.Size))
	}
	return s.send(loan.Header, loan.File, 0, loan.Size)
}

// serveRead answers a request by region.
func (s *session) serveRead(r request) error {
	var key regionKey
	if len(r.name) != len(key) {
		return s.refuse(rdma.ErrGone)
	}
	copy(key[:], r.name)
	s.t.mu.Lock()
	reg := s.t.mu.regions[key]
	s.t.mu.Unlock()
	if reg == nil {
		return s.refuse(rdma.ErrGone)
	}
	if r.off+r.n > reg.size {
		return fmt.Errorf("%w: read of %d bytes at %d of a region of %d", rdma.ErrProtocol, r.n, r.off, reg.size)
	}
	if !reg.enter(s) {
		return s.refuse(rdma.ErrGone)
	}
	s.keep(func() { reg.leave(s) })
	defer reg.sent(s)
	return s.send(nil, reg.file, r.off, r.n)
}

// refuse answers with an error.
func (s *session) refuse(err error) error {
	st := statusFailed
	switch {
	case errors.Is(err, rdma.ErrGone):
		st = statusGone
	case errors.Is(err, rdma.ErrLater):
		st = statusLater
	case errors.Is(err, rdma.ErrBusy):
		st = statusBusy
	default:
		s.t.opts.Logger.Warn("cannot lend a block", zap.String("peer", s.peer), zap.Error(err))
	}
	s.out = appendAnswer(s.out[:0], answer{kind: kindAnswer, status: st, seq: s.seq - 1})
	return s.write(s.out)
}

// send answers the last request with n bytes of f at off.
func (s *session) send(header []byte, f *os.File, off, n int64) error {
	s.out = appendAnswer(s.out[:0], answer{kind: kindAnswer, header: len(header), seq: s.seq - 1, size: n})
	s.out = append(s.out, header...)
	var err error
	switch {
	case n <= smallBody || s.Conn != s.tcp:
		err = s.sendCopy(f, off, n)
	default:
		if err = s.sendMore(s.out); err == nil {
			err = s.sendPages(f, off, n)
		}
	}
	if err != nil {
		return err
	}
	s.t.counters.itemsOut.Add(1)
	s.t.counters.bytesOut.Add(n)
	return nil
}

// rateTurn is how many bytes a connection sends before the others have their turn, if there is a limit.
const rateTurn = 64 << 10

// pacer is a rate.Limiter.
type pacer interface {
	WaitN(ctx context.Context, n int) error // callers have their turns in the order of their calls
}

// pay waits until n bytes more may be sent.
func (s *session) pay(n int64) error {
	for ; s.t.rate != nil && n > 0; n -= rateTurn {
		if err := s.t.rate.WaitN(s.ctx, int(min(n, rateTurn))); err != nil {
			return errCut
		}
	}
	return nil
}

// sendPages sends n bytes of f at off, without a copy.
func (s *session) sendPages(f *os.File, off, n int64) error {
	turn := n
	if s.t.rate != nil {
		turn = rateTurn
	}
	for ; n > 0; off, n = off+turn, n-turn {
		turn = min(turn, n)
		if err := s.pay(turn); err != nil {
			return err
		}
		if err := s.sendFile(f, off, turn); err != nil {
			return err
		}
	}
	return nil
}

// sendCopy sends s.out and n bytes of f at off through a buffer.
func (s *session) sendCopy(f *os.File, off, n int64) error {
	buf := s.t.chunks.get()
	defer s.t.chunks.put(buf)
	at := copy(buf, s.out)
	for {
		m := min(n, int64(len(buf)-at))
		if _, err := f.ReadAt(buf[at:at+int(m)], off); err != nil && m > 0 {
			return fmt.Errorf("read block: %w", noEOF(err))
		}
		if err := s.pay(m); err != nil {
			return err
		}
		if err := s.write(buf[:at+int(m)]); err != nil {
			return err
		}
		off, n, at = off+m, n-m, 0
		if n == 0 {
			return nil
		}
	}
}
