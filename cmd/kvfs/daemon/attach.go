package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
	"github.com/kvfs/kvfs/fs"
	"github.com/kvfs/kvfs/fs/device"
)

// attachment is a mount that the owner of the machine answers. Of the mount this process holds
// only the descriptors, so that the mount outlives owners.
type attachment struct {
	program Program
	dir     string
	cfg     *config.Config
	log     *zap.Logger
	session *device.Session
	line    *handoff.Line // to the present owner, or nil
	guard   guard

	readOnly bool
	keep     bool        // the owner keeps the mount if this process ends without end
	orphan   atomic.Bool // no owner serves the mount
}

// errUnmounted reports that the mount was unmounted by another process.
var errUnmounted = errors.New("unmounted")

// attach is the life of a mount process in mode standalone-store: it mounts, hands the mount to
// the owner, finds the next owner when that one ends, and unmounts.
func (p Program) attach(ctx context.Context, cfg *config.Config, dir string, ready *Readiness, log *zap.Logger) error {
	a := &attachment{program: p, dir: dir, cfg: cfg, log: log}
	defer a.guard.close()
	if err := a.begin(ctx); err != nil {
		return exit.With(exit.Mount, err)
	}
	a.guard.watch(dir, handoff.NewMark, log)
	ready.ready(dir)
	alive, stop := context.WithCancel(ctx)
	defer stop()
	keepAlive(alive, func() {})
	err := a.watch(ctx)
	switch {
	case errors.Is(err, errUnmounted) && a.guard.aborted():
		err = errAborted
	case errors.Is(err, errUnmounted):
		log.Info("unmounted")
		err = nil
	}
	ready.stopping()
	return errors.Join(err, a.end())
}

// begin mounts and finds the first owner, for which it waits at most owner_timeout. A running owner has greetingTime to
// greet, even if that is longer. If an owner ends before it has answered a mount, begin unmounts and starts again: the
// kernel's first request may be lost with that owner.
func (a *attachment) begin(ctx context.Context) error {
	wait, cancel := context.WithTimeout(ctx, time.Duration(a.cfg.Store.OwnerTimeout))
	defer cancel()
	greeted, stop := context.WithTimeout(ctx, max(time.Duration(a.cfg.Store.OwnerTimeout), greetingTime))
	defer stop()
	for tick := (&Pace{}); ; {
		conn, err := handoff.Dial(greeted, a.cfg.Store.Socket)
		if err == nil {
			if err = a.mount(ctx, conn); err == nil {
				return nil
			}
		}
		again := errors.Is(err, handoff.ErrNoOwner) || errors.Is(err, handoff.ErrEnded) || greeted.Err() != nil
		if !again || a.cfg.Store.OwnerTimeout == 0 || ctx.Err() != nil {
			return err
		}
		tick.note(a.log, forOwner, err)
		if !tick.Wait(wait) {
			if errors.Is(err, context.DeadlineExceeded) {
				return err // an owner runs but does not answer: it would refuse a second one
			}
			return fmt.Errorf("%w at %s within %v; to start one, run: kvfs serve", handoff.ErrNoOwner, a.cfg.Store.Socket, a.cfg.Store.OwnerTimeout)
		}
	}
}

func (a *attachment) mount(ctx context.Context, conn *handoff.Conn) (err error) {
	var session *device.Session
	err = mountOnce(ctx, a.dir, func() (err error) {
		session, err = device.OpenSession(device.MountOptions{
			Dir: a.dir, FSName: a.cfg.Mount.FSName, AllowOther: allowOther(a.cfg), MaxWrite: int(a.cfg.Mount.MaxWrite),
			ReadOnly: a.readOnly,
		})
		return err
	})
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	a.session = session
	if err = a.useOwnProc(); err == nil {
		if err = a.handOver(ctx, conn); err == nil {
			fs.RefusePoll(a.dir)
			if err = a.selfTest(ctx); err == nil {
				return nil
			}
			return errors.Join(err, a.end())
		}
	} else {
		err = errors.Join(err, conn.Close())
	}
	return errors.Join(err, session.Unmount(), session.Close())
}

// selfTest compares bytes read through the mount with the owner's memory. If that fails with
// passthrough, it asks this owner and later ones to answer without passthrough.
func (a *attachment) selfTest(ctx context.Context) error {
	direct, auto := a.line.Attached().ReadPath == "passthrough", a.cfg.Memory.Passthrough != config.On
	_, err := fs.SelfTest(a.dir, direct, auto, a.log, func(error) error {
		without := *a.cfg
		without.Memory.Passthrough = config.Off
		a.cfg = &without
		ctx, cancel := context.WithTimeout(ctx, CloseGrace)
		defer cancel()
		err := errors.Join(a.line.Detach(ctx), a.line.Close())
		a.line = nil
		if err != nil {
			return err
		}
		conn, err := a.dial(ctx, &Pace{})
		if err != nil {
			return err
		}
		return a.handOver(ctx, conn)
	})
	if err != nil {
		return fmt.Errorf("mount %s: %w", a.dir, err)
	}
	return nil
}

