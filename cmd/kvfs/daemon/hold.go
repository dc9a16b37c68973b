package daemon

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
	"github.com/kvfs/kvfs/fs/device"
)

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
