package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/fs"
)

// newMountCommand returns the command that mounts.
func newMountCommand() *cobra.Command {
	readyFD := -1
	takeover, background := false, false
	endsWith := 0
	cmd := &cobra.Command{
		Use:   "mount [flags] DIR",
		Short: "Mount at DIR and serve it until SIGTERM, SIGINT or umount",
		Long: "Mount at DIR and serve it, in the foreground unless --background is given, until SIGTERM, SIGINT or umount. With --takeover the mount is there " +
			"already: its daemon hands it over, with what is in memory, and ends. Clients wait for as long as that takes.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ready := newReadiness(readyFD)
			defer ready.close()
			cfg, err := load(config.Sources{Environ: os.Environ(), Flags: cmd.Flags()})
			if err != nil {
				return exit.With(exit.Config, err)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			if background {
				return mountInBackground(ctx, os.Args[1:])
			}
			if takeover {
				return takeOver(ctx, cfg, args[0], ready)
			}
			return mount(ctx, cfg, args[0], endsWith, ready)
		},
	}
	cmd.Flags().IntVar(&readyFD, "ready-fd", -1, "descriptor to write one line to, and close, when the mount answers")
	cmd.Flags().BoolVar(&takeover, "takeover", false, "replace the daemon that serves DIR; what is in memory stays, and so does the mount")
	cmd.Flags().BoolVarP(&background, "background", "d", false, "return when the mount answers, or has failed; the daemon goes on, and logs to the same standard error")
	cmd.MarkFlagsMutuallyExclusive("background", "ready-fd")
	cmd.Flags().IntVar(&endsWith, endsWithFlag, 0, "process, the kvfs run, that this one was started by to end with")
	_ = cmd.Flags().MarkHidden(endsWithFlag) // it is there
	config.AddFlags(cmd.Flags())
	return cmd
}

// mount is the life of a mount process. In mode embedded that is a daemon, whose mount is to end with
// process endsWith, if that is not 0.
func mount(ctx context.Context, cfg *config.Config, dir string, endsWith int, ready *readiness) (err error) {
	log, err := newLogger(cfg)
	if err != nil {
		return err
	}
	defer hearHangup(log)()
	warn(cfg, log)
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
	if cfg.Mode == config.ModeStandaloneStore {
		return attach(ctx, cfg, dir, ready, log)
	}
	root, err := rootOf(dir)
	if err != nil {
		return err
	}
	m := &embedded{cfg: cfg, at: place{path: dir, root: root}, ready: ready, log: log, with: &launcher{pid: endsWith}}
	defer m.guard.close()
	d, err := m.start(ctx)
	if err != nil {
		return err
	}
	ready.ready(dir)
	return m.run(ctx, d)
}

// embedded is a process with a mount of its own: the engine, the mount over it, then all of it down
// again. The mount may go over to another process, and may have come from one.
type embedded struct {
	cfg   *config.Config
	at    place
	ready *readiness
	log   *zap.Logger
	with  *launcher
	guard guard

	session *fs.Session // a mount that is there and that nobody answers; nil: it is to be made, or is answered
}

// start opens the tiers and answers the mount, which it makes if there is none. That comes last: if
// start fails, a mount that was there has been told nothing, and what is in memory stays with it.
func (m *embedded) start(ctx context.Context) (*daemon, error) {
	web, err := listenHTTP(m.cfg.HTTP) // first: it fails the most often, and costs nothing then
	if err != nil {
		return nil, err
	}
	hooks := &fs.Hooks{}
	d, err := openDaemon(ctx, m.cfg, m.at, hooks, m.log)
	if err != nil {
		if web != nil {
			err = errors.Join(err, web.Close())
		}
		return nil, err
	}
	d.endsWith = m.with.pid
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
		if web != nil {
			err = errors.Join(err, web.Close())
		}
		return nil, errors.Join(err, d.closeUnused(m.session != nil))
	}
	m.session, m.at.memory = nil, "" // the server's
	d.serving.Store(d.server)
	d.keepAlive()
	d.stopHTTP = serveHTTP(web, d, m.log)
	d.makeOffer(m.at.root)
	m.log.Info("mounted", zap.String("dir", m.at.path), zap.String("read_path", d.server.ReadPath()), zap.Uint32("epoch", d.server.Epoch()),
		zap.String("memory", d.cfg.Memory.Size.String()), zap.String("memory_dir", d.memory.Dir()))
	return d, nil
}

