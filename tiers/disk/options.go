package disk

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/policy"
)

// Defaults, and what bounds them.
const (
	defaultSlabBytes    = 256 << 20
	defaultSyncBytes    = 256 << 20
	defaultSyncInterval = 5 * time.Second
	defaultStuckTimeout = 30 * time.Second
	defaultPoolBytes    = 64 << 20

	minSlabBytes     = 3 * pageBytes // a header, and a slot with its own
	minCapacityBytes = minSlabBytes
	slabsPerDevice   = 16 // at least, so that size classes find room side by side
)

// Options configures a Tier. Zero fields but Devices get the defaults.
type Options struct {
	// Name stands in errors and logs. Empty means "disk".
	Name string
	// Devices are the directories, each on a device of its own. At least one.
	Devices []DeviceOptions
	// Policy orders eviction: "lru", "arc" or "s3fifo". Empty means "s3fifo".
	Policy string
	// SlabBytes is the size of slabs made from now on. Zero means 256 MiB. A
	// device too small for 16 of them gets smaller ones.
	SlabBytes int64

	// SyncBytes and SyncInterval say when written data are made durable unasked:
	// after so many bytes, or so long after the first. Zero means 256 MiB and 5 s.
	SyncBytes    int64
	SyncInterval time.Duration

	// ScrubBytesPerSecond is how fast the scrubber reads each device. Zero: no scrubber.
	ScrubBytesPerSecond int64
	// DailyWriteBudgetBytes limits what is written, headers included, on a day (UTC)
	// on all devices together. Zero: no limit.
	DailyWriteBudgetBytes int64
	// StuckTimeout is how long an operation may be with the kernel before its device
	// counts as failed. Zero means 30 s.
	StuckTimeout time.Duration

	// Engine opens the engine of one device. Nil means directio.Open with DirectIO.
	Engine func(ctx context.Context, dir string) (directio.Engine, error)
	// DirectIO configures engines if Engine is nil.
	DirectIO directio.Options
	// Pool is where staging buffers come from. Nil means one of 64 MiB of the tier's own.
	// Several devices do not use it, but pools of their own that share its budget.
	Pool *directio.Pool

	// AllowTmpfs lets tests use directories in memory, which have no direct I/O.
	AllowTmpfs bool
	// Now is the clock for the write budget. Nil means time.Now.
	Now    func() time.Time
	Logger *zap.Logger // nil means none
}

// DeviceOptions is one device.
type DeviceOptions struct {
	// Dir is the directory, made if absent; its parent must exist.
	Dir string
	// CapacityBytes limits the sum of the sizes of the slab files.
	CapacityBytes int64
}

// withDefaults returns o with its zero fields filled in, or every violation, each
// an ErrInvalid.
func (o Options) withDefaults() (Options, error) {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, block.ErrInvalid)...))
	}
	if o.Name == "" {
		o.Name = "disk"
	}
	if o.Policy == "" {
		o.Policy = "s3fifo"
	}
	if _, err := policy.New(o.Policy, 1); err != nil {
		errs = append(errs, fmt.Errorf("option Policy: %w: %w", err, block.ErrInvalid))
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"SlabBytes", o.SlabBytes}, {"SyncBytes", o.SyncBytes}, {"SyncInterval", int64(o.SyncInterval)},
		{"ScrubBytesPerSecond", o.ScrubBytesPerSecond}, {"DailyWriteBudgetBytes", o.DailyWriteBudgetBytes},
		{"StuckTimeout", int64(o.StuckTimeout)},
	} {
		if f.value < 0 {
			bad("%s %d: want at least 0", f.name, f.value)
		}
	}
	if o.SlabBytes > 0 && o.SlabBytes < minSlabBytes || o.SlabBytes > maxSlotBytes {
		bad("SlabBytes %d: want %d to %d", o.SlabBytes, minSlabBytes, int64(maxSlotBytes))
	}
	errs = append(errs, checkDevices(o.Devices)...)
	if o.SlabBytes == 0 {
		o.SlabBytes = defaultSlabBytes
	}
	if o.SyncBytes == 0 {
		o.SyncBytes = defaultSyncBytes
	}
	if o.SyncInterval == 0 {
		o.SyncInterval = defaultSyncInterval
	}
	if o.StuckTimeout == 0 {
		o.StuckTimeout = defaultStuckTimeout
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Engine == nil {
		direct := o.DirectIO
		if direct.Logger == nil {
			direct.Logger = o.Logger
		}
		o.Engine = func(ctx context.Context, _ string) (directio.Engine, error) { return directio.Open(ctx, direct) }
	}
	return o, errors.Join(errs...)
}

// checkDevices returns what is wrong with the list of devices.
func checkDevices(devices []DeviceOptions) (errs []error) {
	if len(devices) == 0 {
		errs = append(errs, fmt.Errorf("option Devices: want at least one: %w", block.ErrInvalid))
	}
	if len(devices) > maxDevices {
		errs = append(errs, fmt.Errorf("option Devices: %d of them, want at most %d: %w", len(devices), maxDevices, block.ErrInvalid))
	}
	seen := make(map[string]bool)
	for i, d := range devices {
		if d.CapacityBytes < minCapacityBytes || d.CapacityBytes > 1<<60 {
			errs = append(errs, fmt.Errorf("option Devices[%d] %s: CapacityBytes %d: want %d to %d: %w",
				i, d.Dir, d.CapacityBytes, minCapacityBytes, int64(1)<<60, block.ErrInvalid))
		}
		dir := filepath.Clean(d.Dir)
		switch {
		case d.Dir == "":
			errs = append(errs, fmt.Errorf("option Devices[%d]: Dir is empty: %w", i, block.ErrInvalid))
		case seen[dir]:
			errs = append(errs, fmt.Errorf("option Devices[%d]: Dir %s twice: %w", i, dir, block.ErrInvalid))
		}
		seen[dir] = true
	}
	return errs
}

// slabBytesFor returns the size of new slabs of a device.
func slabBytesFor(slabBytes, capacityBytes int64) int64 {
	return max(min(slabBytes, capacityBytes/slabsPerDevice&^(pageBytes-1)), minSlabBytes)
}
