package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/message"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
)

// slowestFabric is the lowest expected speed of a fabric, in bytes a second. It sets the time
// in which a block has to come. If the link counts its bytes, any byte of any read within that
// time is enough.
const slowestFabric = 64 << 20

// looks is how many times within that time the link is checked for progress.
const looks = 4

// Reasons for a failed read by the link, besides the errors of package rdma. The caller gets
// them as rdma.ErrUnavailable.
var (
	errStalled    = errors.New("nothing came")
	errExpired    = errors.New("the lease expired before the bytes were there")
	errWrongBytes = errors.New("the bytes disagree with their checksum")
	errNoRegion   = errors.New("the peer cannot register the block")
	errTooMany    = errors.New("the peer has no lease left")
)

// unread is a block that a link did not bring, although the peer may have it.
type unread struct {
	f   *Fetch
	err error
}

// oneSided is a request whose blocks are read by a link.
type oneSided struct {
	p   *Peer
	s   *session
	l   *link
	ctx context.Context // the caller's

	// Set when the leases have come.
	reads   context.Context // ends when nothing comes, or when the leases end
	limit   time.Duration   // the time in which something has to come
	hurried bool            // the caller left too little time: a timeout then says nothing about the link
	expires time.Time       // latest end of the leases
	end     func(why error) // of reads

	mu struct {
		sync.Mutex
		unread []unread
		timer  *time.Timer // of look
		moved  int64       // bytes that had come by the link at the last look
		since  time.Time   // when something last came, as far as is known
		latest time.Time   // when reads end even if bytes come; zero: when ctx ends
	}
}

// readLink fetches by the link: it gets leases for all blocks, then reads each. It calls Done
// for the blocks that came and for those that the peer does not have. It returns the rest. A
// failed read closes the link, unless the caller gave up; so does an answer that makes no
// sense.
func (p *Peer) readLink(ctx context.Context, s *session, l *link, blocks []*Fetch) []unread {
	r := &oneSided{p: p, s: s, l: l, ctx: ctx}
	all := asked(blocks)
	if len(all) == 0 {
		return nil
	}
	begun := time.Now() // before the peer starts its clock
	reply, err := r.lease(all)
	if err != nil {
		for i := range all {
			r.leave(&all[i], err)
		}
		return r.mu.unread
	}
	r.expires = begun.Add(time.Duration(reply.GetLifetime()))
	stop := r.begin(reply)
	release := eachLease(reply, func(i int, lease *wire.LeaseResult) { r.one(&all[i], lease) })
	stop()
	p.release(s, release)
	return r.mu.unread
}

// lease asks for the leases. It waits at most half of the caller's time, so that the transport
// has the other half. A missing answer says nothing about the link: the control channel or a
// device of the peer may be slow.
func (r *oneSided) lease(all []fetching) (*wire.LeaseReply, error) {
	limit, hurried := r.share(r.p.n.o.CallTimeout / 2)
	ctx, cancel := context.WithTimeout(r.ctx, limit)
	defer cancel()
	reply, err := r.p.lease(ctx, r.s, all, true)
	if d := reply.GetLifetime(); err == nil && d <= 0 {
		r.p.release(r.s, leasesOf(reply))
		err = fmt.Errorf("%w: leases for %d ns", rdma.ErrProtocol, d)
	}
	late := err != nil && (ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded)) // at the peer or here
	switch {
	case r.ctx.Err() != nil: // the caller gave up
	case late:
		err = fmt.Errorf("%w: no answer: %w", rdma.ErrUnavailable, errStalled)
		if !hurried {
			r.p.outcome(r.p.control, err)
		}
	case errors.Is(err, rdma.ErrProtocol):
		r.failed(leaseFailed, err)
	default: // nil, too
		r.p.outcome(r.p.control, err)
	}
	return reply, err
}

// share returns d, but at most half of the caller's remaining time. hurried says that this
// half is less than d.
func (r *oneSided) share(d time.Duration) (limit time.Duration, hurried bool) {
	if deadline, ok := r.ctx.Deadline(); ok {
		if half := time.Until(deadline) / 2; half < d {
			return half, true
		}
	}
	return d, false
}

// begin makes the context of the reads. It ends when nothing has come for too long, or when
// the leases end.
func (r *oneSided) begin(reply *wire.LeaseReply) (stop func()) {
	var largest int64
	for _, lease := range reply.GetResults() {
		largest = max(largest, min(lease.GetRegionSize(), location.MaxSize))
	}
	atOnce := float64(largest) * float64(min(len(reply.GetResults()), maxReads))
	r.limit, r.hurried = r.share(r.p.n.o.tuning.stall + time.Duration(atOnce/slowestFabric*float64(time.Second)))
	leased, endLeased := context.WithDeadlineCause(r.ctx, r.expires, errExpired)
	reads, end := context.WithCancelCause(leased)
	r.reads, r.end = reads, end
	r.mu.Lock()
	r.mu.moved, _ = r.l.Moved()
	r.mu.since = time.Now()
	if deadline, ok := r.ctx.Deadline(); ok && r.p.n.o.Path != PathRDMA {
		r.mu.latest = time.Now().Add(time.Until(deadline) / 2) // the transport gets the rest
	}
	r.mu.timer = time.AfterFunc(r.limit/looks, r.look) // has no effect once reads has ended
	r.mu.Unlock()
	return func() {
		end(nil)
		endLeased()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.mu.timer.Stop()
	}
}

