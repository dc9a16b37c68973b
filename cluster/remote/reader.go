package remote

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvfs/kvfs/rdma"
)

// slowest is the lowest expected speed of a fabric, in bytes a second. It sets the time in which a
// block has to come. If the Memory counts its bytes, any byte of any read within that time is
// enough.
const slowest = 64 << 20

// looks is how many times within that time the Memory is checked for progress.
const looks = 4

// Why a Reader ended its reads. Read returns them with rdma.ErrUnavailable.
var (
	ErrStalled = errors.New("nothing came")
	ErrExpired = errors.New("the lease expired before the bytes were there")
)

// Limits are the bounds of a Reader.
type Limits struct {
	Stall   time.Duration // in which a small block has to come
	Bytes   int64         // that are read at a time, at most
	Expires time.Time     // latest end of the leases
	Only    bool          // there is no other way to get the blocks; otherwise that gets half of the caller's time
}

// Reader reads leased blocks of a Memory. It ends the reads when nothing comes for too long, when
// the leases end, or when it is time to get the blocks in another way. Its methods may be called in
// parallel.
type Reader struct {
	m       *Memory
	ctx     context.Context // the caller's
	reads   context.Context // ends when nothing comes, or when the leases end
	end     context.CancelCauseFunc
	limit   time.Duration // the time in which something has to come
	expires time.Time

	mu struct {
		sync.Mutex
		hurried bool // the caller left too little time
		timer   *time.Timer
		moved   int64     // bytes that had come by the Memory at the last look
		since   time.Time // when something last came, as far as is known
		latest  time.Time // when reads end even if bytes come; zero: when ctx ends
	}
}

// Reader returns a Reader of leased blocks. The caller closes it.
func (m *Memory) Reader(ctx context.Context, l Limits) *Reader {
	r := &Reader{m: m, ctx: ctx, expires: l.Expires}
	r.limit, r.mu.hurried = Share(ctx, l.Stall+time.Duration(float64(l.Bytes)/slowest*float64(time.Second)))
	leased, endLeased := context.WithDeadlineCause(ctx, l.Expires, ErrExpired)
	reads, end := context.WithCancelCause(leased)
	r.reads, r.end = reads, func(why error) {
		end(why)
		endLeased()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.moved, _ = m.Moved()
	r.mu.since = time.Now()
	if deadline, ok := ctx.Deadline(); ok && !l.Only {
		r.mu.latest = time.Now().Add(time.Until(deadline) / 2)
	}
	r.mu.timer = time.AfterFunc(r.limit/looks, r.look) // has no effect once reads has ended
	return r
}

// Close ends the reads.
func (r *Reader) Close() {
	r.end(nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.timer.Stop()
}

// Share returns d, but at most half of the time that is left to ctx. hurried says that this half is
// less than d.
func Share(ctx context.Context, d time.Duration) (limit time.Duration, hurried bool) {
	if deadline, ok := ctx.Deadline(); ok {
		if half := time.Until(deadline) / 2; half < d {
			return half, true
		}
	}
	return d, false
}

// look ends the reads if nothing has come for limit. Other reads share the Memory. As long as any
// bytes come by it, all reads wait.
func (r *Reader) look() {
	moved, told := r.m.Moved()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reads.Err() != nil {
		return
	}
	now := time.Now()
	if told && moved != r.mu.moved {
		r.mu.moved, r.mu.since = moved, now
	}
	left := r.limit - now.Sub(r.mu.since)
	if left <= 0 {
		r.end(ErrStalled)
		return
	}
	if !r.mu.latest.IsZero() && !now.Before(r.mu.latest) {
		r.mu.hurried = true
		r.end(ErrStalled)
		return
	}
	r.mu.timer.Reset(min(left, r.limit/looks))
}

// Came records that a block has come, so the reads may wait for the next one.
func (r *Reader) Came() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.since = time.Now()
	if next := r.mu.since.Add(r.limit); !r.mu.latest.IsZero() && next.After(r.mu.latest) {
		r.mu.latest = next
	}
}

// Hurried reports whether the caller left too little time: ErrStalled then says nothing about the
// Memory.
func (r *Reader) Hurried() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.hurried
}

// Read reads a block of size bytes that is leased as region. It fails with an error of rdma.Peer's
// Read; with rdma.ErrUnavailable if the Reader ended it, or if the region is gone; or with the error
// of ctx.
func (r *Reader) Read(region rdma.RemoteRegion, size int64, dst rdma.Dest) error {
	err := r.m.Read(r.reads, region, 0, size, dst)
	switch cause := context.Cause(r.reads); {
	case errors.Is(err, rdma.ErrUnsafe):
		return err
	case r.ctx.Err() != nil && err != nil:
		return r.ctx.Err()
	case err == nil && time.Now().Before(r.expires):
		return nil
	case err == nil, errors.Is(cause, ErrExpired): // the peer may have reused the memory
		return fmt.Errorf("%w: %w", rdma.ErrUnavailable, ErrExpired)
	case errors.Is(cause, ErrStalled):
		if r.Hurried() {
			return fmt.Errorf("%w: %w for %v, all the time there was", rdma.ErrUnavailable, ErrStalled, r.limit)
		}
		return fmt.Errorf("%w: %w for %v", rdma.ErrUnavailable, ErrStalled, r.limit)
	case errors.Is(err, rdma.ErrGone): // the region is gone, not the block
		return fmt.Errorf("%w: leased, but: %v", rdma.ErrUnavailable, err)
	}
	return err
}
