package daemon

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/fs"
	"github.com/kvfs/kvfs/fs/control"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/mem"
	"github.com/kvfs/kvfs/tiers/state"
)

// storeID names the memory of the mount at dir: readable, and different for each directory.
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
		SizeBytes: int64(cfg.Memory.Size), HeadroomBytes: Headroom(cfg), Huge: cfg.Memory.Huge, NUMA: cfg.Memory.NUMA,
		Logger: log.Named("memory"),
	}
}

// The SSD tier makes written bytes durable after syncInterval, or earlier after syncBytes.
const (
	syncBytes    = 64 << 20
	syncInterval = time.Second
)

// StateDir returns the directory for what kvfs remembers when its other directories are not there. It is
// "" if this user has none.
func StateDir(getenv func(string) string) string {
	if dir, _, _ := strings.Cut(getenv("STATE_DIRECTORY"), ":"); dir != "" { // from systemd, for StateDirectory=
		return dir
	}
	if os.Geteuid() == 0 {
		return "/var/lib/kvfs"
	}
	if dir := getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "kvfs")
	}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local/state/kvfs")
	}
	return ""
}

// diskOptions returns the options of the SSD tier, with absolute directories.
func diskOptions(cfg *config.Config, log *zap.Logger) (disk.Options, error) {
	o := disk.Options{
		Policy: cfg.Disk.Policy, SlabBytes: int64(cfg.Disk.SlabSize),
		SyncBytes: syncBytes, SyncInterval: syncInterval,
		ScrubBytesPerSecond: int64(cfg.Disk.ScrubRate), DailyWriteBudgetBytes: int64(cfg.Disk.DailyWriteBudget),
		StuckTimeout: time.Duration(cfg.Disk.StuckTimeout),
		RequireMount: cfg.Disk.RequireMount, StateDir: StateDir(os.Getenv),
		DirectIO: directio.Options{
			Engine: cfg.DirectIO.Engine, Logger: log.Named("directio"),
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

func engineOptions(cfg *config.Config, memory driver.Primary, hooks callbacks, log *zap.Logger) state.Options {
	// Zero means "none" in the configuration and "default" in the library.
	never := time.Duration(math.MaxInt64)
	o := state.Options{
		Primary: memory, CapacityBytes: int64(cfg.Memory.Size), HeadroomBytes: Headroom(cfg),
		CatchUpRate: int64(cfg.CatchUpRate), Policy: cfg.Memory.Policy, BurstGap: time.Duration(cfg.Memory.BurstGap),
		HighWatermark: cfg.Memory.HighWatermark, LowWatermark: cfg.Memory.LowWatermark,
		Groups:       map[block.GroupID]state.GroupOptions{},
		WriteTimeout: max(time.Duration(cfg.Mount.WriteTimeout), 1),
		// The kernel may answer a look-up for as long as it keeps the name. The lease runs from the last such answer.
		LookupLease:  time.Duration(cfg.Mount.LookupLease) + time.Duration(cfg.Mount.EntryTimeout),
		TempPatterns: cfg.Mount.TempPatterns, PlainPatterns: cfg.Mount.PlainPatterns,
		TempExpiry: time.Duration(cfg.Mount.TempExpiry),

		PromoteOnLookup: cfg.Promotion.On == config.PromoteOnLookup, PromoteTimeout: max(time.Duration(cfg.Promotion.Timeout), 1),
		OpenDeadline: time.Duration(cfg.Promotion.OpenDeadline), PromoteWindow: time.Duration(cfg.Promotion.Window), TierSummary: cfg.Log.TierSummary,

		HideElsewhere: cfg.Readdir.Remote == config.Off,

		Alive: hooks.Alive, Invalidate: hooks.Invalidate, Dropped: hooks.Dropped,
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
		o.Groups[block.GroupID(name)] = state.GroupOptions{
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
		ListTimeout: time.Duration(cfg.Peer.Timeout), Latencies: &d.latencies, Descriptors: d.files, Logger: log.Named("fs"),
		Audit: log.Named("audit"), AuditChanges: cfg.Log.AuditChanges,
	}
	o.Control = append(o.Control, control.File{Name: "metrics", Text: d.page.Text})
	if d.surface != nil {
		o.Users, o.Groups = d.surface.users, d.surface.gids
	}
	if d.peers != nil {
		o.Control = append(o.Control, control.File{Name: "members", Text: func() []byte { return status.JSON(d.peers.members()) }})
	}
	return o
}
