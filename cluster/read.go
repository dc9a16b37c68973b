package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/message"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
)

// maxReads bounds how many blocks of one request are read or lent at a time.
const maxReads = 8

// asked returns the blocks that can have the name they are asked by. It calls Done for the
// others.
func asked(blocks []*Fetch) []fetching {
	all := make([]fetching, 0, len(blocks))
	for _, f := range blocks {
		if err := checkName(f); err != nil {
			f.Done(nil, err)
			continue
		}
		all = append(all, fetching{f: f})
	}
	return all
}

// lease asks the peer for leases. It returns one answer for each block, or an error.
func (p *Peer) lease(ctx context.Context, s *session, all []fetching, byFabric bool) (*wire.LeaseReply, error) {
	req := &wire.LeaseRequest{Fabric: byFabric}
	for i := range all {
		f := all[i].f
		req.Blocks = append(req.Blocks, &wire.BlockRef{Path: []byte(f.Path), Seq: f.Seq, Claim: f.Claim})
	}
	reply, err := s.control.Lease(ctx, req)
	if err = control.Error(ctx, err); err != nil {
		return nil, err
	}
	if len(reply.GetResults()) != len(all) {
		p.release(s, message.ReleaseOf(reply))
		return nil, fmt.Errorf("%w: %d answers to %d blocks", rdma.ErrProtocol, len(reply.GetResults()), len(all))
	}
	return reply, nil
}

// eachLease calls fn for each answer, several at a time, and waits for all. It returns the
// request that releases the leases.
func eachLease(reply *wire.LeaseReply, fn func(i int, r *wire.LeaseResult)) *wire.ReleaseRequest {
	slots := make(chan struct{}, maxReads)
	var wg sync.WaitGroup
	for i, r := range reply.GetResults() {
		slots <- struct{}{}
		wg.Go(func() { // waited for below
			fn(i, r)
			<-slots
		})
	}
	wg.Wait()
	return message.ReleaseOf(reply)
}

// read fetches by leases over the transport. It serves peers and transports without fetches by
// name. It returns the error that the breaker needs to know.
func (p *Peer) read(ctx context.Context, s *session, blocks []*Fetch) error {
	all := asked(blocks)
	if len(all) == 0 {
		return errNotAsked
	}
	reply, err := p.lease(ctx, s, all, false)
	if err != nil {
		for i := range all {
			p.done(&all[i], err)
		}
		return err
	}
	errs := make([]error, len(all))
	p.release(s, eachLease(reply, func(i int, r *wire.LeaseResult) {
		errs[i] = s.unlive(p.readOne(ctx, s, &all[i], r))
		p.done(&all[i], errs[i])
	}))
	return worst(all, errs)
}

// readOne reads one leased block.
func (p *Peer) readOne(ctx context.Context, s *session, g *fetching, r *wire.LeaseResult) error {
	if err := message.LeaseError(r.GetStatus()); err != nil {
		return err
	}
	dst, err := g.accept(message.CheckLease(r, &g.f.BlockRef))
	if err != nil || g.info.Size == 0 {
		return err
	}
	region := rdma.RemoteRegion{Key: r.GetRegionKey(), Size: r.GetRegionSize()}
	return s.bulk.Read(ctx, region, 0, g.info.Size, dst)
}

// worst returns the error that the breaker needs to know of a request. It leaves out errors of
// Dest, which the peer did not cause.
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

// release releases leases in the background. If that fails, they expire or end with the
// connection.
func (p *Peer) release(s *session, req *wire.ReleaseRequest) {
	if len(req.Leases) == 0 {
		return
	}
	p.n.background(func() { // ends after the timeout
		ctx, cancel := context.WithTimeout(s.ctx, p.n.o.CallTimeout)
		defer cancel()
		_, _ = s.control.Release(ctx, req)
	})
}

// background runs fn unless the node is closed. Close waits for it.
func (n *Node) background(fn func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.mu.closed {
		n.wg.Go(fn)
	}
}
