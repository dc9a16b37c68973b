package handoff

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/fs/device"
)

// Offered describes the mount that a daemon offers: the settings that the next daemon cannot change.
type Offered struct {
	Dir        string `json:"dir"`
	FSName     string `json:"fs_name"`
	AllowOther bool   `json:"allow_other,omitempty"`
	MaxWrite   int    `json:"max_write"`
	MemoryDir  string `json:"memory_dir,omitempty"` // as configured, but absolute
	MemoryAt   string `json:"memory_at,omitempty"`  // the directory that this resulted in
	RootMode   uint32 `json:"root_mode"`            // of the mount point
	RootUID    uint32 `json:"root_uid"`
	RootGID    uint32 `json:"root_gid"`
	Epoch      uint32 `json:"epoch"`               // of the offering daemon
	EndsWith   int    `json:"ends_with,omitempty"` // the kvfs run whose end unmounts the mount; 0: none

	Patience time.Duration `json:"patience_ns"` // the longest time for letting go of the mount
}

// Handed is a mount on its way from one daemon to the next.
type Handed struct {
	Init  []byte   `json:"init"`
	Epoch uint32   `json:"epoch"`           // of the next daemon
	Stale []uint32 `json:"stale,omitempty"` // threads that got ESTALE and are about to open another file

	Settings json.RawMessage `json:"settings,omitempty"` // what has been set at run time, in a form of the daemons

	Dev  *os.File `json:"-"` // required
	Spin *os.File `json:"-"` // a clone of Dev, or nil
}

// TakeoverPath returns the socket at which the daemon of a mount offers it, by the minor number
// of the mount's device and DefaultPath.
func TakeoverPath(defaultPath, minor string) string {
	return filepath.Join(filepath.Dir(defaultPath), "mount-"+minor+".sock")
}

// Predecessor is the daemon that has handed its mount over. It stays, without the mount, until it hears the outcome.
type Predecessor struct {
	w     wire
	pidfd int
}

// TakeOver asks the daemon at the other end for its mount. It waits until ctx ends, and at most
// for the time that the daemon has announced. If it fails, the daemon goes on, or takes the
// mount back. The connection belongs to the Predecessor from now on, or is closed.
func (c *Conn) TakeOver(ctx context.Context, release string) (*Predecessor, *Handed, error) {
	if c.greeting.Mount == nil {
		return nil, nil, errors.Join(fmt.Errorf("%w: it offers no mount", ErrRefused), c.Close())
	}
	ctx, cancel := context.WithTimeout(ctx, c.greeting.Mount.Patience+patience)
	defer cancel()
	pidfd, err := process(c.w.c)
	if err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	a, err := c.askHanded(ctx, question{Version: version, Do: doTakeover, Release: release})
	if err != nil {
		unix.Close(pidfd)
		return nil, nil, errors.Join(err, c.Close())
	}
	return &Predecessor{c.w, pidfd}, a.Handed, nil
}

// take gives h the descriptors that came with it. h owns them then, or they are closed.
func (h *Handed) take(fds []int, names []string) error {
	var r Request
	if err := r.take(fds, names); err != nil {
		return err
	}
	if r.Proc != nil || h.Epoch == 0 || h.Epoch > device.MaxEpoch || len(h.Init) == 0 || len(h.Init) > maxInit {
		r.Close()
		return fmt.Errorf("%w: what was handed over", ErrMalformed)
	}
	h.Dev, h.Spin = r.Dev, r.Spin
	return nil
}

func (h *Handed) close() {
	for _, f := range []*os.File{h.Dev, h.Spin} {
		if f != nil {
			f.Close()
		}
	}
}

// Working reports that this process still works on the mount, and is not blocked. Call it before Serving and Failed only.
func (p *Predecessor) Working() error {
	return p.w.send(question{Version: version, Do: doWorking}, time.Now().Add(patience))
}

// Serving reports success to the predecessor, which then ends.
func (p *Predecessor) Serving() error {
	err := p.w.send(question{Version: version, Do: doServing}, time.Now().Add(patience))
	return errors.Join(err, p.Close())
}

// Failed tells the predecessor why this process does not answer the mount. Call it when nothing of the mount is in use any
// more. It returns nil if the predecessor answers the mount again, and ErrRefused if the predecessor has unmounted. After
// any other error the predecessor may still do either, unless it has ended (Ended).
func (p *Predecessor) Failed(ctx context.Context, why error) error {
	text := why.Error()
	if err := p.w.send(question{Version: version, Do: doFailed, Error: text[:min(len(text), maxReason)]}, time.Now().Add(patience)); err != nil {
		return err
	}
	var a answer
	c := Conn{w: p.w}
	err := c.until(ctx, func() error {
		fds, err := c.w.receive(&a, time.Time{})
		closeAll(fds)
		return err
	})
	switch {
	case err != nil:
		return err
	case a.Do != doTakenBack:
		return fmt.Errorf("%w: %s", ErrRefused, a.Error)
	}
	return nil
}

// Ended reports whether the predecessor's process has ended. It waits a moment for that.
func (p *Predecessor) Ended() bool { return awaitEnd(p.pidfd) }

// Close ends the connection, if Serving has not.
func (p *Predecessor) Close() error {
	if p.pidfd < 0 {
		return nil
	}
	err := errors.Join(p.w.c.Close(), unix.Close(p.pidfd))
	p.pidfd = -1
	return err
}

// maxReason bounds the text of a failure, in bytes.
const maxReason = 4 << 10

// Heir is a process that asks for the mount.
type Heir struct {
	PID     int    // as this process sees it
	Release string // version of its program

	w     wire
	pidfd int
}

