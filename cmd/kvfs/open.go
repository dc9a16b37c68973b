package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/mem"
)

// callbacks are what the engine tells those above it: fs.Hooks of one mount, or fs.Mounts of
// many.
type callbacks interface {
	Invalidate(parent, id index.ID, name string)
	Dropped(blob tiers.BlobID)
	SameProcess(a, b uint32) bool
}

// place is where a daemon is found, and what its root directory is like.
type place struct {
	path string // mount point; of a store, its socket. The memory has its name from it.
	root rootDir

	shared bool   // by several mounts
	memory string // directory where the memory has to be, for it is taken over; empty: anywhere
}

// openDaemon opens the tiers from the bottom up, the engine over them, and what can be asked
// of it. Peers are not served yet, and nothing is mounted.
func openDaemon(ctx context.Context, cfg *config.Config, at place, hooks callbacks, log *zap.Logger) (d *daemon, err error) {
	if err := checkMemory(cfg); err != nil {
		return nil, err
	}
	d = &daemon{dir: at.path, cfg: cfg, log: log, started: time.Now()}
	d.memory, err = openMemory(ctx, cfg, at, log)
	if err != nil {
		return nil, fmt.Errorf("memory tier: %w", err)
	}
	options := engineOptions(cfg, d.memory, hooks, log)
	options.RootMode, options.RootUID, options.RootGID = at.root.mode, at.root.uid, at.root.gid
	options.Kernels = at.shared
	options.Secondaries, err = openSecondaries(ctx, cfg, log)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("disk tier: %w", err), d.memory.Close(true))
	}
	d.peers, err = openPeers(ctx, cfg, log)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("peers: %w", err), closeSecondaries(options.Secondaries), d.memory.Close(true))
	}
	if d.peers != nil {
		options.Secondaries = append(options.Secondaries, d.peers.secondary(cfg))
	}
	options.Freed = d.peers.freed()
	d.engine, err = tiers.Open(ctx, options)
	if err != nil {
		d.peers.close()
		return nil, errors.Join(fmt.Errorf("engine: %w", err), closeSecondaries(options.Secondaries), d.memory.Close(true))
	}
	d.surface, err = openSurface(ctx, cfg, d.engine, options.Secondaries, log)
	if err != nil {
		return nil, errors.Join(err, d.closeUnused(at.memory != ""))
	}
	return d, nil
}

// openMemory opens the memory tier, where it is if it is taken over: what another directory would
// hold is nothing of what clients have stored.
func openMemory(ctx context.Context, cfg *config.Config, at place, log *zap.Logger) (*mem.Store, error) {
	o := memoryOptions(cfg, at.path, log)
	var err error
	if o.Dir, err = memoryDir(cfg); err != nil {
		return nil, err
	}
	m, err := mem.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	if at.memory != "" && m.Dir() != at.memory {
		return nil, errors.Join(fmt.Errorf("it was opened at %s, want %s", m.Dir(), at.memory), m.Close(true))
	}
	return m, nil
}

// checkMemory fails if the machine has less memory than is asked for.
func checkMemory(cfg *config.Config) error {
	if total := totalMemory(); int64(cfg.Memory.Size) > total {
		return withCode(exitConfig, fmt.Errorf("memory.size %v exceeds the memory of this machine, %v", cfg.Memory.Size, config.Size(total)))
	}
	return nil
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
	return d.closeTiers(keep)
}

// memoryDir is memory.dir as an absolute path, for other processes work in other directories; empty if
// it is not configured.
func memoryDir(cfg *config.Config) (string, error) {
	if cfg.Memory.Dir == "" {
		return "", nil
	}
	return filepath.Abs(cfg.Memory.Dir)
}

// closeUnused closes what was opened in a start that fails. If the memory was taken over it stays as
// it was, and nothing is waited for, because clients wait for the next one who tries.
func (d *daemon) closeUnused(handed bool) error {
	if handed {
		return d.closeTiers(true)
	}
	return d.close(d.adopted())
}

// closeTiers closes the tiers at once. With keep, what has not got to the SSD is still in memory.
func (d *daemon) closeTiers(keep bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
	defer cancel()
	err := d.engine.Close(ctx, keep)
	d.peers.close()
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
