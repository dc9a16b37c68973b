package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/fs"
	"github.com/kvfs/kvfs/fs/control"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/mem"
)

// newLogger logs to standard error.
func newLogger(cfg *config.Config) (*zap.Logger, error) {
	c := zap.NewProductionConfig()
	if cfg.Log.Format == "console" {
		c = zap.NewDevelopmentConfig()
		c.Development = false
	}
	c.DisableStacktrace, c.DisableCaller, c.Sampling = true, true, nil
	level, err := zapcore.ParseLevel(cfg.Log.Level)
	if err != nil {
		return nil, err
	}
	c.Level = zap.NewAtomicLevelAt(level)
	return c.Build()
}

// warn logs what is odd about the configuration.
func warn(cfg *config.Config, log *zap.Logger) {
	for _, line := range cfg.Warnings {
		log.Warn(line)
	}
}

// hearHangup has SIGHUP, of which a process dies that does not know it, say how settings are changed. The
// function that it returns ends that.
func hearHangup(log *zap.Logger) (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGHUP)
	go func() { // ends with stop
		for range signals {
			log.Info("SIGHUP: settings are not read again; with kvfs mount --takeover another daemon takes them, certificates and keys are read when their files change")
		}
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
	}
}

// minHeadroom is the least by which the primary tier's file system exceeds its
// capacity: room for the blocks that writers make longer than the group's blocks
// so far, and for removed ones that are still open.
const minHeadroom = 64 << 20

func headroom(cfg *config.Config) int64 {
	if h := int64(cfg.Memory.Headroom); h > 0 {
		return h
	}
	return max(int64(cfg.Memory.Size)/8, minHeadroom)
}

// storeID names the memory of the mount at dir: readable, and different for
// different directories.
func storeID(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	name := []byte(filepath.Base(dir))
	for i, c := range name {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
			name[i] = '_'
		}
	}
	return string(name[:min(len(name), 32)]) + "-" + hex.EncodeToString(sum[:6])
}

func memoryOptions(cfg *config.Config, dir string, log *zap.Logger) mem.Options {
	return mem.Options{
		ID: "m" + storeID(dir), Label: dir, Dir: cfg.Memory.Dir,
		SizeBytes: int64(cfg.Memory.Size), HeadroomBytes: headroom(cfg), Huge: cfg.Memory.Huge, NUMA: cfg.Memory.NUMA,
		Logger: log.Named("memory"),
	}
}

// diskOptions describes the SSD tier. Its directories are absolute.
func diskOptions(cfg *config.Config, log *zap.Logger) (disk.Options, error) {
	o := disk.Options{
		Policy: cfg.Disk.Policy, SlabBytes: int64(cfg.Disk.SlabSize),
		SyncBytes: int64(cfg.Disk.SyncBytes), SyncInterval: time.Duration(cfg.Disk.SyncInterval),
		ScrubBytesPerSecond: int64(cfg.Disk.ScrubRate), DailyWriteBudgetBytes: int64(cfg.Disk.DailyWriteBudget),
		StuckTimeout: time.Duration(cfg.Disk.StuckTimeout),
		DirectIO: directio.Options{
			Engine: cfg.DirectIO.Engine, InFlightBytes: int64(cfg.DirectIO.InFlight), ChunkBytes: int(cfg.DirectIO.Chunk),
			Logger: log.Named("directio"),
		},
		Logger: log.Named("disk"),
	}
	for _, d := range cfg.Disk.Dirs {
		dir, err := filepath.Abs(d.Path)
		if err != nil {
			return o, err
		}
		o.Devices = append(o.Devices, disk.DeviceOptions{Dir: dir, CapacityBytes: int64(d.Size)})
	}
	return o, nil
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

func engineOptions(cfg *config.Config, memory driver.Primary, hooks callbacks, log *zap.Logger) tiers.Options {
	// Zero means "none" in the configuration and "default" in the library.
	never := time.Duration(math.MaxInt64)
	o := tiers.Options{
		Primary: memory, CapacityBytes: int64(cfg.Memory.Size), HeadroomBytes: headroom(cfg),
		Policy:        cfg.Memory.Policy,
		HighWatermark: cfg.Memory.HighWatermark, LowWatermark: cfg.Memory.LowWatermark,
		Groups:       map[block.GroupID]tiers.GroupOptions{},
		WriteTimeout: max(time.Duration(cfg.Mount.WriteTimeout), 1),
		// A look-up may be answered by the kernel for as long as it keeps the
		// name; the promise holds from the last such answer.
		LookupLease:  time.Duration(cfg.Mount.LookupLease) + time.Duration(cfg.Mount.EntryTimeout),
		TempPatterns: cfg.Mount.TempPatterns, PlainPatterns: cfg.Mount.PlainPatterns,
		TempExpiry: time.Duration(cfg.Mount.TempExpiry),

		PromoteOnLookup: cfg.Promotion.On == config.PromoteOnLookup, PromoteTimeout: max(time.Duration(cfg.Promotion.Timeout), 1),
		PromoteBatchKeys: cfg.Promotion.BatchKeys, PromoteBatchBytes: int64(cfg.Promotion.BatchBytes),
		OpenDeadline: time.Duration(cfg.Promotion.OpenDeadline), PromoteWindow: time.Duration(cfg.Promotion.Window), TierSummary: cfg.Log.TierSummary,

		HideElsewhere: cfg.Readdir.Remote == config.Off,

		Now: clock(), Alive: hooks.Alive, Closed: hooks.Closed, Invalidate: hooks.Invalidate, Dropped: hooks.Dropped,
		Logger: log.Named("engine"),
	}
	if cfg.Mount.LookupLease == 0 {
		o.LookupLease = -1
	}
	if o.TempExpiry == 0 {
		o.TempExpiry = never
	}
	if o.PlainPatterns == nil {
		o.PlainPatterns = []string{}
	}
	if o.TempPatterns == nil {
		o.TempPatterns = []string{}
	}
	for name, g := range cfg.Groups {
		o.Groups[block.GroupID(name)] = tiers.GroupOptions{
			Pinned: g.Pinned, QuotaBytes: int64(g.Quota), BlockBytes: int64(g.BlockSize), Strict: g.Strict,
			OpenDeadline: time.Duration(g.OpenDeadline),
		}
	}
	return o
}

func serverOptions(cfg *config.Config, d *daemon, log *zap.Logger) fs.Options {
	o := fs.Options{
		Dir: d.dir, FSName: cfg.Mount.FSName,
		AllowOther:   allowOther(cfg),
		EntryTimeout: time.Duration(cfg.Mount.EntryTimeout), AttrTimeout: time.Duration(cfg.Mount.AttrTimeout),
		MaxWrite: int(cfg.Mount.MaxWrite), Passthrough: fs.Switch(cfg.Memory.Passthrough),
		Status: d.status, Control: d.surface.files(), ListElsewhere: cfg.Bind != "" && cfg.Readdir.Remote == config.On,
		ListTimeout: time.Duration(cfg.Peer.Timeout), Logger: log.Named("fs"),
	}
	if d.peers != nil {
		o.Control = append(o.Control, control.File{Name: "members", Text: d.peers.membersText})
	}
	return o
}

// totalMemory returns the RAM of the machine in bytes.
func totalMemory() int64 {
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return math.MaxInt64
	}
	return int64(si.Totalram) * int64(si.Unit)
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
