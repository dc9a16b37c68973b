package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/mem"
)

// callbacks are what the engine tells those above it: fs.Hooks of one mount, or fs.Mounts of
// many.
type callbacks interface {
	Invalidate(by tiers.Process, parent, id index.ID, name string)
	Dropped(blob tiers.BlobID)
	Alive(p tiers.Process) bool
	Closed(p tiers.Process, id index.ID) bool
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
func (p Program) openDaemon(ctx context.Context, cfg *config.Config, at place, hooks callbacks, log *zap.Logger) (d *daemon, err error) {
	if err := checkMemory(cfg, log); err != nil {
		return nil, err
	}
	if err := checkDescriptors(cfg); err != nil {
		return nil, exit.With(exit.Config, err)
	}
	d = &daemon{program: p, dir: at.path, cfg: cfg, log: log, started: time.Now()}
	d.memory, err = onceFree(ctx, log, func() (*mem.Store, error) { return openMemory(ctx, cfg, at, log) })
	if err != nil {
		return nil, fmt.Errorf("memory tier: %w", err)
	}
	if cfg, err = fitMemory(cfg, d.memory, log); err != nil {
		return nil, errors.Join(err, d.closeMemory())
	}
	d.cfg = cfg
	options := engineOptions(cfg, d.memory, hooks, log)
	options.Now = p.Clock
	options.RootMode, options.RootUID, options.RootGID = at.root.mode, at.root.uid, at.root.gid
	options.Kernels = at.shared
	options.Secondaries, err = openSecondaries(ctx, cfg, log)
	if err != nil {
		return nil, errors.Join(err, d.closeMemory())
	}
	graves, err := gravePath(cfg, d.memory.Dir())
	if err == nil {
		d.peers, err = openPeers(ctx, p, cfg, graves, log)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("peers: %w", err), closeSecondaries(options.Secondaries), d.closeMemory())
	}
	if d.peers != nil {
		options.Secondaries = append(options.Secondaries, d.peers.secondary(cfg))
	}
	options.Freed = d.peers.freed()
	d.engine, err = tiers.Open(ctx, options)
	if err != nil {
		d.peers.close()
		return nil, errors.Join(fmt.Errorf("engine: %w", err), closeSecondaries(options.Secondaries), d.closeMemory())
	}
	d.surface, err = openSurface(ctx, cfg, d.engine, options.Secondaries, log)
	if err != nil {
		return nil, errors.Join(err, d.closeUnused(at.memory != ""))
	}
	return d, nil
}

// closeMemory closes the memory of a start that fails before the engine has it. What an earlier
// process has left stays for the next start.
func (d *daemon) closeMemory() error { return d.memory.Close(!d.memory.Fresh()) }

// onceFree opens what a daemon that still ends may have in use: it waits for that as long as CloseGrace,
// as there is no event for the end of another's lock.
func onceFree[T any](ctx context.Context, log *zap.Logger, open func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, CloseGrace)
	defer cancel()
	for tick := (&Pace{}); ; {
		t, err := open()
		if !errors.Is(err, mem.ErrBusy) && !errors.Is(err, disk.ErrBusy) {
			return t, err
		}
		tick.note(log, "waiting for another process to end", err)
		if !tick.Wait(ctx) {
			return t, exit.With(exit.Mount, err)
		}
	}
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
	if errors.Is(err, block.ErrInvalid) {
		return nil, exit.With(exit.Config, err)
	}
	if err != nil {
		return nil, err
	}
	if at.memory != "" && m.Dir() != at.memory {
		return nil, errors.Join(fmt.Errorf("it was opened at %s, want %s", m.Dir(), at.memory), m.Close(true))
	}
	return m, nil
}

// CloseGrace is how long the tiers may take, beyond drain_timeout, to finish what
// they have begun.
const CloseGrace = 10 * time.Second

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
	if d.asleep != nil {
		d.asleep()
	}
	ctx, cancel := context.WithTimeout(context.Background(), CloseGrace)
	defer cancel()
	err := d.engine.Close(ctx, keep)
	d.peers.close()
	return errors.Join(err, d.surface.close(ctx))
}

// closeSecondaries closes tiers that no engine has taken over.
func closeSecondaries(list []tiers.SecondaryOptions) error {
	ctx, cancel := context.WithTimeout(context.Background(), CloseGrace)
	defer cancel()
	var errs []error
	for _, s := range list {
		errs = append(errs, s.Tier.Close(ctx))
	}
	return errors.Join(errs...)
}

// ssd is the disk as a type of tier, whose options are sections of their own.
type ssd struct{ cfg *config.Config }

// Open implements driver.Opener.
func (s ssd) Open(ctx context.Context, name string, log *zap.Logger) (driver.Tier, error) {
	o, err := diskOptions(s.cfg, log)
	if err != nil {
		return nil, err
	}
	o.Name = name
	o.Pool, err = directio.NewPool(directio.PoolOptions{SizeBytes: int64(s.cfg.Staging.Size), UsableRatio: s.cfg.Staging.UsableRatio})
	if err != nil {
		return nil, err
	}
	return disk.Open(ctx, o)
}

// openSecondaries opens the tiers of this machine below memory, fastest first. The engine closes them.
func openSecondaries(ctx context.Context, cfg *config.Config, log *zap.Logger) (list []tiers.SecondaryOptions, err error) {
	for _, t := range cfg.Below() {
		opener := driver.Opener(ssd{cfg})
		if t.Type != config.TierDisk {
			opener = t.Options.(driver.Opener) // of tierTypes
		}
		tier, err := onceFree(ctx, log, func() (driver.Tier, error) { return opener.Open(ctx, t.Name, log) })
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s tier: %w", t.Name, err), closeSecondaries(list))
		}
		list = append(list, tiers.SecondaryOptions{
			Name: t.Name, Tier: tier, Cascade: tiers.CascadeMode(t.Cascade), QueueBytes: int64(t.CascadeQueue),
			SecondHit: t.Admission == config.AdmitSecondHit,
		})
	}
	return list, nil
}

// rootDir is the mode and owner of the root directory.
type rootDir struct{ mode, uid, gid uint32 }

// rootOf returns those that the administrator gave the mount point.
func rootOf(dir string) (rootDir, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return rootDir{}, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	return rootDir{st.Mode & 0o7777, st.Uid, st.Gid}, nil
}
