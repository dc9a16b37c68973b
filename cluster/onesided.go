package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/message"
	"github.com/kvfs/kvfs/cluster/remote"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
)

// Reasons for a failed read by the link, besides the errors of packages rdma and remote. The
// caller gets them as rdma.ErrUnavailable.
var (
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

	reads *remote.Reader // set when the leases have come

	mu struct {
		sync.Mutex
		unread []unread
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
	r.begin(reply, begun.Add(time.Duration(reply.GetLifetime())))
	release := eachLease(reply, func(i int, lease *wire.LeaseResult) { r.one(&all[i], lease) })
	r.reads.Close()
	p.release(s, release)
	return r.mu.unread
}

// lease asks for the leases. It waits at most half of the caller's time, so that the transport
// has the other half. A missing answer says nothing about the link: the control channel or a
// device of the peer may be slow.
func (r *oneSided) lease(all []fetching) (*wire.LeaseReply, error) {
	limit, hurried := remote.Share(r.ctx, r.p.n.o.CallTimeout/2)
	ctx, cancel := context.WithTimeout(r.ctx, limit)
	defer cancel()
	reply, err := r.p.lease(ctx, r.s, all, true)
	if d := reply.GetLifetime(); err == nil && d <= 0 {
		r.p.release(r.s, message.ReleaseOf(reply))
		err = fmt.Errorf("%w: leases for %d ns", rdma.ErrProtocol, d)
	}
	late := err != nil && (ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded)) // at the peer or here
	switch {
	case r.ctx.Err() != nil: // the caller gave up
	case late:
		err = fmt.Errorf("%w: no answer: %w", rdma.ErrUnavailable, remote.ErrStalled)
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

// begin makes the Reader of the leases, which end at expires.
func (r *oneSided) begin(reply *wire.LeaseReply, expires time.Time) {
	var largest int64
	for _, lease := range reply.GetResults() {
		largest = max(largest, min(lease.GetRegionSize(), location.MaxSize))
	}
	r.reads = r.l.Reader(r.ctx, remote.Limits{
		Stall: r.p.n.o.tuning.stall, Bytes: largest * int64(min(len(reply.GetResults()), maxReads)),
		Expires: expires, Only: r.p.n.o.Path == PathRDMA,
	})
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
	info, err := message.CheckLease(lease, &g.f.BlockRef)
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
		r.reads.Came()
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
		return true // CheckLease refuses a status that only a newer peer knows
	}
	return false
}

// read reads one block. After an error, kind says what is wrong with the link; it is empty if
// nothing is known to be wrong.
func (r *oneSided) read(lease *wire.LeaseResult, size int64, dst rdma.Dest) (kind string, err error) {
	region := rdma.RemoteRegion{Key: lease.GetRegionKey(), Size: lease.GetRegionSize()}
	err = r.s.unlive(r.reads.Read(region, size, dst))
	switch stalled := errors.Is(err, remote.ErrStalled); {
	case stalled && r.reads.Hurried():
		return "", err
	case stalled:
		return linkStalled, err
	}
	return readFailed, err
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
