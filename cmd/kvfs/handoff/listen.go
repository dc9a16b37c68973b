package handoff

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
)

// Limits of the owner's side.
const (
	maxConnections = 1100 // in total; at most MaxMounts of them are mounts
	patience       = 10 * time.Second
)

// MaxMounts is the number of mounts that one owner serves at most.
const MaxMounts = 1023

// Handler is what the owner does for connecting processes. Its methods are called from many
// goroutines.
type Handler interface {
	// Attach begins to answer a mount. The handler owns the request's descriptors from the call
	// on, also if it fails. The mount gets the text of the error. Attach must give up when ctx
	// ends.
	Attach(ctx context.Context, r *Request) (Mount, error)

	// Status returns the owner's status document.
	Status() []byte
}

// Mount is a mount that the handler answers.
type Mount interface {
	// Attached returns the answer to the mount process.
	Attached() Attached

	// Done returns a channel that is closed when the mount is gone.
	Done() <-chan struct{}

	// Holder tells which process holds the mount from now on; 0: none does, until one resumes it.
	Holder(pid int)

	// Detach stops answering. It returns when nothing of the mount is in use. It is called
	// exactly once.
	Detach()
}

// Options configures a Listener.
type Options struct {
	Path    string // of the socket. Required.
	Release string // version of the program, for the other side's log
	Logger  *zap.Logger

	patience time.Duration // how long to wait for an expected message; zero means patience. Tests set it
	lockTime time.Duration // how long to wait for an owner that ends; zero means lockTime. Tests set it
}

// Listener is the owner's end.
type Listener struct {
	o      Options
	log    *zap.Logger
	rarely *zap.Logger     // for lines that other processes can cause at will
	path   string          // of the socket
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // connections
	unheld atomic.Int64   // mounts that wait for the process that resumes them

	mu struct {
		sync.Mutex
		dir    *socketDir // nil while a removed socket cannot be made again
		l      *net.UnixListener
		conns  guests
		kept   map[string]*kept // by directory
		mounts int
		closed bool
	}
}

// Listen makes the socket. It makes the directory if it is absent; the directory must be ours
// alone. Listen replaces the socket of a dead owner, and fails with ErrServing if one lives. A
// connecting process waits until Serve is called.
func Listen(o Options) (*Listener, error) {
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.patience == 0 {
		o.patience = patience
	}
	if o.lockTime == 0 {
		o.lockTime = lockTime
	}
	p, err := openSocketDir(o.Path)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if err := p.claim(o.lockTime); err != nil {
		return nil, errors.Join(err, p.close())
	}
	l := &Listener{o: o, log: o.Logger, rarely: rarely(o.Logger), path: p.path}
	l.mu.dir = p
	if l.mu.l, err = p.listen(); err != nil {
		return nil, errors.Join(err, p.close())
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.mu.conns, l.mu.kept = newGuests(maxConnections), map[string]*kept{}
	return l, nil
}

// rarely returns a logger that limits equal lines. It is for lines that other processes cause
// by what they send.
func rarely(log *zap.Logger) *zap.Logger {
	const while, times = 10 * time.Second, 3
	return log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, while, times, 0)
	}))
}

// Path returns the path of the socket.
func (l *Listener) Path() string { return l.path }

// lookEvery is how often the owner checks that its socket exists.
const lookEvery = time.Second

// look makes the socket again after a process has removed it, such as a cleaner of temporary
// files. Without it mounts would wait for an owner, and a second owner would find the lock
// taken.
func (l *Listener) look() {
	for said := ""; l.wait(lookEvery); {
		l.mu.Lock()
		gone := l.mu.dir == nil || !l.mu.dir.intact()
		l.mu.Unlock()
		if !gone {
			continue
		}
		if err := l.remake(); err == nil {
			said = ""
			l.log.Warn("the socket was removed: the owner has made it again", zap.String("socket", l.path))
		} else if why := fmt.Sprint(err); why != said {
			said = why
			l.log.Error("the socket was removed, and cannot be made again: no mount can attach; the owner tries again", zap.Error(err))
		}
	}
}

