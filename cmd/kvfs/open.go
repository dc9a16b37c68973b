package main

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
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk"
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
func openDaemon(ctx context.Context, cfg *config.Config, at place, hooks callbacks, log *zap.Logger) (d *daemon, err error) {
	if err := checkMemory(cfg, log); err != nil {
		return nil, err
	}
	if err := checkDescriptors(cfg); err != nil {
		return nil, exit.With(exit.Config, err)
	}
	d = &daemon{dir: at.path, cfg: cfg, log: log, started: time.Now()}
	d.memory, err = onceFree(ctx, log, func() (*mem.Store, error) { return openMemory(ctx, cfg, at, log) })
	if err != nil {
		return nil, fmt.Errorf("memory tier: %w", err)
	}
	if cfg, err = fitMemory(cfg, d.memory, log); err != nil {
		return nil, errors.Join(err, d.closeMemory())
	}
	d.cfg = cfg
	options := engineOptions(cfg, d.memory, hooks, log)
	options.RootMode, options.RootUID, options.RootGID = at.root.mode, at.root.uid, at.root.gid
	options.Kernels = at.shared
	options.Secondaries, err = openSecondaries(ctx, cfg, log)
	if err != nil {
		return nil, errors.Join(err, d.closeMemory())
	}
	graves, err := gravePath(cfg, d.memory.Dir())
	if err == nil {
		d.peers, err = openPeers(ctx, cfg, graves, log)
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

// onceFree opens what a daemon that still ends may have in use: it waits for that as long as closeGrace,
// as there is no event for the end of another's lock.
func onceFree[T any](ctx context.Context, log *zap.Logger, open func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, closeGrace)
	defer cancel()
	for tick := (&pace{}); ; {
		t, err := open()
		if !errors.Is(err, mem.ErrBusy) && !errors.Is(err, disk.ErrBusy) {
			return t, err
		}
		tick.note(log, "waiting for another process to end", err)
		if !tick.wait(ctx) {
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

// spareDescriptors are for the directories of the memory tier, the mount, ports, and some hundred blocks that are
// open or in flight at a time.
const spareDescriptors = 1024

// checkDescriptors fails if this process may open fewer files than it needs at least: the slabs of the SSD tier, which
// stay open, and spareDescriptors. Go has raised the limit as far as it may.
func checkDescriptors(cfg *config.Config) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return os.NewSyscallError("getrlimit", err)
	}
	need := uint64(spareDescriptors)
	for _, d := range cfg.Disk.Dirs {
		size := int64(d.Size)
		var st unix.Statfs_t
		if unix.Statfs(d.Path, &st) == nil || unix.Statfs(filepath.Dir(d.Path), &st) == nil { // it may be to be made
			size = min(size, int64(st.Blocks)*st.Bsize)
		}
		need += uint64(size/max(int64(cfg.Disk.SlabSize), 1)) + 16 // of small directories
	}
	if limit.Cur < need {
		return fmt.Errorf("this process may open %d files (RLIMIT_NOFILE), and needs %d with these settings: raise ulimit -n, LimitNOFILE= or --ulimit nofile=", limit.Cur, need)
	}
	return nil
}

// minRoom is the least memory that a file system has to have room for.
const minRoom = 16 * config.MiB

// fitMemory returns cfg, or a copy with a memory.size and a headroom for which there is room where the memory is in a
// file system that it shares, as /dev/shm, which is 64 MiB in containers of Docker.
func fitMemory(cfg *config.Config, m *mem.Store, log *zap.Logger) (*config.Config, error) {
	room, err := m.RoomBytes()
	if err != nil {
		return nil, fmt.Errorf("memory tier: %w", err)
	}
	if int64(cfg.Memory.Size)+headroom(cfg) <= room {
		return cfg, nil
	}
	if room < int64(minRoom) {
		return nil, exit.With(exit.Config, fmt.Errorf("memory.size %v: the file system of %s has room for %v, want %v at least", cfg.Memory.Size, m.Dir(), config.Size(room), minRoom))
	}
	fit := *cfg
	fit.Memory.Headroom = config.Size(min(headroom(cfg), room/8))
	fit.Memory.Size = min(cfg.Memory.Size, config.Size(room)-fit.Memory.Headroom)
	log.Warn("memory.size is more than the file system has room for: using less", zap.String("dir", m.Dir()), zap.Stringer("configured", cfg.Memory.Size),
		zap.Stringer("memory", fit.Memory.Size), zap.Stringer("headroom", fit.Memory.Headroom))
	return &fit, nil
}

// checkMemory fails if the machine, or the control group of this process, has less memory than is asked for.
func checkMemory(cfg *config.Config, log *zap.Logger) error {
	if total := totalMemory(); int64(cfg.Memory.Size) > total {
		return exit.With(exit.Config, fmt.Errorf("memory.size %v exceeds the memory of this machine, %v", cfg.Memory.Size, config.Size(total)))
	}
	limit, ok := config.MemoryLimit()
	switch all := cfg.Memory.Size + config.Size(headroom(cfg)); {
	case !ok:
	case cfg.Memory.Size > limit:
		return exit.With(exit.Config, fmt.Errorf("memory.size %v exceeds the memory limit of the control group of this process, %v", cfg.Memory.Size, limit))
	case all > limit:
		log.Warn("memory.size and its headroom exceed the memory limit of the control group, against which the blocks count: this process may be killed",
			zap.Stringer("memory", cfg.Memory.Size), zap.Stringer("with_headroom", all), zap.Stringer("limit", limit))
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
	if d.asleep != nil {
		d.asleep()
	}
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
