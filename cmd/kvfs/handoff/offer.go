package handoff

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/fs/device"
)

// Offer is the socket at which a daemon offers its mount to the next one.
type Offer struct {
	mount   Offered
	release string
	log     *zap.Logger
	rarely  *zap.Logger // for lines that other processes can cause at will
	dir     *socketDir
	l       *net.UnixListener
	heirs   chan *Heir // at most one
	done    chan struct{}
	wg      sync.WaitGroup

	mu struct {
		sync.Mutex
		conns  guests
		asked  bool
		closed bool
	}
}

// maxOffers bounds the connections to an Offer.
const maxOffers = 16

// NewOffer makes the socket. It makes the directory if it is absent; the directory must be ours
// alone. It replaces an existing socket: the path belongs to this mount alone. Connecting
// processes are answered until Close. It fails if owner numbers run out: the next process needs
// one and, if that fails, this one another.
func NewOffer(path, release string, mount Offered, log *zap.Logger) (*Offer, error) {
	if log == nil {
		log = zap.NewNop()
	}
	if mount.Epoch+2 > device.MaxEpoch {
		return nil, fmt.Errorf("owner %d of the mount: there are no more than %d", mount.Epoch, device.MaxEpoch)
	}
	p, err := openSocketDir(path)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	o := &Offer{mount: mount, release: release, log: log, rarely: rarely(log), dir: p, heirs: make(chan *Heir, 1), done: make(chan struct{})}
	o.mu.conns = newGuests(maxOffers)
	err = p.remove()
	if err == nil {
		o.l, err = p.listen()
	}
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	o.wg.Go(o.serve) // ends with Close
	return o, nil
}

// Path returns the path of the socket.
func (o *Offer) Path() string { return o.dir.path }

// Heir delivers the process that asks for the mount, at most one. The channel is nil for a nil
// Offer.
func (o *Offer) Heir() <-chan *Heir {
	if o == nil {
		return nil
	}
	return o.heirs
}

// Close removes the socket. It refuses an heir that was not received.
func (o *Offer) Close() error {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	if o.mu.closed {
		o.mu.Unlock()
		return nil
	}
	o.mu.closed = true
	close(o.done)
	o.mu.conns.wakeLocked()
	o.mu.Unlock()
	// In this order, because a closed socket frees its inode number, by which remove knows it.
	err := errors.Join(o.dir.remove(), o.l.Close())
	o.wg.Wait()
	select {
	case h := <-o.heirs:
		h.Refuse(errors.New("this daemon stops"))
	default:
	}
	return errors.Join(err, o.dir.close())
}

// acceptPause is the pause after a failed accept, for example without free descriptors. No
// event tells when there are some again.
const acceptPause = 100 * time.Millisecond

func (o *Offer) serve() {
	for said := ""; ; {
		c, err := o.l.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			if why := fmt.Sprint(err); why != said {
				said = why
				o.log.Error("accept failed: no takeover is possible for now", zap.Error(err))
			}
			t := time.NewTimer(acceptPause)
			select {
			case <-t.C:
			case <-o.done:
				t.Stop()
				return
			}
		case !o.add(c):
			c.Close()
		default:
			o.wg.Go(func() { o.answer(c) }) // ends with the question, at the latest upon Close
		}
	}
}

func (o *Offer) add(c *net.UnixConn) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.closed {
		return false
	}
	_, ok := o.mu.conns.addLocked(c)
	return ok
}

// answer greets, and notes a process that asks for the mount.
func (o *Offer) answer(c *net.UnixConn) {
	h, err := o.ask(c)
	if err == nil {
		err = o.accept(h)
	}
	o.mu.Lock()
	o.mu.conns.dropLocked(c)
	o.mu.Unlock()
	switch {
	case err == io.EOF, errors.Is(err, net.ErrClosed):
		c.Close() // it only looked, did not accept the greeting, or another has its place
	case err != nil:
		o.rarely.Warn("refused a takeover", zap.Error(err))
		_ = wire{c}.send(answer{Error: err.Error()}, time.Now().Add(patience)) // the other side may be gone
		c.Close()
	}
}

// accept makes h the heir.
func (o *Offer) accept(h *Heir) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var err error
	switch {
	case o.mu.closed:
		err = errors.New("this daemon stops")
	case o.mu.asked:
		err = errors.New("another process is already taking over")
	case !o.mu.conns.askedLocked(h.w.c):
		err = net.ErrClosed
	default:
		o.mu.asked = true
		o.mu.conns.dropLocked(h.w.c) // the heir owns it now: Close must not end it
		o.heirs <- h                 // has room: this is the only heir
		return nil
	}
	unix.Close(h.pidfd)
	return err
}

// ask sends the offer, and reads whether the other side wants it.
func (o *Offer) ask(c *net.UnixConn) (*Heir, error) {
	w := wire{c}
	who, err := admit(c)
	if err != nil {
		return nil, err
	}
	hello := Greeting{Version: version, Features: knownFeatures, PID: os.Getpid(), Release: o.release, Mount: &o.mount}
	if err := w.send(hello, time.Now().Add(patience)); err != nil {
		return nil, io.EOF
	}
	var q question
	fds, err := w.receive(&q, time.Now().Add(patience))
	if err != nil {
		return nil, err
	}
	closeAll(fds)
	both, err := agree(q.Version, q.Features)
	if err != nil {
		return nil, err
	}
	if q.Do != doTakeover || len(fds) > 0 {
		return nil, fmt.Errorf("%w: %.64q is no request to this socket", ErrMalformed, q.Do)
	}
	pidfd, err := process(c)
	if err != nil {
		return nil, err
	}
	return &Heir{PID: int(who.Pid), Release: q.Release, w: w, pidfd: pidfd, tells: slices.Contains(both, featureWorking)}, nil
}
