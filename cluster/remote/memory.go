package remote

import (
	"context"
	"fmt"

	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
)

// Limits of what a peer tells of its fabric.
const (
	maxAddr  = 16 << 10 // bytes; it names each network card
	maxProbe = 1 << 20  // bytes
)

// Check fails with rdma.ErrProtocol if a description makes no sense.
func Check(r *wire.DescribeReply) error {
	switch {
	case r.GetFabricProto() == "" || len(r.GetFabricProto()) > meta.MaxText || !meta.Printable(r.GetFabricProto()):
		return fmt.Errorf("%w: fabric of the kind %.100q", rdma.ErrProtocol, r.GetFabricProto())
	case r.GetFabricAddr() == "" || len(r.GetFabricAddr()) > maxAddr:
		return fmt.Errorf("%w: fabric address of %d bytes", rdma.ErrProtocol, len(r.GetFabricAddr()))
	case len(r.GetProbeKey()) == 0 || len(r.GetProbeKey()) > rdma.MaxKey:
		return fmt.Errorf("%w: probe region with a key of %d bytes", rdma.ErrProtocol, len(r.GetProbeKey()))
	case r.GetProbeSize() <= 0 || r.GetProbeSize() > maxProbe:
		return fmt.Errorf("%w: probe region of %d bytes", rdma.ErrProtocol, r.GetProbeSize())
	}
	return nil
}

// Memory is the memory of a peer, as far as the peer gives keys of it. It is an rdma.Peer.
type Memory struct {
	rdma.Peer
	probe *wire.DescribeReply
}

// NewMemory returns the memory that peer reads, with its description.
func NewMemory(peer rdma.Peer, d *wire.DescribeReply) *Memory { return &Memory{peer, d} }

// Test reads the probe region and compares the bytes with those that the peer announced. It fails with
// rdma.ErrProtocol if they differ.
func (m *Memory) Test(ctx context.Context) error {
	r := m.probe
	file, err := memoryFile("kvfs-probe")
	if err != nil {
		return err
	}
	defer file.Close()
	sum := block.NewChecksum()
	region := rdma.RemoteRegion{Key: r.GetProbeKey(), Size: r.GetProbeSize()}
	if err := m.Read(ctx, region, 0, r.GetProbeSize(), rdma.Dest{File: file, Hash: sum}); err != nil {
		return err
	}
	if sum.Sum64() != r.GetProbeSum() {
		return fmt.Errorf("%w: what was read is not what the peer has there", rdma.ErrProtocol)
	}
	return nil
}

// prober is an rdma.Peer that can be tested over each network card. Some cards may fail to
// reach it while others work.
type prober interface {
	Probe(ctx context.Context) error // joins the error of each card that fails
}

// TestCards finds out over which network cards the peer is reached. The error joins that of each
// card that fails. ok is false if the fabric cannot tell.
func (m *Memory) TestCards(ctx context.Context) (ok bool, err error) {
	if all, ok := m.Peer.(prober); ok {
		return true, all.Probe(ctx)
	}
	return false, nil
}

// mover is an rdma.Peer that counts the bytes read so far, including those of unfinished
// reads.
type mover interface {
	Moved() int64
}

// Moved returns how many bytes have come by the fabric from the peer. told is false if the fabric does
// not count them.
func (m *Memory) Moved() (n int64, told bool) {
	if c, ok := m.Peer.(mover); ok {
		return c.Moved(), true
	}
	return 0, false
}
