package disk

import (
	"context"

	"github.com/kvfs/kvfs/directio"
)

// staging is where a device gets its staging buffers. Of several devices each has a
// pool of its own, of its share: otherwise one that never answers would end up with all
// buffers, or with so many in between that no large one is left, and the others
// would wait for ever with it.
type staging struct {
	pool  *directio.Pool
	own   bool
	share int64 // bytes, whole pages
}

// minShare is the least that a device can work with: a tail, a header and a piece.
const minShare = 4 * pageBytes

// newStaging returns the staging of one of so many devices.
func newStaging(pool *directio.Pool, devices int) (staging, error) {
	share := pool.BudgetBytes() / int64(devices) &^ (pageBytes - 1)
	if devices == 1 {
		return staging{pool: pool, share: share}, nil
	}
	size := alignUp(share + share/8) // as Pool has it: room for gaps
	own, err := directio.NewPool(directio.PoolOptions{SizeBytes: size, UsableRatio: (float64(share) + 0.5) / float64(size)})
	return staging{pool: own, own: true, share: share}, err
}

// piece is how much of a block of size bytes to move at a time, next to other bytes.
func (s *staging) piece(size, other int64) int64 {
	return max(min(stagingBytes, s.share-other, alignUp(size)), pageBytes)
}

// acquire is Pool.Acquire.
func (s *staging) acquire(ctx context.Context, n int64) (*directio.Buffer, error) {
	return s.pool.Acquire(ctx, int(n))
}

// tryAcquire is acquire if that takes no waiting, else nil.
func (s *staging) tryAcquire(n int64) *directio.Buffer { return s.pool.TryAcquire(int(n)) }

// close frees a pool of the device's own.
func (s *staging) close() error {
	if !s.own || s.pool == nil {
		return nil
	}
	return s.pool.Close()
}
