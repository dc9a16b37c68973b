package port

import (
	"context"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/disk/format"
)

// Staging is where a device gets its staging buffers. If there are several devices, each has a pool
// of its own, a share of the whole. With one pool, a device that never answers would end up with
// all buffers, or fragment the pool so that no large buffer fits. The other devices would then wait
// for ever.
type Staging struct {
	pool  *directio.Pool
	own   bool
	share int64 // bytes, whole pages
}

// StagingBytes bounds the bytes of several blocks, and of a piece of one block, that share a staging buffer.
const StagingBytes = 1 << 20

// MinShare is the least staging that a device can work with: a tail, a header and a piece.
const MinShare = 4 * format.PageBytes

// NewStaging returns the staging of one of so many devices. A single device uses pool itself.
func NewStaging(pool *directio.Pool, devices int) (Staging, error) {
	share := pool.BudgetBytes() / int64(devices) &^ (format.PageBytes - 1)
	if devices == 1 {
		return Staging{pool: pool, share: share}, nil
	}
	size := format.AlignUp(share + share/8) // Pool needs the same extra room for gaps
	own, err := directio.NewPool(directio.PoolOptions{SizeBytes: size, UsableRatio: (float64(share) + 0.5) / float64(size)})
	return Staging{pool: own, own: true, share: share}, err
}

// Pieces returns in pieces of how many bytes to move a block of size bytes, and how many of them at a time: at most most, and so
// many that they and other bytes fit into one buffer.
func (s *Staging) Pieces(size, other, most int64) (bytes, pieces int64) {
	left := s.share - other
	bytes = max(min(StagingBytes, left/2&^(format.PageBytes-1), format.AlignUp(size)), format.PageBytes)
	return bytes, max(1, min(most, left/bytes, (size+bytes-1)/bytes))
}

// Acquire is Pool.Acquire of n bytes.
func (s *Staging) Acquire(ctx context.Context, n int64) (*directio.Buffer, error) {
	return s.pool.Acquire(ctx, int(n))
}

// TryAcquire is Acquire without waiting. It returns nil if it would have to wait.
func (s *Staging) TryAcquire(n int64) *directio.Buffer { return s.pool.TryAcquire(int(n)) }

// Close closes a pool of the device's own.
func (s *Staging) Close() error {
	if !s.own || s.pool == nil {
		return nil
	}
	return s.pool.Close()
}
