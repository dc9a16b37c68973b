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
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/mem"
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

// mount is the life of a daemon: the tiers from the bottom up, the mount over
// them, then all of it down again.
func mount(ctx context.Context, cfg *config.Config, dir string, ready *readiness) (err error) {
	log, err := newLogger(cfg)
	if err != nil {
		return err
	}
	dir, err = mountPoint(dir, log)
	if err != nil {
		return withCode(exitMount, err)
	}
	if total := totalMemory(); int64(cfg.Memory.Size) > total {
		return withCode(exitConfig, fmt.Errorf("memory.size %v exceeds the memory of this machine, %v", cfg.Memory.Size, config.Size(total)))
	}
	d := &daemon{dir: dir, cfg: cfg, log: log, started: time.Now()}

	memory, err := mem.Open(ctx, memoryOptions(cfg, dir, log))
	if err != nil {
		return fmt.Errorf("memory tier: %w", err)
	}
	d.memory = memory
	hooks := &fs.Hooks{}
	options := engineOptions(cfg, memory, hooks, log)
	if err := ownRoot(&options, dir); err != nil {
		return errors.Join(err, memory.Close(true))
	}
	options.Secondaries, err = openSecondaries(ctx, cfg, log)
	if err != nil {
		return errors.Join(fmt.Errorf("disk tier: %w", err), memory.Close(true))
	}
	d.peers, err = openPeers(ctx, cfg, log)
	if err != nil {
		return errors.Join(fmt.Errorf("peers: %w", err), closeSecondaries(options.Secondaries), memory.Close(true))
	}
	defer d.peers.close()
	if d.peers != nil {
		options.Secondaries = append(options.Secondaries, d.peers.secondary(cfg))
	}
	d.engine, err = tiers.Open(ctx, options)
	if err != nil {
		return errors.Join(fmt.Errorf("engine: %w", err), closeSecondaries(options.Secondaries), memory.Close(true))
	}
	d.surface, err = openSurface(ctx, cfg, d.engine, options.Secondaries, log)
	if err != nil {
		return errors.Join(err, d.close(d.adopted()))
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
		zap.String("memory", cfg.Memory.Size.String()), zap.String("memory_dir", memory.Dir()))
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

// closeGrace is how long the tiers may take, beyond drain_timeout, to finish what
// they have begun.
const closeGrace = 10 * time.Second

// close has what is still on its way to the SSD get there, for as long as
// drain_timeout, and closes the tiers.
func (d *daemon) close(keep bool) error {
	wait := time.Duration(d.cfg.DrainTimeout)
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	if err := d.engine.Drain(ctx); err != nil {
		d.log.Warn("not everything was copied to the SSD", zap.Duration("drain_timeout", wait), zap.Error(err))
	}
	ctx, cancel = context.WithTimeout(context.Background(), closeGrace)
	defer cancel()
	err := d.engine.Close(ctx, keep)
	return errors.Join(err, d.surface.close(ctx))
}

// closeSecondaries closes tiers that no engine has taken over.
func closeSecondaries(list []tiers.SecondaryOptions) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
	defer cancel()
	var errs []error
	for _, s := range list {
		errs = append(errs, s.Tier.Close(ctx))
	}
	return errors.Join(errs...)
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