// useOwnProc gives the owner a procfs that numbers processes as this process sees them.
func (a *attachment) useOwnProc() error {
	proc, err := handoff.OpenProc()
	if err != nil {
		return fmt.Errorf("procfs for the owner: %w", err)
	}
	if a.session.Proc != nil {
		a.session.Proc.Close()
	}
	a.session.Proc = proc
	return nil
}

func (a *attachment) handOver(ctx context.Context, conn *handoff.Conn) error {
	m := a.cfg.Mount
	owner := conn.Greeting()
	line, err := conn.Attach(ctx, &handoff.Request{
		Dir: a.dir, FSName: m.FSName, Epoch: a.session.Epoch, Init: a.session.Init, AllowOther: allowOther(a.cfg),
		EntryTimeout: time.Duration(m.EntryTimeout), AttrTimeout: time.Duration(m.AttrTimeout), MaxWrite: int(m.MaxWrite),
		Passthrough: a.cfg.Memory.Passthrough, Release: a.program.Version, Keep: a.keep,
		Dev: a.session.Dev, Spin: a.session.Spin, Proc: a.session.Proc,
	})
	a.session.Epoch++ // the owner may have used the number, also if it failed
	if err != nil {
		return err
	}
	a.line, a.session.Init = line, line.Attached().Init
	a.orphan.Store(false)
	a.log.Info("mounted", zap.String("dir", a.dir), zap.String("read_path", line.Attached().ReadPath), zap.Int("owner", owner.PID),
		zap.String("owner_version", owner.Release), zap.Uint32("epoch", a.session.Epoch-1), zap.String("memory_dir", line.Attached().MemoryDir))
	return nil
}

// watch finds the next owner whenever one ends. It returns nil when ctx ends, and errUnmounted.
func (a *attachment) watch(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			a.log.Info("stopping")
			return nil
		case <-a.line.Ended():
		}
		gone := time.Now()
		a.orphan.Store(true)
		_ = a.line.Close() // the owner has ended it
		a.line = nil
		for tick := (&Pace{}); a.line == nil; {
			conn, err := a.await(ctx, gone, tick)
			if err == nil {
				handing, cancel := a.handing(ctx)
				err = a.handOver(handing, conn)
				cancel()
			}
			switch {
			case ctx.Err() != nil:
				a.log.Info("stopping")
				return nil
			case errors.Is(err, errUnmounted):
				return err
			case err != nil:
				tick.note(a.log, forOwner, err)
				tick.Wait(ctx)
			}
		}
	}
}

// handing returns the context of a hand-over. An owner may keep a mount of which it could not tell us that it has it. So
// the end of ctx ends that hand-over later.
func (a *attachment) handing(ctx context.Context) (context.Context, context.CancelFunc) {
	if !a.keep {
		return ctx, func() {}
	}
	handing, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(CloseGrace, cancel) })
	return handing, func() { stop(); cancel() }
}

// await waits for an owner. Operations wait, too, until owner_timeout has passed; then they fail.
func (a *attachment) await(ctx context.Context, gone time.Time, tick *Pace) (*handoff.Conn, error) {
	patient, cancel := context.WithDeadline(ctx, gone.Add(time.Duration(a.cfg.Store.OwnerTimeout)))
	defer cancel()
	conn, err := a.dial(patient, tick)
	if err == nil || errors.Is(err, errUnmounted) || ctx.Err() != nil {
		return conn, err
	}
	a.log.Warn("no owner: operations on the mount fail until kvfs serve runs again", zap.String("dir", a.dir),
		zap.Duration("owner_timeout", time.Duration(a.cfg.Store.OwnerTimeout)))
	failing, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- device.FailAll(failing, a.session) }() // ends with failing
	conn, err = a.dial(ctx, tick)
	stop()
	if failed := <-ended; failed != nil {
		a.log.Warn("fail operations", zap.Error(failed))
	}
	return conn, err
}