// HandOver gives the heir the mount. Copies of the descriptors travel. Call it when nothing of the mount is in use any more.
func (h *Heir) HandOver(m *Handed) error {
	r := Request{Dev: m.Dev, Spin: m.Spin}
	files, names := r.descriptors()
	return h.w.send(answer{Handed: m, Descriptors: names}, time.Now().Add(patience), files...)
}

// ErrBlocked reports an heir that has told nothing for too long.
var ErrBlocked = errors.New("the next daemon is blocked: it does not go on")

// Outcome waits until the heir answers the mount, and then returns nil. It has to tell within silence that it
// still works, or Outcome returns ErrBlocked. After an error other than that and that of ctx the heir no longer
// uses the mount, or it has not ended within endTime of its connection.
func (h *Heir) Outcome(ctx context.Context, silence time.Duration) error {
	var q question
	c := Conn{w: h.w}
	receive := func() error {
		q = question{}
		fds, err := c.w.receive(&q, time.Time{})
		closeAll(fds)
		return err
	}
	var err error
	for q.Do = doWorking; err == nil && q.Do == doWorking; {
		wait, cancel := context.WithTimeout(ctx, silence)
		err = c.until(wait, receive)
		if cancel(); err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			return ErrBlocked
		}
	}
	switch {
	case err == nil && q.Do == doServing:
		return nil
	case err == nil && q.Do == doFailed:
		return fmt.Errorf("it failed: %s", q.Error)
	case err == nil:
		err = fmt.Errorf("%w: %.64q from the next daemon", ErrMalformed, q.Do)
	case ctx.Err() != nil:
		return ctx.Err()
	}
	awaitEnd(h.pidfd)
	return fmt.Errorf("the next daemon ended before it answered: %w", err)
}

// Kill kills the heir, whose time is up, and waits until it has ended.
func (h *Heir) Kill() error {
	if err := unix.PidfdSendSignal(h.pidfd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return os.NewSyscallError("kill the next daemon", err)
	}
	if !awaitEnd(h.pidfd) {
		return fmt.Errorf("the next daemon has not ended %v after it was killed", endTime)
	}
	return nil
}

// Refuse tells the heir why it does not get the mount.
func (h *Heir) Refuse(why error) {
	_ = h.w.send(answer{Error: why.Error()}, time.Now().Add(patience)) // the heir may be gone
	h.Close()
}

// TakenBack tells the heir that this process answers the mount again.
func (h *Heir) TakenBack() {
	_ = h.w.send(answer{Do: doTakenBack}, time.Now().Add(patience)) // the heir may be gone
	h.Close()
}

// Close ends the connection.
func (h *Heir) Close() {
	h.w.c.Close()
	if h.pidfd >= 0 {
		unix.Close(h.pidfd)
		h.pidfd = -1
	}
}

// Offer is the socket at which a daemon offers its mount to the next one.
type Offer struct {
	server
	mount  Offered
	heirs  chan *Heir // at most one
	wanted bool       // by an heir; server.mu guards it
}

// maxOffers bounds the connections to an Offer.
const maxOffers = 16

// NewOffer makes the socket. It makes the directory if it is absent; the directory must be ours alone. It replaces an
// existing socket: the path belongs to this mount alone. Connecting processes are answered until Close. It fails if owner
// numbers run out: the next process needs one and, if that fails, this one another.
func NewOffer(path, release string, mount Offered, log *zap.Logger) (*Offer, error) {
	if mount.Epoch+2 > device.MaxEpoch {
		return nil, fmt.Errorf("owner %d of the mount: there are no more than %d", mount.Epoch, device.MaxEpoch)
	}
	o := &Offer{mount: mount, heirs: make(chan *Heir, 1)}
	o.release, o.claim = release, func(p *socketDir, _ time.Duration) error { return p.remove() }
	if err := o.open(path, maxOffers, 0, log); err != nil {
		return nil, err
	}
	go o.serve(o.answer) // ends with Close
	return o, nil
}

// Heir delivers the process that asks for the mount, at most one. The channel is nil for a nil Offer.
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
	err := o.close()
	select {
	case h := <-o.heirs:
		h.Refuse(errors.New("this daemon stops"))
	default:
	}
	return err
}

// answer greets, and notes a process that asks for the mount.
func (o *Offer) answer(w wire) {
	h, err := o.ask(w)
	if err == nil {
		err = o.accept(h)
	}
	if err != nil {
		o.refuse(w, "a takeover", err)
	}
}

func (o *Offer) accept(h *Heir) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var err error
	switch {
	case o.mu.closed:
		err = errors.New("this daemon stops")
	case o.wanted:
		err = errors.New("another process is already taking over")
	case !o.mu.conns.askedLocked(h.w.c):
		err = net.ErrClosed
	default:
		o.wanted = true
		o.mu.conns.dropLocked(h.w.c) // the heir owns it now: Close must not end it
		o.heirs <- h                 // has room: this is the only heir
		return nil
	}
	unix.Close(h.pidfd)
	return err
}

// ask sends the offer, and reads whether the other side wants it.
func (o *Offer) ask(w wire) (*Heir, error) {
	who, q, fds, err := o.greet(w, &o.mount)
	if err != nil {
		return nil, err
	}
	closeAll(fds)
	if q.Do != doTakeover || len(fds) > 0 {
		return nil, fmt.Errorf("%w: %.64q is no request to this socket", ErrMalformed, q.Do)
	}
	pidfd, err := process(w.c)
	if err != nil {
		return nil, err
	}
	return &Heir{PID: int(who.Pid), Release: q.Release, w: w, pidfd: pidfd}, nil
}