// look ends the reads if nothing has come for limit. Other reads share the link. As long as
// any bytes come by it, all reads wait.
func (r *oneSided) look() {
	moved, told := r.l.Moved()
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
		r.end(errStalled)
		return
	}
	if !r.mu.latest.IsZero() && !now.Before(r.mu.latest) {
		r.hurried = true
		r.end(errStalled)
		return
	}
	r.mu.timer.Reset(min(left, r.limit/looks))
}

// came records that a block has come, so the reads may wait for the next one.
func (r *oneSided) came() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.since = time.Now()
	if next := r.mu.since.Add(r.limit); !r.mu.latest.IsZero() && next.After(r.mu.latest) {
		r.mu.latest = next
	}
}

// one reads a block and settles it.
func (r *oneSided) one(g *fetching, lease *wire.LeaseResult) {
	p := r.p
	if r.s.link.Load() != r.l {
		r.leave(g, fmt.Errorf("%w: the RDMA connection broke", rdma.ErrUnavailable))
		return
	}
	if !r.granted(g, lease) {
		return
	}
	info, err := checkLease(lease, &g.f.BlockRef)
	if err != nil {
		r.failed(leaseFailed, err)
		r.leave(g, err)
		return
	}
	dst, err := g.accept(info, nil)
	if err != nil || info.Size == 0 {
		r.done(g, err)
		return
	}
	kind, err := r.read(lease, info.Size, dst)
	switch {
	case err == nil && dst.Hash != nil && dst.Hash.Sum64() != info.Sum.Sum:
		r.failed(wrongBytes, errWrongBytes)
		if p.n.o.Path == PathRDMA {
			p.done(g, nil) // the caller checks the bytes; the transport would not help
			return
		}
		r.leave(g, errWrongBytes)
	case err == nil:
		r.came()
		r.done(g, nil)
	case errors.Is(err, rdma.ErrUnsafe):
		r.failed(kind, err)
		p.done(g, err) // the transport must not write to the destination either
	default:
		r.failed(kind, err)
		r.leave(g, err)
	}
}

// granted settles a block that the peer did not lease, and returns false.
func (r *oneSided) granted(g *fetching, lease *wire.LeaseResult) bool {
	if err := message.LeaseError(lease.GetStatus()); err != nil {
		r.p.done(g, err)
		return false
	}
	switch lease.GetStatus() {
	case wire.LeaseStatus_LEASE_TOO_MANY:
		r.leave(g, fmt.Errorf("%w: %w", rdma.ErrBusy, errTooMany))
	case wire.LeaseStatus_LEASE_UNREGISTERED:
		r.failed("", errNoRegion) // the peer may be short of memory, or its fabric has ended
		r.leave(g, fmt.Errorf("%w: %w", rdma.ErrBusy, errNoRegion))
	default:
		return true // checkLease refuses a status that only a newer peer knows
	}
	return false
}

// read reads one block. After an error, kind says what is wrong with the link; it is empty if
// nothing is known to be wrong.
func (r *oneSided) read(lease *wire.LeaseResult, size int64, dst rdma.Dest) (kind string, err error) {
	region := rdma.RemoteRegion{Key: lease.GetRegionKey(), Size: lease.GetRegionSize()}
	err = r.l.Read(r.reads, region, 0, size, dst)
	switch cause := context.Cause(r.reads); {
	case errors.Is(err, rdma.ErrUnsafe):
		return readFailed, r.s.unlive(err)
	case r.ctx.Err() != nil && err != nil:
		return readFailed, r.ctx.Err()
	case err == nil && time.Now().Before(r.expires):
		return "", nil
	case err == nil, errors.Is(cause, errExpired): // the peer may have reused the memory
		return readFailed, fmt.Errorf("%w: %w", rdma.ErrUnavailable, errExpired)
	case errors.Is(cause, errStalled):
		if r.hurried {
			return "", fmt.Errorf("%w: %w for %v, all the time there was", rdma.ErrUnavailable, errStalled, r.limit)
		}
		return linkStalled, fmt.Errorf("%w: %w for %v", rdma.ErrUnavailable, errStalled, r.limit)
	case errors.Is(err, rdma.ErrGone): // the region is gone, not the block
		return readFailed, fmt.Errorf("%w: leased, but: %v", rdma.ErrUnavailable, err)
	}
	return readFailed, r.s.unlive(err)
}

// failed ends the link, unless the caller has given up or its time is over. With an empty
// kind, links.watch tests whether the link is to end.
func (r *oneSided) failed(kind string, err error) {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
	case kind == "":
		notify(r.l.doubted)
	default:
		r.p.links.lose(r.s, r.l, kind, err)
	}
}

// done settles a block that came or that the caller refused.
func (r *oneSided) done(g *fetching, err error) {
	if err == nil {
		r.p.fabric.OK()
		r.p.n.counters.fabricFetches.Add(1)
		r.p.n.counters.fabricBytes.Add(uint64(g.info.Size))
	}
	r.p.done(g, err)
}

// leave hands a block to the transport. If the caller's time is over, it settles the block.
func (r *oneSided) leave(g *fetching, err error) {
	if ctxErr := r.ctx.Err(); ctxErr != nil {
		r.p.done(g, ctxErr)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.unread = append(r.mu.unread, unread{g.f, err})
}

// settle settles a block that cannot come by the transport either.
func (u *unread) settle() {
	for _, kind := range []error{rdma.ErrUnavailable, rdma.ErrProtocol, rdma.ErrBusy} {
		if errors.Is(u.err, kind) {
			u.f.Done(nil, u.err)
			return
		}
	}
	u.f.Done(nil, fmt.Errorf("%w: %w", rdma.ErrUnavailable, u.err))
}
