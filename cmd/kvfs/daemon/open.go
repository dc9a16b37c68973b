package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/metrics"
	"github.com/kvfs/kvfs/cmd/kvfs/page"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/fs"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/mem"
)

// callbacks are what the engine calls: fs.Hooks of one mount, or fs.Mounts of many.
type callbacks interface {
	Invalidate(by tiers.Process, parent, id index.ID, name string)
	Dropped(blob tiers.BlobID)
	Alive(p tiers.Process) bool
}

// site is where a daemon is found, and the mode and owner of its root directory.
type site struct {
	path string // mount point; for a store, its socket. The memory is named after it.
	root rootDir

	shared bool   // several mounts use the engine
	memory string // the directory of memory that is taken over; empty: anywhere
}

// openDaemon opens the tiers from the bottom up, then the engine, then the surface. It does not
// serve peers yet, and mounts nothing. It tells web how far it is.
func (p Program) openDaemon(ctx context.Context, cfg *config.Config, at site, hooks callbacks, web *web, log *zap.Logger) (d *daemon, err error) {
	asked, recent := cfg, &page.Log{} // before memory is fitted
	log = recent.Watch(log)
	if err := checkMemory(cfg, log); err != nil {
		return nil, err
	}
	if err := checkDescriptors(cfg); err != nil {
		return nil, exit.With(exit.Config, err)
	}
	d = &daemon{program: p, dir: at.path, cfg: cfg, log: log, started: time.Now(), web: web}
	d.files = fs.NewDescriptors(clientDescriptors(cfg), time.Duration(cfg.Mount.WriteTimeout))
	if d.traces, err = p.openTraces(ctx, cfg, log); err != nil {
		return nil, exit.With(exit.Config, err)
	}
	d.page = metrics.NewPage(d.snapshot)
	web.at("tier memory: opening")
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
	options.Secondaries, err = openSecondaries(ctx, cfg, web, log)
	if err != nil {
		return nil, errors.Join(err, d.closeMemory())
	}
	web.at("cluster: opening")
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
	options.Loaded = d.traces.Load
	web.at("tier memory: adopting blocks of an earlier process")
	d.engine, err = tiers.Open(ctx, options)
	if err != nil {
		d.peers.close()
		return nil, errors.Join(fmt.Errorf("engine: %w", err), closeSecondaries(options.Secondaries), d.closeMemory())
	}
	d.view = metrics.PageOf((&page.Source{Config: asked, Engine: d.engine, Began: time.Now(), Log: recent, Status: d.status}).JSON)
	d.surface, err = openSurface(ctx, cfg, d.engine, options.Secondaries, d.traces, log)
	if err != nil {
		return nil, errors.Join(err, d.closeUnused(at.memory != ""))
	}
	return d, nil
}

// closeMemory closes the memory of a start that fails before the engine has it. Blocks of an
// earlier process stay for the next start.
func (d *daemon) closeMemory() error { return d.memory.Close(!d.memory.Fresh()) }

// onceFree calls open again while another daemon that is ending still has the thing in use, for
// at most CloseGrace. It polls, because no event tells the end of another process's lock.
func onceFree[T any](ctx context.Context, log *zap.Logger, open func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, CloseGrace)
	defer cancel()
	for tick := (&Pace{}); ; {
		t, err := open()
		if !errors.Is(err, mem.ErrBusy) && !errors.Is(err, disk.ErrBusy) {
			return t, err
		}
		tick.note(log, "waiting for another kvfs process to end", err)
		if !tick.Wait(ctx) {
			return t, exit.With(exit.Mount, err)
		}
	}
}

