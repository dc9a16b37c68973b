package disk

import (
	"context"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/disk/format"
)

// staging is where a device gets its staging buffers. If there are several devices, each has a pool
// of its own, a share of the whole. With one pool, a device that never answers would end up with
// all buffers, or fragment the pool so that no large buffer fits. The other devices would then wait
// for ever.
type staging struct {
	pool  *directio.Pool
	own   bool
	share int64 // bytes, whole pages
}

// minShare is the least staging that a device can work with: a tail, a header and a piece.
const minShare = 4 * format.PageBytes

// newStaging returns the staging of one of several devices.
func newStaging(pool *directio.Pool, devices int) (staging, error) {
	share := pool.BudgetBytes() / int64(devices) &^ (format.PageBytes - 1)
	if devices == 1 {
		return staging{pool: pool, share: share}, nil
	}
	size := format.AlignUp(share + share/8) // Pool needs the same extra room for gaps
	own, err := directio.NewPool(directio.PoolOptions{SizeBytes: size, UsableRatio: (float64(share) + 0.5) / float64(size)})
	return staging{pool: own, own: true, share: share}, err
}

// piece is how many bytes of a block of size bytes to move at a time, beside other bytes.
func (s *staging) piece(size, other int64) int64 {
	return max(min(stagingBytes, s.share-other, format.AlignUp(size)), format.PageBytes)
}

// acquire is Pool.Acquire.
func (s *staging) acquire(ctx context.Context, n int64) (*directio.Buffer, error) {
	return s.pool.Acquire(ctx, int(n))
}

// tryAcquire is acquire without waiting. It returns nil if it would have to wait.
func (s *staging) tryAcquire(n int64) *directio.Buffer { return s.pool.TryAcquire(int(n)) }

// close closes a pool of the device's own.
func (s *staging) close() error {
	if !s.own || s.pool == nil {
		return nil
	}
	return s.pool.Close()
}
