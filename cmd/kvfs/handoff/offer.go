package handoff

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// Offer is the socket at which a daemon offers its mount to the next one.
type Offer struct {
	mount   Offered
	release string
	log     *zap.Logger
	rarely  *zap.Logger // for what others can cause as often as they like
	place   *place
	l       *net.UnixListener
	heirs   chan *Heir // one at most
	done    chan struct{}
	wg      sync.WaitGroup

	mu struct {
		sync.Mutex
		conns  map[*net.UnixConn]struct{}
		asked  bool
		closed bool
	}
}

// maxOffers bounds the connections to an Offer.
const maxOffers = 16

// NewOffer makes the socket, in a directory that is made if it is absent and has to be ours
// alone. What lies there is replaced: the path is that of this mount alone. Who connects is
// answered until Close.
func NewOffer(path, release string, mount Offered, log *zap.Logger) (*Offer, error) {
	if log == nil {
		log = zap.NewNop()
	}
	p, err := openPlace(path)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	o := &Offer{mount: mount, release: release, log: log, rarely: rarely(log), place: p, heirs: make(chan *Heir, 1), done: make(chan struct{})}
	o.mu.conns = map[*net.UnixConn]struct{}{}
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

// Path is where the socket is.
func (o *Offer) Path() string { return o.place.path }

// Heir gets the process that asks for the mount. There is no second one; without an offer there is
// none.
func (o *Offer) Heir() <-chan *Heir {
	if o == nil {
		return nil
	}
	return o.heirs
}

// Close removes the socket. An heir that nobody has taken note of is refused.
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
	for c := range o.mu.conns {
		_ = c.CloseRead() // wakes the reader; one that has ended needs none
	}
	o.mu.Unlock()
	err := errors.Join(o.l.Close(), o.place.remove())
	o.wg.Wait()
	select {
	case h := <-o.heirs:
		h.Refuse(errors.New("this daemon stops"))
	default:
	}
	return errors.Join(err, o.place.close())
}

// acceptPause is how long nobody is accepted after that has failed: for want of descriptors, say, of
// which nothing tells when there are some again.
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
				o.log.Error("no takeover is possible for now: accept", zap.Error(err))
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
	if o.mu.closed || len(o.mu.conns) >= maxOffers {
		return false
	}
	o.mu.conns[c] = struct{}{}
	return true
}

// answer greets, and takes note of who asks for the mount.
func (o *Offer) answer(c *net.UnixConn) {
	h, err := o.ask(c)
	if err == nil {
		err = o.accept(h)
	}
	o.mu.Lock()
	delete(o.mu.conns, c)
	o.mu.Unlock()
	switch {
	case err == io.EOF:
		c.Close() // it only looked, or was not content with what it saw
	case err != nil:
		o.rarely.Warn("refused a takeover", zap.Error(err))
		_ = wire{c}.send(answer{Error: err.Error()}, time.Now().Add(patience)) // it may have gone
		c.Close()
	}
}

// accept makes h the one that gets the mount.
func (o *Offer) accept(h *Heir) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var err error
	switch {
	case o.mu.closed:
		err = errors.New("this daemon stops")
	case o.mu.asked:
		err = errors.New("another process takes over already")
	default:
		o.mu.asked = true
		delete(o.mu.conns, h.w.c) // the heir's from now on: Close must not end it
		o.heirs <- h              // has room: there is no other
		return nil
	}
	unix.Close(h.pidfd)
	return err
}

// ask says what is offered, and reads whether it is wanted.
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
	if _, err := agree(q.Version, q.Features); err != nil {
		return nil, err
	}
	if q.Do != doTakeover || len(fds) > 0 {
		return nil, fmt.Errorf("%w: %.64q is nothing to ask for here", ErrMalformed, q.Do)
	}
	pidfd, err := process(c)
	if err != nil {
		return nil, err
	}
	return &Heir{PID: int(who.Pid), Release: q.Release, w: w, pidfd: pidfd}, nil
}
