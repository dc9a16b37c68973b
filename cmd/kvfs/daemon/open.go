package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
	"github.com/kvfs/kvfs/cmd/kvfs/metrics"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/page"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/fs"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/mem"
	"github.com/kvfs/kvfs/tiers/state"
)

// callbacks are what the engine calls: fs.Hooks of one mount, or fs.Mounts of many.
type callbacks interface {
	Invalidate(by state.Process, parent, id index.ID, name string)
	Dropped(blob driver.BlobID)
	Alive(p state.Process) bool
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
	limit := min(openLimit(), math.MaxInt32) // clients get what descriptors does not count, and half of the spare
	d.files = fs.NewDescriptors(int(limit-min(limit, descriptors(cfg)))+spareDescriptors/2, time.Duration(cfg.Mount.WriteTimeout))
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

// close waits, at most drain_timeout, until all blocks on their way to the SSD are there. Then it closes the tiers.
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

// closeTiers closes the tiers at once. With keep, blocks that are not on the SSD stay in memory. The memory comes last of all
// that the next daemon needs, which may wait for it (onceFree).
func (d *daemon) closeTiers(keep bool) error {
	if d.asleep != nil {
		d.asleep()
	}
	d.page.Close()
	d.view.Close()
	d.surface.refuse()
	ctx, cancel := context.WithTimeout(context.Background(), CloseGrace)
	defer cancel()
	err := d.engine.Close(ctx, keep)
	d.peers.close()
	d.traces.Close()
	return errors.Join(err, d.surface.close(ctx))
}

func closeSecondaries(list []state.SecondaryOptions) error {
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
func openSecondaries(ctx context.Context, cfg *config.Config, web *web, log *zap.Logger) (list []state.SecondaryOptions, err error) {
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
		list = append(list, state.SecondaryOptions{
			Name: t.Name, Tier: tier, Cascade: state.CascadeMode(t.Cascade), QueueBytes: int64(t.CascadeQueue),
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

// spareDescriptors is for the directories of the memory tier, the mount, ports, and some
// hundred blocks that are open or in flight.
const spareDescriptors = 1024

// checkDescriptors fails if this process may open fewer files than descriptors. Go has raised the limit as far as it may.
func checkDescriptors(cfg *config.Config) error {
	if limit, need := openLimit(), descriptors(cfg); limit < need {
		return fmt.Errorf("this process may open %d files (RLIMIT_NOFILE), and needs %d with these settings: raise ulimit -n, LimitNOFILE= or --ulimit nofile=", limit, need)
	}
	return nil
}

// openLimit returns how many files this process may open; no limit if the kernel does not say.
func openLimit() uint64 {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return math.MaxUint64
	}
	return limit.Cur
}

// Bounds of the connections that other machines may have to a port for peers, and to that of blocks.
const (
	minConns = 64
	maxConns = 16384
	maxBulk  = 4096
)

// channelConns returns how many connections other machines may have to the control channel, and to that of blocks: each a
// quarter of what this process may open. So local files can be opened whatever comes from outside.
func channelConns() int {
	return int(max(minConns, min(openLimit()/4, maxConns)))
}

// descriptors returns how many files a daemon may have open: the slabs of the SSD tier, which stay open, the blocks on their
// way to buckets, and spare ones.
func descriptors(cfg *config.Config) uint64 {
	need := uint64(spareDescriptors)
	for _, t := range cfg.Tiers {
		if t.Options != nil { // maybe a driver.Packer
			need += lane.PackFiles
		}
	}
	for _, d := range cfg.Disk.Dirs {
		size := int64(d.Size)
		var st unix.Statfs_t
		if unix.Statfs(d.Path, &st) == nil || unix.Statfs(filepath.Dir(d.Path), &st) == nil { // the directory may not exist yet
			size = min(size, int64(st.Blocks)*st.Bsize)
		}
		need += uint64(size/max(int64(cfg.Disk.SlabSize), 1)) + 16 // 16 for small directories
	}
	return need
}

// MinRoom is the least room for memory that a file system must have.
const MinRoom = 16 * scalar.MiB

// fitMemory returns cfg, or a copy with smaller memory.size and headroom if the memory lies in
// a shared file system with less room. /dev/shm is one; in containers of Docker it has 64 MiB.
func fitMemory(cfg *config.Config, m *mem.Store, log *zap.Logger) (*config.Config, error) {
	room, err := m.RoomBytes()
	if err != nil {
		return nil, fmt.Errorf("memory tier: %w", err)
	}
	if int64(cfg.Memory.Size)+Headroom(cfg) <= room {
		return cfg, nil
	}
	if room < int64(MinRoom) {
		return nil, refuse(cfg, "memory.size", "%v: the file system of %s has room for %s, need at least %v: remount it with a larger size=, or give a container a larger --shm-size", cfg.Memory.Size, m.Dir(), show.Bytes(room), MinRoom)
	}
	fit := *cfg
	fit.Memory.Headroom = scalar.Size(min(Headroom(cfg), room/8))
	fit.Memory.Size = min(cfg.Memory.Size, scalar.Size(room)-fit.Memory.Headroom)
	log.Warn("memory.size exceeds the room of the file system: using less", zap.String("dir", m.Dir()), zap.Stringer("configured", cfg.Memory.Size),
		zap.Stringer("memory", fit.Memory.Size), zap.Stringer("headroom", fit.Memory.Headroom))
	return &fit, nil
}

// refuse returns the error about a setting that does not fit this machine.
func refuse(cfg *config.Config, path, format string, args ...any) error {
	return exit.With(exit.Config, &config.Error{Origin: cfg.Origin(path), Path: path, Err: fmt.Errorf(format, args...)})
}

// checkMemory fails if the machine, or the control group of this process, has less than memory.size.
func checkMemory(cfg *config.Config, log *zap.Logger) error {
	if total := config.TotalMemory(); cfg.Memory.Size > total {
		return refuse(cfg, "memory.size", "%v exceeds the memory of this machine, %s: make it smaller", cfg.Memory.Size, show.Bytes(int64(total)))
	}
	limit, ok := config.MemoryLimit()
	switch all := cfg.Memory.Size + scalar.Size(Headroom(cfg)); {
	case !ok:
	case cfg.Memory.Size > limit:
		return refuse(cfg, "memory.size", "%v exceeds the memory limit of the control group of this process, %s: make it smaller, or raise that limit", cfg.Memory.Size, show.Bytes(int64(limit)))
	case all > limit:
		log.Warn("memory.size and its headroom exceed the memory limit of the control group, which the blocks count against: the kernel may kill this process",
			zap.Stringer("memory", cfg.Memory.Size), zap.Stringer("with_headroom", all), zap.Stringer("limit", limit))
	}
	return nil
}

// minHeadroom is the least by which the primary tier's file system exceeds its capacity. The headroom holds
// blocks that grow beyond the group's size so far, and removed blocks that are open.
const minHeadroom = 64 << 20

// Headroom returns by how much the file system of the primary tier may exceed memory.size.
func Headroom(cfg *config.Config) int64 {
	if h := int64(cfg.Memory.Headroom); h > 0 {
		return h
	}
	return max(int64(cfg.Memory.Size)/8, minHeadroom)
}

// place is a path that a daemon uses, and what names it.
type place struct{ of, path string }

// places returns all paths that a process with cfg uses while it serves: those of the configuration, and others.
func places(cfg *config.Config) []place {
	runtime := filepath.Dir(handoff.DefaultPath(os.Getenv("XDG_RUNTIME_DIR")))
	if cfg.Mode == config.ModeStandaloneStore {
		return []place{{"the program", "/proc/self/exe"}, {"the directory of sockets", runtime}, {"store.socket", cfg.Store.Socket}}
	}
	list := []place{{"the program", "/proc/self/exe"}, {"the directory of sockets", runtime}}
	for _, p := range cfg.Paths() {
		list = append(list, place{p.Setting, p.File()})
	}
	if len(cfg.Tiers) > 0 {
		list = append(list, place{"the credentials of AWS", cmp.Or(os.Getenv("AWS_SHARED_CREDENTIALS_FILE"), filepath.Join(os.Getenv("HOME"), ".aws/credentials"))})
	}
	for _, name := range []string{"AWS_WEB_IDENTITY_TOKEN_FILE", "SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if path := os.Getenv(name); path != "" {
			list = append(list, place{name, path})
		}
	}
	return list
}

// checkPlaces fails if a path of this process is in a kvfs mount, or below dir, at which one will be. A daemon that
// needs a file of its own mount waits for itself, and two daemons can wait for each other. An empty dir is none. It asks no mount.
func checkPlaces(cfg *config.Config, dir string) error {
	var errs []error
	for _, p := range places(cfg) {
		at, err := hidden(p.path, dir)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %q: %w", p.of, p.path, err))
		} else if at != "" {
			errs = append(errs, fmt.Errorf("%s: %q is in the mount at %s, and a daemon that needs a file of a kvfs mount may wait for itself: move it to another file system", p.of, p.path, at))
		}
	}
	return exit.With(exit.Config, errors.Join(errs...))
}

// hidden returns where the kvfs mount is, or dir if one there would be it, that path leads into; "" if there is none.
func hidden(path, dir string) (at string, err error) {
	m, err := mounts.Inside(path)
	if m != nil || err != nil || dir == "" {
		if m != nil {
			at = m.Mountpoint
		}
		return at, err
	}
	below, err := mounts.Below(path, dir)
	if !below {
		return "", err
	}
	return dir, err
}

// warnOutput warns if standard output or standard error is a file of a kvfs mount.
func warnOutput(log *zap.Logger) {
	for _, f := range []*os.File{os.Stdout, os.Stderr} {
		if m, err := mounts.Holds(int(f.Fd())); err == nil && m != nil {
			log.Warn("a file of a kvfs mount is open for output: the mount stays busy, and log lines may be lost. Redirect the output to another file system",
				zap.String("output", f.Name()), zap.String("dir", m.Mountpoint))
		}
	}
}