// openMemory opens the memory tier. A takeover needs the same directory: another one would not
// hold the blocks of the clients.
func openMemory(ctx context.Context, cfg *config.Config, at site, log *zap.Logger) (*mem.Store, error) {
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

// CloseGrace is how long the tiers may take, beyond drain_timeout, to finish what they began.
const CloseGrace = 10 * time.Second

// close waits, at most drain_timeout, until all blocks on their way to the SSD are there. Then
// it closes the tiers.
func (d *daemon) close(keep bool) error {
	wait := time.Duration(d.cfg.DrainTimeout)
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	if err := d.engine.Drain(ctx); err != nil {
		d.log.Warn("stopped before all blocks were copied to the tiers below memory", zap.Duration("drain_timeout", wait), zap.Error(err))
	}
	return d.closeTiers(keep)
}

// memoryDir returns memory.dir as an absolute path, because other processes have other working
// directories. It is empty if memory.dir is not configured.
func memoryDir(cfg *config.Config) (string, error) {
	if cfg.Memory.Dir == "" {
		return "", nil
	}
	return filepath.Abs(cfg.Memory.Dir)
}

// closeUnused closes what a failed start has opened. Memory that was taken over stays as it
// was. closeUnused does not wait for copies, because clients wait for the next owner.
func (d *daemon) closeUnused(handed bool) error {
	if handed {
		return d.closeTiers(true)
	}
	return d.close(d.adopted())
}

// closeTiers closes the tiers at once. With keep, blocks that are not on the SSD stay in memory.
func (d *daemon) closeTiers(keep bool) error {
	if d.asleep != nil {
		d.asleep()
	}
	d.page.Close()
	d.view.Close()
	ctx, cancel := context.WithTimeout(context.Background(), CloseGrace)
	defer cancel()
	err := d.engine.Close(ctx, keep)
	d.peers.close()
	d.traces.Close()
	return errors.Join(err, d.surface.close(ctx))
}

// closeSecondaries closes tiers that no engine owns yet.
func closeSecondaries(list []tiers.SecondaryOptions) error {
	ctx, cancel := context.WithTimeout(context.Background(), CloseGrace)
	defer cancel()
	var errs []error
	for _, s := range list {
		errs = append(errs, s.Tier.Close(ctx))
	}
	return errors.Join(errs...)
}

// ssd is the SSD as a type of tier. Its options are sections of their own.
type ssd struct {
	cfg      *config.Config
	progress func(dir string, done, total int64) // of disk.Options
}

// Open implements driver.Opener.
func (s ssd) Open(ctx context.Context, name string, log *zap.Logger) (driver.Tier, error) {
	o, err := diskOptions(s.cfg, log)
	if err != nil {
		return nil, err
	}
	o.Name, o.Progress = name, s.progress
	o.Pool, err = directio.NewPool(directio.PoolOptions{SizeBytes: int64(s.cfg.Staging.Size), UsableRatio: s.cfg.Staging.UsableRatio})
	if err != nil {
		return nil, err
	}
	return disk.Open(ctx, o)
}

// openSecondaries opens the local tiers below memory, fastest first. The engine closes them.
func openSecondaries(ctx context.Context, cfg *config.Config, web *web, log *zap.Logger) (list []tiers.SecondaryOptions, err error) {
	for _, t := range cfg.Below() {
		opener := driver.Opener(ssd{cfg, recovering(web, t.Name)})
		if t.Type != config.TierDisk {
			opener = t.Options.(driver.Opener) // of tierTypes
		}
		web.at("tier " + t.Name + ": recovering")
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

// recovering returns a function that tells, on the web and on a terminal, how much of an SSD directory is read.
func recovering(web *web, tier string) func(dir string, done, total int64) {
	bar := show.NewBar(os.Stderr, show.IsTerminal(os.Stderr))
	var mu sync.Mutex // guards bar
	return func(dir string, done, total int64) {
		mu.Lock()
		defer mu.Unlock()
		if done == total { // of this directory
			bar.Clear()
			return
		}
		web.at(fmt.Sprintf("tier %s: recovering, %s at %d of %d slots", tier, dir, done, total))
		bar.Share("reading "+dir, done, total)
	}
}

// rootDir is the mode and owner of the root directory.
type rootDir struct{ mode, uid, gid uint32 }

// rootOf returns the mode and owner of the mount point.
func rootOf(dir string) (rootDir, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return rootDir{}, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	return rootDir{st.Mode & 0o7777, st.Uid, st.Gid}, nil
}
