package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/fs"
	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers"
)

// Mount is the life of a mount process: it mounts at dir, and returns when ctx ends, the mount
// is gone, or another process answers it. In mode embedded this process is a daemon, and its
// mount ends with process endsWith if that is not 0. Errors have an exit code.
func (p Program) Mount(ctx context.Context, cfg *config.Config, dir string, endsWith int, ready *Readiness) (err error) {
	log, err := NewLogger(cfg)
	if err != nil {
		return err
	}
	defer hearHangup(log)()
	Warn(cfg, log)
	if dir == "" {
		return exit.With(exit.Config, errors.New("mount point: the name is empty"))
	}
	dir, err = mountPoint(dir, log)
	if err != nil {
		return exit.With(exit.Mount, err)
	}
	if err := checkApart(cfg, dir); err != nil {
		return exit.With(exit.Config, err)
	}
	if err := checkPlaces(cfg, dir); err != nil {
		return err
	}
	if cfg.Mode == config.ModeStandaloneStore {
		return p.attach(ctx, cfg, dir, ready, log)
	}
	defer serveDebug(log.Named("debug"))()
	root, err := rootOf(dir)
	if err != nil {
		return err
	}
	m := &embedded{program: p, cfg: cfg, at: site{path: dir, root: root}, ready: ready, log: log, with: &launcher{pid: endsWith}}
	defer m.guard.close()
	d, err := m.start(ctx)
	if err != nil {
		return err
	}
	ready.ready(dir)
	return m.run(ctx, d)
}

// embedded is a process with a mount of its own: it opens the engine, mounts, and closes both.
// The mount may come from another process, and may go to one.
type embedded struct {
	program Program
	cfg     *config.Config
	at      site
	ready   *Readiness
	log     *zap.Logger
	with    *launcher
	guard   guard
	steps   atomic.Int64 // of start, that have ended

	quotas  []tiers.Quota   // that were set at run time, of the daemon before
	session *device.Session // an existing mount that no process answers; nil: the mount must be made, or is answered
}

// start opens the tiers and answers the mount, which it makes if there is none. It answers
// last: if start fails, the kernel has got no answer, and memory stays with an existing mount.
func (m *embedded) start(ctx context.Context) (*daemon, error) {
	web, err := openWeb(m.cfg.HTTP, m.cfg.HTTPTokenFile, m.log) // first, because it fails most often and costs nothing
	if err != nil {
		return nil, err
	}
	web.steps = &m.steps
	hooks := &fs.Hooks{}
	d, err := m.program.openDaemon(ctx, m.cfg, m.at, hooks, web, m.log)
	if err != nil {
		return nil, errors.Join(err, web.close())
	}
	d.endsWith = m.with.pid
	d.restoreQuotas(ctx, m.quotas)
	web.at("mount " + m.at.path + ": not serving yet")
	if err = d.peers.start(d.engine); err != nil {
		err = fmt.Errorf("peers: %w", err)
	} else if m.session != nil {
		d.server, err = fs.Resume(d.engine, hooks, m.session, serverOptions(m.cfg, d, m.log))
		err = exit.With(exit.Mount, err)
	} else if err = exit.With(exit.Mount, mountOnce(ctx, m.at.path, func() (err error) {
		d.server, err = fs.Mount(d.engine, hooks, serverOptions(m.cfg, d, m.log))
		return err
	})); err == nil {
		m.guard.watch(m.at.path, m.log)
	}
	if err != nil {
		return nil, errors.Join(err, web.close(), d.closeUnused(m.session != nil))
	}
	m.session, m.at.memory = nil, "" // the server owns them now
	d.serving.Store(d.server)
	d.keepAlive()
	web.works(d)
	d.makeOffer(m.at.root)
	m.log.Info("mounted", zap.String("dir", m.at.path), zap.String("read_path", d.server.ReadPath()), zap.Uint32("epoch", d.server.Epoch()),
		zap.String("memory", d.cfg.Memory.Size.String()), zap.String("memory_dir", d.memory.Dir()))
	return d, nil
}

// run serves until it must stop, the mount is gone, or another process answers it.
func (m *embedded) run(ctx context.Context, d *daemon) error {
	for {
		var err error
		keep := m.cfg.Memory.Keep
		select {
		case <-ctx.Done():
			m.log.Info("stopping")
		case <-d.server.Served():
			if !m.guard.aborted() {
				m.log.Info("unmounted")
				break
			}
			err, keep = errAborted, true // systemd starts the next process, which adopts the memory
			m.log.Error("the connection was aborted and the mount is still there: stopping; blocks in memory stay for the next start", zap.String("dir", m.at.path))
		case <-m.with.ended:
			m.log.Info("the kvfs run that made this mount has ended: stopping", zap.Int("pid", m.with.pid))
		case err = <-d.peers.fatal():
			m.log.Error("this node must leave its cluster: stopping", zap.Error(err))
		case heir := <-d.offer.Load().Heir():
			if d, err = m.handOver(ctx, d, heir); d != nil {
				continue
			}
			return err
		}
		m.ready.stopping()
		return errors.Join(err, d.offer.Load().Close(), d.web.close(), d.stop(keep))
	}
}

// stop unmounts, waits until all requests are answered, and closes the tiers. Open handles keep
// their bytes until they are closed.
func (d *daemon) stop(keep bool) error {
	var err error
	select {
	case <-d.server.Served(): // ours is gone; the mount at the directory now, if any, is another's
	default:
		err = d.server.Unmount()
	}
	gone := make(chan struct{})
	go func() { d.server.Wait(); close(gone) }() // ends with the mount
	// A client with open files keeps the detached mount alive, but not this process.
	t := time.NewTimer(min(time.Duration(d.cfg.DrainTimeout), time.Second))
	defer t.Stop()
	select {
	case <-gone:
	case <-t.C:
		d.server.Close()
	}
	return errors.Join(err, d.close(keep))
}