// run serves until it is asked to stop, the mount is gone, or another process answers it.
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
			err, keep = errAborted, true // for the next start, which systemd makes
			m.log.Error("the connection was aborted and the mount is still there: stopping, what is in memory stays", zap.String("dir", m.at.path))
		case <-m.with.ended:
			m.log.Info("the kvfs run that made this mount has ended: stopping", zap.Int("pid", m.with.pid))
		case err = <-d.peers.fatal():
			m.log.Error("this node cannot be part of its cluster", zap.Error(err))
		case heir := <-d.offer.Load().Heir():
			if d, err = m.handOver(ctx, d, heir); d != nil {
				continue
			}
			return err
		}
		m.ready.stopping()
		return errors.Join(err, d.offer.Load().Close(), d.stopHTTP(), d.stop(keep))
	}
}

// stop takes the mount away, waits until all requests are answered, and closes the
// tiers. Handles that are still open keep their bytes until they are closed.
func (d *daemon) stop(keep bool) error {
	var err error
	select {
	case <-d.server.Served(): // it is gone; what is at the directory now is somebody else's
	default:
		err = d.server.Unmount()
	}
	gone := make(chan struct{})
	go func() { d.server.Wait(); close(gone) }() // ends with the mount
	// A client that keeps files open keeps the detached mount alive, but not
	// this process.
	t := time.NewTimer(min(time.Duration(d.cfg.DrainTimeout), time.Second))
	defer t.Stop()
	select {
	case <-gone:
	case <-t.C:
		d.server.Close()
	}
	return errors.Join(err, d.close(keep))
}

// mountPoint returns dir as a clean absolute path, after taking away what a
// daemon that was killed left mounted there. It fails if dir is not an empty
// directory or has a live mount.
func mountPoint(dir string, log *zap.Logger) (string, error) {
	for {
		m, err := mounts.Find(dir)
		if err != nil {
			return "", fmt.Errorf("mount point: %w", err)
		}
		if !mounts.IsOurs(m) {
			break
		}
		if !mounts.Abandoned(m) {
			switch err := mounts.Answers(m.Mountpoint); {
			case err == nil:
				return "", fmt.Errorf("mount point %s: a kvfs daemon serves it already", dir)
			case errors.Is(err, mounts.ErrSilent):
				return "", fmt.Errorf("mount point %w", err)
			}
		}
		log.Warn("taking away the mount of a daemon that died", zap.String("dir", m.Mountpoint))
		if err := mounts.GiveUp(context.Background(), m); err != nil {
			return "", fmt.Errorf("mount point %s: stale mount: %w", dir, err)
		}
	}
	abs, err := filepath.Abs(dir)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return "", fmt.Errorf("mount point: %w", err)
	}
	entries, err := os.ReadDir(abs)
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		return "", fmt.Errorf("mount point %s: not a directory", dir)
	case err != nil:
		return "", fmt.Errorf("mount point: %w", err)
	case len(entries) > 0:
		return "", fmt.Errorf("mount point %s: not empty (%s)", dir, entries[0].Name())
	}
	if err := unix.Access("/dev/fuse", unix.F_OK); err != nil {
		return "", &os.PathError{Op: "mount: open", Path: "/dev/fuse", Err: err}
	}
	return abs, nil
}

// checkApart fails if the mount point is a directory of the SSD tier, or in one: the mount would hide what the tier
// has there, and the tier refuses directories with the files of others.
func checkApart(cfg *config.Config, dir string) error {
	for _, d := range cfg.Disk.Dirs {
		ssd, err := filepath.Abs(d.Path)
		if err == nil {
			if real, err := filepath.EvalSymlinks(ssd); err == nil { // else it is to be made
				ssd = real
			}
		}
		if err == nil && (dir == ssd || strings.HasPrefix(dir, ssd+"/")) {
			return fmt.Errorf("mount point %s: it is in the directory of the SSD tier, %s (disk.dirs)", dir, d.Path)
		}
	}
	return nil
}
