package handoff

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is a connection to an owner that has greeted. Use it for one Attach, Resume, Status or TakeOver.
type Conn struct {
	w        wire
	greeting Greeting
	pid      int
}

// Dial connects to the owner at a socket and waits for its greeting. It fails with ErrNoOwner if no process serves there.
func Dial(ctx context.Context, path string) (*Conn, error) {
	c, err := connect(ctx, path)
	if err != nil {
		return nil, err
	}
	conn := &Conn{w: wire{c}}
	if err := conn.greet(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("owner at %s: %w", path, err)
	}
	return conn, nil
}

// maxAddress is the longest path that fits the address of a unix socket.
const maxAddress = 107

func connect(ctx context.Context, path string) (*net.UnixConn, error) {
	address := path
	if len(path) > maxAddress {
		dir, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("%w at %s: %w", ErrNoOwner, path, err)
		}
		defer unix.Close(dir)
		address = filepath.Join("/proc/self/fd", strconv.Itoa(dir), filepath.Base(path))
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, network, address)
	switch {
	case err == nil:
		return c.(*net.UnixConn), nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.EAGAIN):
		// EAGAIN: the queue of connections to accept is full
		return nil, fmt.Errorf("%w at %s", ErrNoOwner, path)
	case errors.Is(err, unix.EPROTOTYPE):
		return nil, fmt.Errorf("%w: the socket at %s is of another kind", ErrVersion, path)
	}
	return nil, err
}

func (c *Conn) greet(ctx context.Context) error {
	who, err := admit(c.w.c)
	if err != nil {
		return err
	}
	c.pid = int(who.Pid)
	err = c.until(ctx, func() error {
		fds, err := c.w.receive(&c.greeting, time.Time{})
		closeAll(fds)
		return err
	})
	switch {
	case err == io.EOF || errors.Is(err, ErrEnded):
		return fmt.Errorf("%w: it ended before it could", ErrNoOwner)
	case errors.Is(err, context.DeadlineExceeded): // a stopped process cannot say so itself
		return fmt.Errorf("no answer from process %d: %w", c.pid, err)
	case err != nil:
		return err
	case c.greeting.Error != "":
		return fmt.Errorf("%w: %s", ErrRefused, c.greeting.Error)
	}
	return sameVersion(c.greeting.Version)
}

// until calls fn, which reads from the connection. When ctx ends, fn fails.
func (c *Conn) until(ctx context.Context, fn func() error) error {
	stop := context.AfterFunc(ctx, func() { _ = c.w.c.CloseRead() }) // an ended connection needs no waking
	defer stop()
	err := fn()
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// Greeting returns the owner's greeting.
func (c *Conn) Greeting() Greeting { return c.greeting }

// PID returns the process at the other end, as this process sees it. In another pid name space
// it differs from the number in Greeting.
func (c *Conn) PID() int { return c.pid }

// Close ends the connection.
func (c *Conn) Close() error { return c.w.c.Close() }

// Attach hands a mount over; copies of its descriptors travel. It waits for the answer as long as ctx and the connection
// last. The owner may use the descriptors until the connection has ended, and closing it on this side does not stop the
// owner at once. After ErrRefused the descriptors are unused. The connection belongs to the Line from now on, or is closed.
func (c *Conn) Attach(ctx context.Context, r *Request) (*Line, error) {
	files, names := r.descriptors()
	q := question{Version: version, Do: doAttach, Descriptors: names, Attach: r}
	a, fds, err := c.ask(ctx, q, files...)
	closeAll(fds)
	if err == nil && (a.Attached == nil || len(a.Attached.Init) > maxInit) {
		err = errAnswer
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c.line(&a), nil
}

// errAnswer reports an answer that lacks what was asked for.
var errAnswer = fmt.Errorf("%w: the owner's answer", ErrMalformed)

// ask sends a question, with files, and waits for the answer, as long as ctx and the connection last. The descriptors
// of the answer belong to the caller. A refusal is an error.
func (c *Conn) ask(ctx context.Context, q question, files ...*os.File) (a answer, fds []int, err error) {
	err = c.w.send(q, time.Now().Add(patience), files...)
	if err == nil || errors.Is(err, ErrEnded) { // the owner may have said why it ended
		err = c.until(ctx, func() (err error) {
			fds, err = c.w.receive(&a, time.Time{})
			return err
		})
	}
	switch {
	case err == io.EOF:
		err = fmt.Errorf("%w before the owner answered", ErrEnded)
	case err == nil && a.Error != "":
		closeAll(fds)
		return a, nil, fmt.Errorf("%w: %s", ErrRefused, a.Error)
	}
	return a, fds, err
}

// askHanded is ask for a question whose answer hands a mount over.
func (c *Conn) askHanded(ctx context.Context, q question) (answer, error) {
	a, fds, err := c.ask(ctx, q)
	switch {
	case err != nil:
		return a, err
	case a.Handed == nil:
		closeAll(fds)
		return a, errAnswer
	}
	if err = a.Handed.take(fds, a.Descriptors); err == nil && ctx.Err() != nil { // the connection is closed for reading already
		a.Handed.close()
		err = ctx.Err()
	}
	return a, err
}

// line makes the Line of an answer, to which the connection belongs from now on.
func (c *Conn) line(a *answer) *Line {
	l := &Line{w: c.w, attached: *a.Attached, ended: make(chan struct{})}
	go l.watch() // ends with the connection
	return l
}

// Status returns the owner's status document and closes the connection.
func (c *Conn) Status(ctx context.Context) (text []byte, err error) {
	defer c.Close()
	if err := c.w.send(question{Version: version, Do: doStatus}, time.Now().Add(patience)); err != nil {
		return nil, err
	}
	err = c.until(ctx, func() error {
		for {
			part, fds, err := c.w.read(time.Time{})
			closeAll(fds)
			if text = append(text, part...); err == io.EOF && len(text) > 0 {
				return nil
			}
			if err != nil || len(text) > maxStatus {
				return cmp.Or(err, tooLong(len(text), maxStatus))
			}
		}
	})
	return text, err
}

// Line is the connection that lasts while an owner serves a mount.
type Line struct {
	w        wire
	attached Attached
	ended    chan struct{}
}

// Attached returns the owner's answer.
func (l *Line) Attached() Attached { return l.attached }

// Ended returns a channel that is closed when the owner has ended or has let go of the mount.
func (l *Line) Ended() <-chan struct{} { return l.ended }

// watch waits for the end. An owner may say "detached" before it; that is only for people who watch the traffic.
func (l *Line) watch() {
	defer close(l.ended)
	buf := make([]byte, 512)
	for {
		n, err := l.w.c.Read(buf) // the read drops descriptors: the kernel closes them
		if err != nil || n == 0 {
			return
		}
	}
}

// Detach asks the owner to let go of the mount and waits until it has.
func (l *Line) Detach(ctx context.Context) error {
	err := l.w.send(question{Version: version, Do: doDetach}, time.Now().Add(patience))
	if err != nil && !errors.Is(err, ErrEnded) {
		return err
	}
	select {
	case <-l.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the owner has not released the mount: %w", ctx.Err())
	}
}

// Close ends the connection from this side, and the line with it.
func (l *Line) Close() error {
	err := l.w.c.Close()
	<-l.ended
	return err
}
