package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
)

// maxReads bounds the blocks of one request that are being read, or lent, at a time.
const maxReads = 8

// read fetches by lease: for a peer, or over a transport, that does not know names. It
// returns what the breaker is to know.
func (p *Peer) read(ctx context.Context, s *session, blocks []*Fetch) error {
	req := &wire.LeaseRequest{}
	all := make([]fetching, 0, len(blocks))
	for _, f := range blocks {
		if err := checkName(f); err != nil {
			f.Done(nil, err)
			continue
		}
		all = append(all, fetching{f: f})
		req.Blocks = append(req.Blocks, &wire.BlockRef{Path: []byte(f.Path), Seq: f.Seq})
	}
	if len(all) == 0 {
		return errNotAsked
	}
	reply, err := s.control.Lease(ctx, req)
	if err = callError(ctx, err); err == nil && len(reply.GetResults()) != len(all) {
		err = fmt.Errorf("%w: %d answers to %d blocks", rdma.ErrProtocol, len(reply.GetResults()), len(all))
	}
	if err != nil {
		for i := range all {
			p.done(&all[i], err)
		}
		return err
	}
	slots := make(chan struct{}, maxReads)
	var wg sync.WaitGroup
	errs := make([]error, len(all))
	release := &wire.ReleaseRequest{}
	for i := range all {
		r := reply.Results[i]
		if r.GetStatus() == wire.LeaseStatus_LEASE_GRANTED {
			release.Leases = append(release.Leases, r.GetLease())
		}
		slots <- struct{}{}
		wg.Go(func() { // waited for below
			errs[i] = s.unlive(p.readOne(ctx, s, &all[i], r))
			p.done(&all[i], errs[i])
			<-slots
		})
	}
	wg.Wait()
	p.release(s, release)
	return worst(all, errs)
}

// readOne reads one block that the peer has leased.
func (p *Peer) readOne(ctx context.Context, s *session, g *fetching, r *wire.LeaseResult) error {
	switch r.GetStatus() {
	case wire.LeaseStatus_LEASE_GONE:
		return rdma.ErrGone
	case wire.LeaseStatus_LEASE_BUSY:
		return rdma.ErrBusy
	case wire.LeaseStatus_LEASE_GRANTED:
	default:
		g.bad = fmt.Errorf("%w: lease status %d", rdma.ErrProtocol, r.GetStatus())
		return g.bad
	}
	if r.GetInfo() == nil || len(r.GetRegionKey()) > 255 {
		g.bad = fmt.Errorf("%w: lease without block info or region", rdma.ErrProtocol)
		return g.bad
	}
	dst, err := g.accept(checkAnswer(r.GetInfo(), r.GetRegionSize(), &g.f.BlockRef))
	if err != nil || g.info.Size == 0 {
		return err
	}
	region := rdma.RemoteRegion{Key: r.GetRegionKey(), Size: r.GetRegionSize()}
	return s.bulk.Read(ctx, region, 0, g.info.Size, dst)
}

// worst returns what the breaker is to know of a request. What Dest said is not of the
// peer.
func worst(all []fetching, errs []error) error {
	var of []error
	for i, err := range errs {
		if all[i].bad != nil || errors.Is(err, rdma.ErrUnavailable) || errors.Is(err, rdma.ErrProtocol) ||
			errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			of = append(of, err)
		}
	}
	return errors.Join(of...)
}

// release gives leases back, without the caller waiting for it. If that fails they
// expire, or end with the connection.
func (p *Peer) release(s *session, req *wire.ReleaseRequest) {
	if len(req.Leases) == 0 {
		return
	}
	p.n.background(func() { // ends by itself after the timeout
		ctx, cancel := context.WithTimeout(s.ctx, p.n.o.CallTimeout)
		defer cancel()
		_, _ = s.control.Release(ctx, req)
	})
}

// background runs fn unless the node is closed; Close waits for it.
func (n *Node) background(fn func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.mu.closed {
		n.wg.Go(fn)
	}
}