// dial tries until an owner greets, the mount is gone, or ctx ends.
func (a *attachment) dial(ctx context.Context, tick *Pace) (*handoff.Conn, error) {
	for {
		if a.unmounted() {
			return nil, errUnmounted
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		// The wait is short because the mount may go meanwhile. An owner that is opening its
		// tiers greets when it has opened them.
		short, cancel := context.WithTimeout(ctx, greetingTime)
		conn, err := handoff.Dial(short, a.cfg.Store.Socket)
		cancel()
		if err == nil {
			return conn, nil
		}
		if ctx.Err() == nil {
			tick.note(a.log, forOwner, err)
			tick.Wait(ctx)
		}
	}
}

// unmounted reports whether the kernel has ended the connection: the mount was unmounted, and no process has files open.
func (a *attachment) unmounted() bool {
	raw, err := a.session.Dev.SyscallConn()
	if err != nil {
		return true
	}
	p := make([]unix.PollFd, 1)
	err = raw.Control(func(fd uintptr) {
		p[0].Fd = int32(fd)
		_, _ = unix.Poll(p, 0) // does not wait; the next call asks again if it fails
	})
	return err != nil || p[0].Revents&unix.POLLERR != 0
}

// end unmounts, makes the owner let go of the mount, and closes the descriptors. The kernel
// goes on with the open handles that it serves by itself.
func (a *attachment) end() error {
	var err error
	if !a.unmounted() {
		err = a.session.Unmount()
	}
	if a.line != nil {
		a.release()
		err = errors.Join(err, a.line.Close())
	}
	return errors.Join(err, a.session.Close())
}

// release returns when the owner has let go: because the mount is gone, or because release asks.
func (a *attachment) release() {
	t := time.NewTimer(min(time.Duration(a.cfg.DrainTimeout), time.Second))
	defer t.Stop()
	select {
	case <-a.line.Ended():
		return
	case <-t.C:
	}
	ctx, cancel := context.WithTimeout(context.Background(), CloseGrace)
	defer cancel()
	if err := a.line.Detach(ctx); err != nil {
		a.log.Warn("leave the owner", zap.Error(err))
	}
}

func allowOther(cfg *config.Config) bool {
	return cfg.Mount.AllowOther == config.On || cfg.Mount.AllowOther == config.Auto && os.Geteuid() == 0
}

// greetingTime is how long an owner may take to greet. A serving owner greets at once.
var greetingTime = 5 * time.Second // a variable for tests

// forOwner names the wait for an owner in the log.
const forOwner = "waiting for an owner"

// Held is a mount of an owner that this process holds beside others. The owner keeps it when this process ends, so
// that the next process can resume it.
type Held struct {
	a       *attachment
	release context.CancelFunc
	done    chan struct{} // closed when the mount is not held any more
	err     error         // constant once done is closed
}

// Hold mounts the blocks of the owner at cfg.Store.Socket on dir, and holds the mount until it is unmounted. It waits
// for an owner at most cfg.Store.OwnerTimeout, and until ctx ends.
func (p Program) Hold(ctx context.Context, cfg *config.Config, dir string, readOnly bool, log *zap.Logger) (*Held, error) {
	dir, err := mountPoint(dir, log)
	if err != nil {
		return nil, exit.With(exit.Mount, err)
	}
	if err := checkPlaces(cfg, dir); err != nil {
		return nil, err
	}
	a := &attachment{program: p, dir: dir, cfg: cfg, log: log, readOnly: readOnly, keep: true}
	if err := a.begin(ctx); err != nil {
		return nil, exit.With(exit.Mount, err)
	}
	return a.hold(), nil
}

// Resume holds the mount at dir that an earlier process held and the owner at cfg.Store.Socket has kept.
func (p Program) Resume(ctx context.Context, cfg *config.Config, dir string, log *zap.Logger) (*Held, error) {
	conn, err := handoff.Dial(ctx, cfg.Store.Socket)
	if err != nil {
		return nil, err
	}
	line, handed, err := conn.Resume(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf("resume %s: %w", dir, err)
	}
	a := &attachment{program: p, dir: dir, cfg: cfg, log: log, line: line, keep: true}
	a.session = &device.Session{Dir: dir, Dev: handed.Dev, Spin: handed.Spin, Init: handed.Init, Epoch: handed.Epoch}
	if err = errors.Join(a.session.Find(), a.useOwnProc()); err != nil {
		return nil, errors.Join(err, a.line.Close(), a.session.Close())
	}
	log.Info("resumed", zap.String("dir", dir), zap.String("read_path", line.Attached().ReadPath))
	return a.hold(), nil
}

func (a *attachment) hold() *Held {
	ctx, release := context.WithCancel(context.Background())
	h := &Held{a: a, release: release, done: make(chan struct{})}
	go func() { // ends with the mount
		defer close(h.done)
		err := a.watch(ctx)
		if errors.Is(err, errUnmounted) {
			a.log.Info("unmounted", zap.String("dir", a.dir))
			err = nil
		}
		h.err = errors.Join(err, a.end())
	}()
	return h
}

// Done returns a channel that is closed when the mount is gone.
func (h *Held) Done() <-chan struct{} { return h.done }

// Unmount unmounts, lazily if the mount is busy, and waits until the owner has let go of the mount.
func (h *Held) Unmount() error {
	h.release()
	<-h.done
	return h.err
}

// Dir returns the mount point.
func (h *Held) Dir() string { return h.a.dir }

// Settle waits until an owner serves the mount, or the mount is gone. It reports whether that is so when ctx ends.
func (h *Held) Settle(ctx context.Context) bool {
	for tick := (Pace{}); h.a.orphan.Load(); {
		select {
		case <-h.done:
			return true
		default:
		}
		if !tick.Wait(ctx) {
			return !h.a.orphan.Load()
		}
	}
	return true
}