// remake makes the socket again, with its directory and lock if these are gone as well.
func (l *Listener) remake() error {
	p, err := openSocketDir(l.path)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return p.close()
	}
	if l.mu.dir != nil {
		_ = l.mu.dir.close() // its lock is in the way
		l.mu.dir = nil
	}
	if err := p.claim(0); err != nil {
		return errors.Join(err, p.close())
	}
	next, err := p.listen()
	if err != nil {
		return errors.Join(err, p.close())
	}
	old := l.mu.l
	l.mu.l, l.mu.dir = next, p
	return old.Close() // Serve goes on with the new one
}

// listener returns the listener to accept from, or nil after Close.
func (l *Listener) listener() *net.UnixListener {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return nil
	}
	return l.mu.l
}

// Serve answers connecting processes until Close.
func (l *Listener) Serve(h Handler) error {
	l.wg.Go(l.look) // ends with Close
	for {
		from := l.listener()
		if from == nil {
			return nil
		}
		c, err := from.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed): // closed by Close, or replaced by remake
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
			l.log.Error("accept", zap.Error(err))
			if !l.wait(time.Second) { // until a connection ends
				return nil
			}
		case err != nil:
			return fmt.Errorf("accept at %s: %w", l.path, err)
		case !l.add(c):
			l.rarely.Warn("refused a connection: too many are open", zap.Int("limit", maxConnections))
			c.Close()
		default:
			l.wg.Go(func() { // ends with the connection, at the latest upon Close
				defer l.drop(c)
				l.serve(wire{c}, h)
			})
		}
	}
}

// wait waits for d, and reports whether the listener is still open.
func (l *Listener) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.ctx.Done():
	}
	return l.ctx.Err() == nil // both may have happened
}

// Close detaches all mounts and removes the socket. The mounts then wait for the next owner.
func (l *Listener) Close() error {
	l.mu.Lock()
	if l.mu.closed {
		l.mu.Unlock()
		return nil
	}
	l.mu.closed = true
	l.cancel()
	l.mu.conns.wakeLocked()
	err := l.mu.l.Close()
	l.mu.Unlock()
	l.wg.Wait()
	if p := l.mu.dir; p != nil { // constant from here on
		err = errors.Join(err, p.remove(), p.close())
	}
	return err
}

// add notes a connection. It reports false if there are too many, or after Close.
func (l *Listener) add(c *net.UnixConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return false
	}
	cut, ok := l.mu.conns.addLocked(c)
	if cut {
		l.rarely.Warn("cut a connection that asked nothing: too many are open")
	}
	return ok
}

// drop ends a connection.
func (l *Listener) drop(c *net.UnixConn) {
	l.mu.Lock()
	l.mu.conns.dropLocked(c)
	l.mu.Unlock()
	c.Close()
}

// asked notes that a connection has asked something. It reports false if another has taken its place.
func (l *Listener) asked(c *net.UnixConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.conns.askedLocked(c)
}

// enter counts a mount. It reports false if there are too many.
func (l *Listener) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.mounts >= MaxMounts {
		return false
	}
	l.mu.mounts++
	return true
}

func (l *Listener) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.mounts--
}

func (l *Listener) due() time.Time { return time.Now().Add(l.o.patience) }

// serve is the life of a connection.
func (l *Listener) serve(w wire, h Handler) {
	who, err := admit(w.c)
	if err != nil {
		l.rarely.Warn("refused a connection", zap.Error(err))
		_ = w.send(Greeting{Version: version, Error: err.Error()}, l.due()) // the other side may be gone
		return
	}
	hello := Greeting{Version: version, Features: knownFeatures, PID: os.Getpid(), Release: l.o.Release}
	if err := w.send(hello, l.due()); err != nil {
		return // gone already
	}
	q, fds, err := l.ask(w)
	switch {
	case err == io.EOF, errors.Is(err, net.ErrClosed):
		return // it only checked that an owner is here, or another has its place
	case err != nil:
	case q.Do == doAttach:
		l.attach(w, h, who, q, fds)
		return
	case q.Do == doResume && len(fds) == 0:
		if err = l.resume(w, who, q.Dir); err == nil {
			return
		}
	case q.Do == doStatus && len(fds) == 0:
		if err = w.sendBytes(h.Status(), maxStatus, l.due()); err == nil {
			return
		}
	default:
		closeAll(fds)
		err = fmt.Errorf("%w: %.64q is no request, with %d descriptors", ErrMalformed, q.Do, len(fds))
	}
	l.rarely.Warn("refused a request", zap.Int32("pid", who.Pid), zap.Error(err))
	_ = w.send(answer{Error: err.Error()}, l.due()) // the other side may be gone
}

