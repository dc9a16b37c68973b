package handoff

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
)

// server answers the connections to a socket, each in a goroutine of its own.
type server struct {
	log, rarely *zap.Logger // rarely: for lines that other processes can cause at will
	path        string      // of the socket
	release     string      // version of the program
	patience    time.Duration
	claim       func(p *socketDir, wait time.Duration) error // makes room for the socket

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	wg     sync.WaitGroup // connections

	mu struct {
		sync.Mutex
		dir    *socketDir // nil while a removed socket cannot be made again
		l      *net.UnixListener
		conns  guests
		closed bool
	}
}

// patience is how long to wait for an expected message.
const patience = 10 * time.Second

// open makes the socket, for at most that many connections. It makes the directory if it is absent; the directory must
// be ours alone.
func (s *server) open(path string, most int, wait time.Duration, log *zap.Logger) (err error) {
	if log == nil {
		log = zap.NewNop()
	}
	s.log, s.rarely = log, rarely(log)
	if s.patience == 0 {
		s.patience = patience
	}
	if s.mu.dir, s.mu.l, err = s.make(path, wait); err != nil {
		return err
	}
	s.path, s.mu.conns = s.mu.dir.path, newGuests(most)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return nil
}

func (s *server) make(path string, wait time.Duration) (*socketDir, *net.UnixListener, error) {
	p, err := openSocketDir(path)
	if err != nil {
		return nil, nil, fmt.Errorf("socket: %w", err)
	}
	var l *net.UnixListener
	if err = s.claim(p, wait); err == nil {
		l, err = p.listen(network)
	}
	if err != nil {
		return nil, nil, errors.Join(err, p.close())
	}
	return p, l, nil
}

// rarely returns a logger that limits equal lines. It is for lines that other processes cause by what they send.
func rarely(log *zap.Logger) *zap.Logger {
	const while, times = 10 * time.Second, 3
	return log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, while, times, 0)
	}))
}

// Path returns the path of the socket.
func (s *server) Path() string { return s.path }

func (s *server) due() time.Time { return time.Now().Add(s.patience) }

// acceptPause is the pause after a failed accept, for example without free descriptors. No
// event tells when there are some again.
const acceptPause = 100 * time.Millisecond

// serve calls answer for each connection until close. The connection ends with answer, unless that has dropped it.
func (s *server) serve(answer func(wire)) {
	if !s.hold() {
		return
	}
	defer s.wg.Done()
	for s.ctx.Err() == nil {
		s.mu.Lock()
		l := s.mu.l
		s.mu.Unlock()
		c, err := l.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed): // closed by close, or replaced
		case err != nil:
			s.rarely.Error("accept failed: nobody can connect for now", zap.Error(err))
			s.wait(acceptPause)
		case !s.add(c):
			c.Close()
		default:
			s.wg.Go(func() { // ends with the connection, at the latest upon close
				defer s.drop(c)
				answer(wire{c})
			})
		}
	}
}

// hold makes close wait for wg.Done. It reports false after close.
func (s *server) hold() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mu.closed {
		s.wg.Add(1)
	}
	return !s.mu.closed
}

// wait waits for d, and reports whether the server is still open.
func (s *server) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.ctx.Done():
	}
	return s.ctx.Err() == nil // both may have happened
}

// greet tells the other side of a connection who this is, and reads what it asks for, with its descriptors. It fails with
// io.EOF if the other side has gone.
func (s *server) greet(w wire, mount *Offered) (who *unix.Ucred, q *question, fds []int, err error) {
	if who, err = admit(w.c); err != nil {
		return who, nil, nil, err
	}
	if err := w.send(Greeting{Version: version, PID: os.Getpid(), Release: s.release, Mount: mount}, s.due()); err != nil {
		return who, nil, nil, io.EOF
	}
	q = &question{}
	if fds, err = w.receive(q, s.due()); err != nil {
		return who, nil, nil, err
	}
	if err = sameVersion(q.Version); err == nil {
		s.mu.Lock()
		if !s.mu.conns.askedLocked(w.c) {
			err = net.ErrClosed
		}
		s.mu.Unlock()
	}
	if err != nil {
		closeAll(fds)
		return who, nil, nil, err
	}
	return who, q, fds, nil
}

