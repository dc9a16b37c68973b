package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Offered is what a daemon says of the mount that it would hand over: what the next one cannot
// change.
type Offered struct {
	Dir        string `json:"dir"`
	FSName     string `json:"fs_name"`
	AllowOther bool   `json:"allow_other,omitempty"`
	MaxWrite   int    `json:"max_write"`
	MemoryDir  string `json:"memory_dir,omitempty"` // as it was configured
	RootMode   uint32 `json:"root_mode"`            // of the directory that is mounted over
	RootUID    uint32 `json:"root_uid"`
	RootGID    uint32 `json:"root_gid"`
	Epoch      uint32 `json:"epoch"` // of the daemon that offers

	Patience time.Duration `json:"patience_ns"` // the longest time that it takes to let go
}

// Handed is a mount that goes over from one daemon to the next.
type Handed struct {
	Init  []byte   `json:"init"`
	Epoch uint32   `json:"epoch"`           // of the next daemon
	Stale []uint32 `json:"stale,omitempty"` // threads that are about to open something else than they asked for

	Dev  *os.File `json:"-"` // required
	Spin *os.File `json:"-"` // a second way to the same; nil: none
}

// TakeoverPath is the socket at which the daemon of a mount offers it, by the minor number of the
// mount's device; DefaultPath says where.
func TakeoverPath(defaultPath, minor string) string {
	return filepath.Join(filepath.Dir(defaultPath), "mount-"+minor+".sock")
}

// Predecessor is the daemon that has handed its mount over. It stays, without the mount, until it
// hears how that went.
type Predecessor struct{ w wire }

// TakeOver asks the daemon at the other end for its mount. It waits for as long as that says that it
// takes, and until ctx ends. If it fails the daemon goes on, or takes up again what it had begun to
// let go of. The connection is the predecessor's from now on, or closed.
func (c *Conn) TakeOver(ctx context.Context, release string) (*Predecessor, *Handed, error) {
	if c.greeting.Mount == nil {
		return nil, nil, errors.Join(fmt.Errorf("%w: it offers no mount", ErrRefused), c.Close())
	}
	ctx, cancel := context.WithTimeout(ctx, c.greeting.Mount.Patience+patience)
	defer cancel()
	var a answer
	var fds []int
	err := c.w.send(question{Version: version, Features: knownFeatures, Do: doTakeover, Release: release}, time.Now().Add(patience))
	if err == nil || errors.Is(err, ErrEnded) { // it may have said why it ended
		err = c.until(ctx, func() (err error) {
			fds, err = c.w.receive(&a, time.Time{})
			return err
		})
	}
	switch {
	case err == io.EOF:
		err = fmt.Errorf("%w before the daemon answered", ErrEnded)
	case err != nil:
	case a.Error != "":
		closeAll(fds)
		err = fmt.Errorf("%w: %s", ErrRefused, a.Error)
	case a.Handed == nil:
		closeAll(fds)
		err = fmt.Errorf("%w: the daemon's answer", ErrMalformed)
	default:
		err = a.Handed.take(fds, a.Descriptors)
	}
	if err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	return &Predecessor{c.w}, a.Handed, nil
}

// take gives h the descriptors that came with it. They are h's then, or closed.
func (h *Handed) take(fds []int, names []string) error {
	var r Request
	if err := r.take(fds, names); err != nil {
		return err
	}
	if r.Proc != nil || h.Epoch == 0 || h.Epoch > MaxEpoch || len(h.Init) == 0 || len(h.Init) > maxInit {
		r.Close()
		return fmt.Errorf("%w: what was handed over", ErrMalformed)
	}
	h.Dev, h.Spin = r.Dev, r.Spin
	return nil
}

// Serving says that all is well, upon which the predecessor ends.
func (p *Predecessor) Serving() error {
	err := p.w.send(question{Version: version, Do: doServing}, time.Now().Add(patience))
	return errors.Join(err, p.w.c.Close())
}

// Failed says why the mount is not answered here, when nothing of it is in use any more. It
// returns nil if the predecessor answers it again.
func (p *Predecessor) Failed(ctx context.Context, why error) error {
	defer p.w.c.Close()
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

// maxReason bounds what is said of a failure, in bytes.
const maxReason = 4 << 10

// Heir is a process that asks for the mount.
type Heir struct {
	PID     int    // as this process sees it
	Release string // version of its program

	w     wire
	pidfd int // tells when it has ended; -1: unknown
}

// HandOver gives it the mount. Copies of the descriptors travel. It is called when nothing of the
// mount is in use any more.
func (h *Heir) HandOver(m *Handed) error {
	r := Request{Dev: m.Dev, Spin: m.Spin}
	files, names := r.descriptors()
	return h.w.send(answer{Handed: m, Descriptors: names}, time.Now().Add(patience), files...)
}

// Outcome waits until the heir answers the mount, and returns nil then. With any other error than
// that of ctx it uses nothing of the mount any more.
func (h *Heir) Outcome(ctx context.Context) error {
	var q question
	c := Conn{w: h.w}
	err := c.until(ctx, func() error {
		fds, err := c.w.receive(&q, time.Time{})
		closeAll(fds)
		return err
	})
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
	h.awaitEnd(ctx)
	return fmt.Errorf("the next daemon ended before it answered: %w", err)
}

// endTime is how long a process whose connection has ended may take to end altogether.
const endTime = 5 * time.Second

// awaitEnd waits until the process has ended, so that it has given up all locks; not for ever,
// because one of its threads may wait for us.
func (h *Heir) awaitEnd(ctx context.Context) {
	if h.pidfd < 0 {
		return
	}
	until := time.Now().Add(endTime)
	for ctx.Err() == nil && time.Now().Before(until) {
		p := []unix.PollFd{{Fd: int32(h.pidfd), Events: unix.POLLIN}}
		if n, err := unix.Poll(p, 100); n > 0 || err != nil && err != unix.EINTR {
			return
		}
	}
}

// Refuse says why the heir does not get the mount.
func (h *Heir) Refuse(why error) {
	_ = h.w.send(answer{Error: why.Error()}, time.Now().Add(patience)) // it may have gone
	h.Close()
}

// TakenBack says that the mount is answered here again.
func (h *Heir) TakenBack() {
	_ = h.w.send(answer{Do: doTakenBack}, time.Now().Add(patience)) // it may have gone
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
