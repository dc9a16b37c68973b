package cluster

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/message"
	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
)

// fabricBytes is the default of Options.FabricBytes.
const fabricBytes = 1 << 30

// expireLeases ends leases when their time is over.
func (n *Node) expireLeases() {
	tick := time.NewTicker(max(n.o.tuning.lease/8, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-n.ctx.Done():
			return
		}
		n.counters.leaseExpired.Add(uint64(n.leases.Expire(time.Now())))
	}
}

// Lease implements wire.ControlServer.
func (v *service) Lease(ctx context.Context, req *wire.LeaseRequest) (*wire.LeaseReply, error) {
	b, err := v.ready()
	if err != nil {
		return nil, err
	}
	if len(req.GetBlocks()) > control.MaxOffers {
		return nil, status.Errorf(codes.InvalidArgument, "%d blocks, %d is the limit", len(req.GetBlocks()), control.MaxOffers)
	}
	conn := control.ConnOf(ctx)
	if conn == nil {
		return nil, status.Error(codes.InvalidArgument, "a lease needs a network connection")
	}
	refs := make([]BlockRef, len(req.GetBlocks()))
	for i, w := range req.GetBlocks() {
		if refs[i], err = message.RefFromWire(w); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
	}
	if req.GetFabric() && v.n.fabric == nil {
		return nil, v.n.lacks(meta.FeatureRDMA)
	}
	// The backend may read some blocks from a device, so several are lent at a time.
	reply := &wire.LeaseReply{
		Results: make([]*wire.LeaseResult, len(refs)), Lifetime: int64(v.n.o.tuning.lease),
	}
	slots := make(chan struct{}, maxReads)
	var wg sync.WaitGroup
	for i := range refs {
		slots <- struct{}{}
		wg.Go(func() { // waited for below
			reply.Results[i] = v.n.lend(ctx, b, conn, &refs[i], req.GetFabric())
			<-slots
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		v.n.endLeases(conn, reply) // nobody reads this answer
		return nil, control.Status(err)
	}
	if conn.Closed() {
		v.n.endLeases(conn, reply) // abandon may have run before these leases existed
	}
	return reply, nil
}

// lend makes one lease.
func (n *Node) lend(ctx context.Context, b Backend, conn *control.Conn, ref *BlockRef, byFabric bool) *wire.LeaseResult {
	busy := &wire.LeaseResult{Status: wire.LeaseStatus_LEASE_BUSY}
	tooMany, unregistered := busy, busy
	if byFabric { // the transport needs no lease
		tooMany = &wire.LeaseResult{Status: wire.LeaseStatus_LEASE_TOO_MANY}
		unregistered = &wire.LeaseResult{Status: wire.LeaseStatus_LEASE_UNREGISTERED}
	}
	place := n.leases.Reserve(conn)
	if place == nil {
		n.counters.TooMany.Add(1)
		return tooMany
	}
	info, loan, err := b.Lend(ctx, ref)
	if err != nil {
		place.Cancel()
		return &wire.LeaseResult{Status: message.LeaseStatus(err)}
	}
	granted := &wire.LeaseResult{Status: wire.LeaseStatus_LEASE_GRANTED, Info: message.ToWire(&info, false)}
	if byFabric && loan.Size == 0 { // there is nothing to read
		loan.Close()
		place.Cancel()
		return granted
	}
	if byFabric && !place.Bytes(loan.Size, n.o.FabricBytes) {
		loan.Close()
		place.Cancel()
		n.counters.TooMany.Add(1)
		return tooMany
	}
	region := n.register(&loan, byFabric)
	if region == nil {
		loan.Close()
		place.Cancel()
		return unregistered
	}
	n.counters.leaseGrants.Add(1)
	remote := region.Remote()
	granted.Lease = place.Enter(region, loan, time.Now().Add(n.o.tuning.lease))
	granted.RegionKey, granted.RegionSize = remote.Key, remote.Size
	return granted
}

func (n *Node) endLeases(conn *control.Conn, reply *wire.LeaseReply) {
	for _, r := range reply.GetResults() {
		n.leases.Release(conn, r.GetLease())
	}
}

// Release implements wire.ControlServer.
func (v *service) Release(ctx context.Context, req *wire.ReleaseRequest) (*wire.ReleaseReply, error) {
	conn := control.ConnOf(ctx)
	for _, id := range req.GetLeases() {
		v.n.leases.Release(conn, id)
	}
	return &wire.ReleaseReply{}, nil
}

// Lend implements rdma.Source for the transport, by means of Backend.Lend.
func (n *Node) Lend(ctx context.Context, name []byte) (rdma.Loan, error) {
	b := n.backend.Load()
	if b == nil {
		return rdma.Loan{}, rdma.ErrBusy
	}
	ref, err := message.ParseName(name)
	if err != nil {
		n.counters.Malformed.Add(1)
		return rdma.Loan{}, rdma.ErrGone
	}
	info, loan, err := (*b).Lend(ctx, &ref)
	if err != nil {
		return rdma.Loan{}, err
	}
	if loan.Header, err = message.Header(&info); err != nil {
		loan.Close()
		return rdma.Loan{}, rdma.ErrGone
	}
	n.counters.lent.Add(1)
	return loan, nil
}
