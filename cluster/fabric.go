package cluster

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/cluster/remote"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
)

// openFabric sets up the fabric that the options name. If its memory cannot be registered, the
// node works without it and fabricErr says why. With PathRDMA that is an error.
func (n *Node) openFabric() error {
	if n.o.Fabric == nil || n.o.Path == PathTCP || n.o.tuning.mask&meta.FeatureRDMA != 0 {
		return nil
	}
	f, err := remote.Open(n.o.Fabric)
	switch {
	case err == nil:
		n.fabric = f
	case n.o.Path == PathRDMA:
		return fmt.Errorf("fabric: %w", err)
	default:
		n.fabricErr = fmt.Errorf("memory cannot be registered for it: %w", err)
		n.log.Warn("no RDMA", zap.Error(n.fabricErr))
	}
	return nil
}

// dropFabric closes a fabric that cannot be used, so that its network card is free.
func (n *Node) dropFabric() {
	if n.fabricErr == nil {
		return
	}
	if err := n.o.Fabric.Close(); err != nil {
		n.log.Debug("closing RDMA", zap.Error(err))
	}
	n.o.Fabric = nil
}

// FabricErr returns why Options.Fabric is closed and not used, although it should be. It
// returns nil if the fabric is used or none is wanted.
func (n *Node) FabricErr() error { return n.fabricErr }

// Describe implements wire.ControlServer.
func (v *service) Describe(context.Context, *wire.DescribeRequest) (*wire.DescribeReply, error) {
	if v.n.fabric == nil {
		return nil, v.n.lacks(meta.FeatureRDMA)
	}
	return v.n.fabric.Description(), nil
}

// register makes a region of a loan, for peers that read it by the fabric or by the transport.
// It returns nil on failure.
func (n *Node) register(loan *rdma.Loan, byFabric bool) rdma.Region {
	if !byFabric {
		region, err := n.o.Transport.Register(loan.File, loan.Size)
		if err != nil {
			return nil
		}
		return region
	}
	region, first, err := n.fabric.Register(loan)
	if first {
		n.log.Warn("blocks cannot be registered for RDMA: sent by TCP", zap.Error(err))
	}
	if err != nil {
		return nil
	}
	return region
}