// refuse tells the other side why it does not get what it asks for, unless it has gone or another has its place.
func (s *server) refuse(w wire, what string, err error) {
	if err == io.EOF || errors.Is(err, net.ErrClosed) {
		return
	}
	if errors.Is(err, ErrStranger) {
		what = "a connection"
	}
	s.rarely.Warn("refused "+what, zap.Error(err))
	_ = w.send(answer{Error: err.Error()}, s.due()) // it may be gone
}

// add notes a connection. It reports false if there are too many, or after close.
func (s *server) add(c *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return false
	}
	cut, ok := s.mu.conns.addLocked(c)
	if cut {
		s.rarely.Warn("closed a connection without a request: too many are open")
	}
	if !ok {
		s.rarely.Warn("refused a connection: too many are open", zap.Int("limit", s.mu.conns.most))
	}
	return ok
}

func (s *server) drop(c *net.UnixConn) {
	s.mu.Lock()
	_, there := s.mu.conns.all[c]
	s.mu.conns.dropLocked(c)
	s.mu.Unlock()
	if there {
		c.Close()
	}
}

// close removes the socket, and waits for the end of all connections.
func (s *server) close() error {
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return nil
	}
	s.mu.closed = true
	s.cancel()
	for c := range s.mu.conns.all {
		_ = c.CloseRead() // an ended one needs no waking
	}
	dir, l := s.mu.dir, s.mu.l // constant from here on
	s.mu.Unlock()
	// In this order, because a closed socket frees its inode number, by which remove knows it. The lock of dir keeps
	// others out until all is over.
	var err error
	if dir != nil {
		err = dir.remove()
	}
	err = errors.Join(err, l.Close())
	s.wg.Wait()
	if dir != nil {
		err = errors.Join(err, dir.close())
	}
	return err
}

// guests are the connections of a socket. There is a limit to their number. A new one beyond it takes the place of the
// oldest that has asked nothing: a process asks as soon as it is greeted, so those that ask nothing keep no other out. The
// lock of the socket guards it.
type guests struct {
	most   int                        // in total
	quiet  int                        // of those that have asked nothing
	all    map[*net.UnixConn]struct{} // from addLocked to dropLocked
	silent []*net.UnixConn            // those of all that have asked nothing, the oldest first
}

// newGuests makes room for that many connections. Those that have asked nothing get at most a quarter of the descriptors
// of this process.
func newGuests(most int) guests {
	g := guests{most: most, quiet: most, all: map[*net.UnixConn]struct{}{}}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		g.quiet = int(min(uint64(most), max(limit.Cur/4, maxOffers)))
	}
	return g
}

// addLocked notes a connection. It reports whether it took the place of another, and not ok if there are too many that
// have asked something.
func (g *guests) addLocked(c *net.UnixConn) (cut, ok bool) {
	if len(g.silent) > 0 && (len(g.all) >= g.most || len(g.silent) >= g.quiet) {
		oldest := g.silent[0]
		g.dropLocked(oldest)
		oldest.Close() // its goroutine ends
		cut = true
	}
	if len(g.all) >= g.most {
		return cut, false
	}
	g.all[c] = struct{}{}
	g.silent = append(g.silent, c)
	return cut, true
}

// askedLocked notes that a connection has asked something. It reports false if another has taken its place.
func (g *guests) askedLocked(c *net.UnixConn) bool {
	_, ok := g.all[c]
	g.speakLocked(c)
	return ok
}

func (g *guests) speakLocked(c *net.UnixConn) {
	if at := slices.Index(g.silent, c); at >= 0 {
		g.silent = slices.Delete(g.silent, at, at+1)
	}
}

func (g *guests) dropLocked(c *net.UnixConn) {
	delete(g.all, c)
	g.speakLocked(c)
}
