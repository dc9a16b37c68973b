package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/fs"
)

// newMountCommand returns the command that mounts.
func newMountCommand() *cobra.Command {
	readyFD := -1
	cmd := &cobra.Command{
		Use:   "mount [flags] DIR",
		Short: "Mount at DIR and serve it, in the foreground, until SIGTERM, SIGINT or umount",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ready := newReadiness(readyFD)
			defer ready.close()
			cfg, err := config.Load(config.Sources{Environ: os.Environ(), Flags: cmd.Flags()})
			if err != nil {
				return withCode(exitConfig, err)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return mount(ctx, cfg, args[0], ready)
		},
	}
	cmd.Flags().IntVar(&readyFD, "ready-fd", -1, "descriptor to write one line to, and close, when the mount answers")
	config.AddFlags(cmd.Flags())
	return cmd
}

// mount is the life of a mount process. In mode embedded that is a daemon: the engine, the
// mount over it, then all of it down again.
func mount(ctx context.Context, cfg *config.Config, dir string, ready *readiness) (err error) {
	log, err := newLogger(cfg)
	if err != nil {
		return err
	}
	warn(cfg, log)
	dir, err = mountPoint(dir, log)
	if err != nil {
		return withCode(exitMount, err)
	}
	if cfg.Mode == config.ModeStandaloneStore {
		return attach(ctx, cfg, dir, ready, log)
	}
	root, err := rootOf(dir)
	if err != nil {
		return err
	}
	hooks := &fs.Hooks{}
	d, err := openDaemon(ctx, cfg, place{path: dir, root: root}, hooks, log)
	if err != nil {
		return err
	}
	d.server, err = fs.Mount(d.engine, hooks, serverOptions(cfg, d, log))
	if err != nil {
		return withCode(exitMount, errors.Join(err, d.close(d.adopted())))
	}
	d.serving.Store(d.server)
	if err := d.peers.start(d.engine); err != nil {
		return errors.Join(fmt.Errorf("peers: %w", err), d.stop(false))
	}
	stopHTTP, err := serveHTTP(cfg.HTTP, d, log)
	if err != nil {
		return errors.Join(err, d.stop(false))
	}
	log.Info("mounted", zap.String("dir", dir), zap.String("read_path", d.server.ReadPath()),
		zap.String("memory", cfg.Memory.Size.String()), zap.String("memory_dir", d.memory.Dir()))
	ready.ready(dir)

	select {
	case <-ctx.Done():
		log.Info("stopping")
	case <-d.server.Served():
		log.Info("unmounted")
	case err = <-d.peers.fatal():
		log.Error("this node cannot be part of its cluster", zap.Error(err))
	}
	ready.stopping()
	return errors.Join(err, stopHTTP(), d.stop(cfg.Memory.Keep))
}

// stop takes the mount away, waits until all requests are answered, and closes the
// tiers. Handles that are still open keep their bytes until they are closed.
func (d *daemon) stop(keep bool) error {
	err := d.server.Unmount()
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
		m, found, err := findMount(dir)
		if err != nil {
			return "", fmt.Errorf("mount point: %w", err)
		}
		if !found || m.fsType != fsType {
			break
		}
		if alive(m.point) {
			return "", fmt.Errorf("mount point %s: a kvfs daemon serves it already", dir)
		}
		log.Warn("taking away the mount of a daemon that died", zap.String("dir", m.point))
		if err := detach(context.Background(), m.point, true); err != nil {
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

// alive reports whether the daemon of the mount at dir answers. One that takes
// its time counts as alive.
func alive(dir string) bool {
	done := make(chan error, 1)
	go func() { // ends when the daemon answers or dies
		var st unix.Statfs_t
		done <- unix.Statfs(dir, &st)
	}()
	t := time.NewTimer(statusTimeout)
	defer t.Stop()
	select {
	case err := <-done:
		return !errors.Is(err, unix.ENOTCONN)
	case <-t.C:
		return true
	}
}
