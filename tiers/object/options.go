package object

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/object/pack"
)

// Bucket is what the tier asks of a store. All methods may be called in parallel and block, at most as long as ctx.
// They fail with errors that wrap block.ErrNotFound (no such object), block.ErrReadOnly (no right to write),
// block.ErrUnavailable (no answer) or block.ErrInvalid.
type Bucket interface {
	// Put writes an object as a whole: a Put that fails leaves the object as it was.
	Put(ctx context.Context, name string, data []byte) error
	// Get reads len(p) bytes of an object from an offset on, all of them or none.
	Get(ctx context.Context, name string, offset int64, p []byte) error
	// Copy writes length bytes of an object from an offset on to w, each byte once, at its distance from that offset.
	// Writes come in any order and in parallel, and none after the end of Copy.
	Copy(ctx context.Context, name string, offset, length int64, w io.WriterAt) error
	// List calls fn for each object whose name comes after the given one, in ascending order, until fn fails, and
	// returns that error.
	List(ctx context.Context, after string, fn func(name string, size int64, modified time.Time) error) error
	// Delete removes objects, which may not be there.
	Delete(ctx context.Context, names ...string) error
	// Probe tells whether the bucket can be read and written. It leaves nothing behind.
	Probe(ctx context.Context) error
	// AbortUploads gives up uploads of this prefix that began that long ago, and returns their number.
	AbortUploads(ctx context.Context, olderThan time.Duration) (int, error)
	// Available reports whether the store answers, as far as is known. It does not block.
	Available() bool
	// Stats returns counters, ready for encoding/json.
	Stats() any
	// Close ends what the Bucket does in the background.
	Close() error
}

// Options configure a Tier.
type Options struct {
	Name   string // in errors and logs. Empty means "object".
	Bucket Bucket // required; the Tier closes it

	// Writer is part of the names of the packs that this node writes. It is the same after a restart, and another
	// one on each node. Zero is not allowed.
	Writer uint64

	ReadOnly  bool          // store and delete nothing
	PackBelow int64         // blocks of fewer bytes go into packs together. Zero means 4 MiB; negative: none; at most MaxPackBelow.
	Linger    time.Duration // longest wait for a pack to fill. Zero means 200 ms.
	Uploads   int           // most packs written at a time. Zero means 4. Each takes its size in memory.

	// LoadBytes bounds the bytes of loads under way. Zero means 256 MiB. A larger block is loaded alone.
	LoadBytes int64
	// LoadTime bounds a load and a store of a pack. Zero means 30 s.
	LoadTime, StoreTime time.Duration

	Refresh       time.Duration // how often the bucket is asked for new packs. Zero means 1 min.
	TombstoneTTL  time.Duration // least life of a tombstone. Zero means 24 h.
	CapacityBytes int64         // of all packs below the prefix. Zero: no limit.
	TTL           time.Duration // greatest age of a pack. Zero: no limit.
	BucketExpires bool          // a rule of the bucket deletes packs; this tier deletes none
	RewriteBytes  int64         // most bytes written anew in a day. Zero means 64 GiB.
	BudgetBytes   int64         // most bytes stored in a day, unless somebody waits for them. Zero: no limit.

	Now    func() time.Time // nil means time.Now
	Logger *zap.Logger      // nil means none
}

// MaxPackBelow is the largest value of Options.PackBelow.
const MaxPackBelow = pack.MaxShared

// fill sets defaults, then reports every violation.
func (o *Options) fill() error {
	o.Name = cmp.Or(o.Name, "object")
	o.PackBelow = cmp.Or(o.PackBelow, 4<<20)
	o.Linger = cmp.Or(o.Linger, 200*time.Millisecond)
	o.Uploads = cmp.Or(o.Uploads, 4)
	o.LoadBytes = cmp.Or(o.LoadBytes, 256<<20)
	o.LoadTime = cmp.Or(o.LoadTime, 30*time.Second)
	o.StoreTime = cmp.Or(o.StoreTime, 2*time.Minute)
	o.Refresh = cmp.Or(o.Refresh, time.Minute)
	o.TombstoneTTL = cmp.Or(o.TombstoneTTL, 24*time.Hour)
	o.RewriteBytes = cmp.Or(o.RewriteBytes, 64<<30)
	o.Logger = cmp.Or(o.Logger, zap.NewNop())
	if o.Now == nil {
		o.Now = time.Now
	}
	var errs []error
	if o.Bucket == nil {
		errs = append(errs, errors.New("bucket missing"))
	}
	if o.Writer == 0 {
		errs = append(errs, errors.New("writer is 0"))
	}
	if o.PackBelow > MaxPackBelow {
		errs = append(errs, fmt.Errorf("pack_below of %d bytes: want at most %d", o.PackBelow, int64(MaxPackBelow)))
	}
	for name, n := range map[string]int64{
		"uploads": int64(o.Uploads), "capacity": o.CapacityBytes, "ttl": int64(o.TTL), "linger": int64(o.Linger),
		"refresh": int64(o.Refresh), "daily rewrites": o.RewriteBytes, "daily write budget": o.BudgetBytes,
	} {
		if n < 0 {
			errs = append(errs, fmt.Errorf("%s of %d is negative", name, n))
		}
	}
	return errors.Join(errs...)
}
