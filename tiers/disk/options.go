package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/policy"
)

// The defaults and their limits.
const (
	defaultSlabBytes    = 256 << 20
	defaultSyncBytes    = 256 << 20
	defaultSyncInterval = 5 * time.Second
	defaultStuckTimeout = 30 * time.Second
	defaultPoolBytes    = 64 << 20

	minSlabBytes     = 3 * format.PageBytes // a header, and a slot with its own
	minCapacityBytes = minSlabBytes
	slabsPerDevice   = 64 // at least, so that free slots of several size classes are little of it
)

// Options configures a Tier. Zero fields get the defaults; Devices has none.
type Options struct {
	// Name stands in errors and logs. Empty means "disk".
	Name string
	// Devices are the directories, at least one. Each should be on its own device.
	Devices []DeviceOptions
	// Policy orders eviction: "lru", "arc", "mq" or "s3fifo". Empty means "s3fifo".
	Policy string
	// SlabBytes is the size of new slabs. Zero means 256 MiB. A device too small for 64 of them
	// gets smaller ones.
	SlabBytes int64

	// SyncBytes and SyncInterval say when written data become durable without a call of Sync: after
	// so many bytes, or so long after the first write. Zero means 256 MiB and 5 s.
	SyncBytes    int64
	SyncInterval time.Duration

	// ScrubBytesPerSecond is how fast the scrubber reads each device. Zero: no scrubber.
	ScrubBytesPerSecond int64
	// DailyWriteBudgetBytes limits the bytes written per day (UTC) on all devices together, headers
	// included. Zero: no limit.
	DailyWriteBudgetBytes int64
	// StuckTimeout is how long the kernel may take for an operation before its device counts as
	// failed. Zero means 30 s.
	StuckTimeout time.Duration

	// Engine opens the engine of one device, of several in parallel. Nil means directio.Open with DirectIO.
	Engine func(ctx context.Context, dir string) (directio.Engine, error)
	// DirectIO configures engines if Engine is nil.
	DirectIO directio.Options
	// Pool lends the staging buffers. Nil means a pool of the tier's own of 64 MiB. Several devices
	// do not use Pool: each has a pool of its own, and they share the budget of Pool.
	Pool *directio.Pool

	// Progress is called now and then while Open reads what the devices hold: with how many slots of how many of a device
	// it has come by. Open reads all devices at once, and calls Progress for them in parallel. Nil: it is not.
	Progress func(dir string, done, total int64)

	// RequireMount and StateDir are those of recovery.Options.
	RequireMount, StateDir string
	// AllowTmpfs lets tests use directories in memory, which have no direct I/O.
	AllowTmpfs bool
	// Now is the clock for the write budget. Nil means time.Now.
	Now    func() time.Time
	Logger *zap.Logger // nil means none
}

// DeviceOptions configures one device.
type DeviceOptions struct {
	// Dir is the directory. It is made if absent; its parent must exist.
	Dir string
	// CapacityBytes limits the sum of the sizes of the slab files.
	CapacityBytes int64
}

// withDefaults returns o with its zero fields filled in, or all violations. Each is an ErrInvalid.
func (o Options) withDefaults() (Options, error) {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, block.ErrInvalid)...))
	}
	o.Name, o.Policy = cmp.Or(o.Name, "disk"), cmp.Or(o.Policy, "s3fifo")
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
	if o.SlabBytes > 0 && o.SlabBytes < minSlabBytes || o.SlabBytes > format.MaxSlotBytes {
		bad("SlabBytes %d: want %d to %d", o.SlabBytes, minSlabBytes, int64(format.MaxSlotBytes))
	}
	errs = append(errs, checkDevices(o.Devices)...)
	o.SlabBytes = cmp.Or(o.SlabBytes, defaultSlabBytes)
	o.SyncBytes, o.SyncInterval = cmp.Or(o.SyncBytes, defaultSyncBytes), cmp.Or(o.SyncInterval, defaultSyncInterval)
	o.StuckTimeout = cmp.Or(o.StuckTimeout, defaultStuckTimeout)
	o.Logger = cmp.Or(o.Logger, zap.NewNop())
	if o.Now == nil {
		o.Now = time.Now
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
			errs = append(errs, fmt.Errorf("option Devices[%d] %s: CapacityBytes %s: want %s to %s: %w",
				i, d.Dir, format.Size(d.CapacityBytes), format.Size(minCapacityBytes), format.Size(1<<60), block.ErrInvalid))
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
	return max(min(slabBytes, capacityBytes/slabsPerDevice&^(format.PageBytes-1)), minSlabBytes)
}
