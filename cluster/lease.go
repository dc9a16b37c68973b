package cluster

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
)

// Limits of leases. Each lease holds a file open and keeps a block from being evicted.
const (
	maxLeases     = 2048                // of all peers
	maxConnLeases = control.MaxReleases // on one connection: maxFetchRequests of maxFetchItems

	fabricBytes = 1 << 30 // default of Options.FabricBytes
	pageBytes   = 4096    // memory is registered in whole pages
)

// lease is a block that a peer may read one-sided.
type lease struct {
	conn    *control.Conn
	region  rdma.Region
	loan    rdma.Loan
	bytes   int64 // its part of leaseTable.mu.bytes
	expires time.Time
}

// end gives the block back. It waits until nobody reads the block.
func (t *leaseTable) end(l *lease) {
	// A region that fails to close cannot be read any more either.
	_ = l.region.Close()
	l.loan.Close()
	t.addBytes(-l.bytes)
}

// leaseTable holds all leases. It ends them without holding its lock.
type leaseTable struct {
	abandoned sync.WaitGroup // goroutines of abandon

	mu struct {
		sync.Mutex
		byID   map[uint64]*lease
		ofConn map[*control.Conn]int
		held   int   // leases, and places reserved for future ones
		bytes  int64 // registered with the fabric, or reserved for that
	}
}

// reserveBytes reserves room for a lease over the fabric. The room of all leases is at most
// limit bytes. It returns how many bytes it reserved; 0 means that there is no room.
func (t *leaseTable) reserveBytes(size, limit int64) int64 {
	n := (size + pageBytes - 1) / pageBytes * pageBytes
	t.mu.Lock()
	defer t.mu.Unlock()
	if n > limit-t.mu.bytes {
		return 0
	}
	t.mu.bytes += n
	return n
}

func (t *leaseTable) addBytes(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.bytes += n
}

// reserve takes a place for a lease of a connection. It returns false if there is none.
func (t *leaseTable) reserve(c *control.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.byID == nil {
		t.mu.byID, t.mu.ofConn = map[uint64]*lease{}, map[*control.Conn]int{}
	}
	if t.mu.held >= maxLeases || t.mu.ofConn[c] >= maxConnLeases {
		return false
	}
	t.mu.held++
	t.mu.ofConn[c]++
	return true
}

func (t *leaseTable) unreserve(c *control.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unreserveLocked(c)
}

func (t *leaseTable) unreserveLocked(c *control.Conn) {
	t.mu.held--
	if t.mu.ofConn[c]--; t.mu.ofConn[c] <= 0 {
		delete(t.mu.ofConn, c)
	}
}

// enter puts a lease into a reserved place and returns its number, which cannot be guessed.
func (t *leaseTable) enter(l *lease) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		id := rand.Uint64()
		if id != 0 && t.mu.byID[id] == nil {
			t.mu.byID[id] = l
			return id
		}
	}
}

// take removes the leases for which fn returns true. The caller ends them.
func (t *leaseTable) take(fn func(l *lease) bool) []*lease {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []*lease
	for id, l := range t.mu.byID {
		if fn(l) {
			list = append(list, l)
			delete(t.mu.byID, id)
			t.unreserveLocked(l.conn)
		}
	}
	return list
}

// takeID removes one lease of a connection. It returns nil if there is none.
func (t *leaseTable) takeID(c *control.Conn, id uint64) *lease {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.mu.byID[id]
	if l == nil || l.conn != c {
		return nil
	}
	delete(t.mu.byID, id)
	t.unreserveLocked(c)
	return l
}

// abandon ends the leases of a closed connection.
func (t *leaseTable) abandon(c *control.Conn) {
	list := t.take(func(l *lease) bool { return l.conn == c })
	if len(list) == 0 {
		return
	}
	// The goroutine that closes a connection does not wait for this. It ends when the regions
	// are closed, which cuts off their readers.
	t.abandoned.Go(func() { t.endAll(list) })
}

func (t *leaseTable) closeAll() {
	t.endAll(t.take(func(*lease) bool { return true }))
	t.abandoned.Wait()
}

func (t *leaseTable) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.held
}

func (t *leaseTable) endAll(list []*lease) {
	for _, l := range list {
		t.end(l)
	}
}

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
		now := time.Now()
		list := n.leases.take(func(l *lease) bool { return now.After(l.expires) })
		n.counters.leaseExpired.Add(uint64(len(list)))
		n.leases.endAll(list)
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
		if refs[i], err = refFromWire(w); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
	}
	if req.GetFabric() && v.n.fabric == nil {
		return nil, v.n.lacks(FeatureRDMA)
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
	if !n.leases.reserve(conn) {
		n.counters.TooMany.Add(1)
		return tooMany
	}
	info, loan, err := b.Lend(ctx, ref)
	if err != nil {
		n.leases.unreserve(conn)
		if errors.Is(err, rdma.ErrGone) {
			return &wire.LeaseResult{Status: wire.LeaseStatus_LEASE_GONE}
		}
		return busy
	}
	granted := &wire.LeaseResult{Status: wire.LeaseStatus_LEASE_GRANTED, Info: toWire(&info, false)}
	if byFabric && loan.Size == 0 { // there is nothing to read
		loan.Close()
		n.leases.unreserve(conn)
		return granted
	}
	var bytes int64
	if byFabric {
		if bytes = n.leases.reserveBytes(loan.Size, n.o.FabricBytes); bytes == 0 {
			loan.Close()
			n.leases.unreserve(conn)
			n.counters.TooMany.Add(1)
			return tooMany
		}
	}
	region := n.register(&loan, byFabric)
	if region == nil {
		loan.Close()
		n.leases.unreserve(conn)
		n.leases.addBytes(-bytes)
		return unregistered
	}
	n.counters.leaseGrants.Add(1)
	remote := region.Remote()
	granted.Lease = n.leases.enter(&lease{conn: conn, region: region, loan: loan, bytes: bytes, expires: time.Now().Add(n.o.tuning.lease)})
	granted.RegionKey, granted.RegionSize = remote.Key, remote.Size
	return granted
}

func (n *Node) endLeases(conn *control.Conn, reply *wire.LeaseReply) {
	for _, r := range reply.GetResults() {
		if l := n.leases.takeID(conn, r.GetLease()); l != nil {
			n.leases.end(l)
		}
	}
}

// Release implements wire.ControlServer.
func (v *service) Release(ctx context.Context, req *wire.ReleaseRequest) (*wire.ReleaseReply, error) {
	conn := control.ConnOf(ctx)
	for _, id := range req.GetLeases() {
		if l := v.n.leases.takeID(conn, id); l != nil {
			v.n.leases.end(l)
		}
	}
	return &wire.ReleaseReply{}, nil
}

// Lend implements rdma.Source for the transport, by means of Backend.Lend.
func (n *Node) Lend(ctx context.Context, name []byte) (rdma.Loan, error) {
	b := n.backend.Load()
	if b == nil {
		return rdma.Loan{}, rdma.ErrBusy
	}
	ref, err := parseName(name)
	if err != nil {
		n.counters.Malformed.Add(1)
		return rdma.Loan{}, rdma.ErrGone
	}
	info, loan, err := (*b).Lend(ctx, &ref)
	if err != nil {
		return rdma.Loan{}, err
	}
	if loan.Header, err = header(&info); err != nil {
		loan.Close()
		return rdma.Loan{}, rdma.ErrGone
	}
	n.counters.lent.Add(1)
	return loan, nil
}