// ask reads the request of the other side.
func (l *Listener) ask(w wire) (q *question, fds []int, err error) {
	q = &question{}
	if fds, err = w.receive(q, l.due()); err != nil {
		return nil, nil, err
	}
	if q.Features, err = agree(q.Version, q.Features); err != nil {
		closeAll(fds)
		return nil, nil, err
	}
	if !l.asked(w.c) {
		closeAll(fds)
		return nil, nil, net.ErrClosed
	}
	return q, fds, nil
}

// attach serves a mount until one side ends it. If the mount process ends before that and wanted the mount to be
// kept, the mount waits for the process that resumes it.
func (l *Listener) attach(w wire, h Handler, who *unix.Ucred, q *question, fds []int) {
	log := l.log.With(zap.Int32("pid", who.Pid))
	kept, err := l.keep(q, fds)
	done := func() {}
	defer func() {
		l.unkeep(kept)
		done() // last: the other side may use the directory again from then on
	}()
	var m Mount
	if err == nil {
		m, err = l.begin(h, who, q, fds)
	}
	if err != nil {
		l.rarely.Warn("refused a mount", zap.Int32("pid", who.Pid), zap.Error(err))
		_ = w.send(answer{Error: err.Error()}, l.due()) // the other side may be gone
		return
	}
	defer l.leave()
	told := m.Attached()
	log = log.With(zap.String("dir", q.Attach.Dir))
	log.Info("mount attached", zap.Uint32("epoch", q.Attach.Epoch), zap.String("read_path", told.ReadPath))
	err = w.send(answer{Attached: &told}, l.due())
	if err == nil {
		err = l.follow(w, m)
	}
	if kept != nil && errors.Is(err, ErrEnded) {
		l.drop(w.c)
		w, done, err = l.await(kept, m, log)
	}
	m.Detach()
	log.Info("mount detached", zap.Error(err))
	if err == nil {
		_ = w.send(answer{Do: doDetached}, l.due()) // the other side may not wait for it
	}
}

// begin checks a request and has the handler attach it.
func (l *Listener) begin(h Handler, who *unix.Ucred, q *question, fds []int) (Mount, error) {
	r := q.Attach
	if r == nil {
		closeAll(fds)
		return nil, fmt.Errorf("%w: nothing to attach", ErrMalformed)
	}
	if err := r.take(fds, q.Descriptors); err != nil {
		return nil, err
	}
	r.PID, r.UID, r.Features = int(who.Pid), who.Uid, q.Features
	if err := r.check(); err != nil {
		r.Close()
		return nil, err
	}
	if !l.enter() {
		r.Close()
		return nil, fmt.Errorf("there are %d mounts already", MaxMounts)
	}
	m, err := h.Attach(l.ctx, r)
	if err != nil {
		l.leave()
	}
	return m, err
}

// follow waits until the mount process asks to be detached, ends, or has no mount any more. The
// first is no error.
func (l *Listener) follow(w wire, m Mount) error {
	ended := make(chan struct{})
	defer close(ended)
	go func() { // ends with follow
		select {
		case <-m.Done():
			_ = w.c.CloseRead() // wakes the reader, if it lives
		case <-ended:
		}
	}()
	var q question
	fds, err := w.receive(&q, time.Time{})
	closeAll(fds)
	switch {
	case err == nil && q.Do == doDetach && len(fds) == 0:
		return nil
	case err == nil:
		return fmt.Errorf("%w: %.64q on a life line", ErrMalformed, q.Do)
	case err != io.EOF:
		return err
	}
	select {
	case <-m.Done():
		return errors.New("it is mounted no more")
	default:
	}
	if l.ctx.Err() != nil {
		return errors.New("this owner stops")
	}
	return fmt.Errorf("%w: the mount process has gone", ErrEnded)
}
