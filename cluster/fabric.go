package cluster

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"sync/atomic"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
)

// probeSize is the size of the probe region in bytes: several messages of any network.
const probeSize = 64 << 10

// fabric is what this node needs to read the memory of peers and to let peers read its own.
type fabric struct {
	transport rdma.Transport
	proto     string

	// The probe region. It is registered as long as the node is open. Peers read it to find
	// out whether they can read this node's memory.
	file   *os.File
	region rdma.Region
	sum    uint64

	refused atomic.Bool // a block could not be registered, and the log has said so
}

// openFabric sets up the fabric that the options name. If its memory cannot be registered, the
// node works without it and fabricErr says why. With PathRDMA that is an error.
func (n *Node) openFabric() error {
	if n.o.Fabric == nil || n.o.Path == PathTCP || n.o.tuning.mask&meta.FeatureRDMA != 0 {
		return nil
	}
	f := &fabric{transport: n.o.Fabric, proto: n.o.Fabric.Caps().Proto}
	err := f.openProbe()
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

// openProbe registers the probe region, filled with random bytes.
func (f *fabric) openProbe() error {
	data := make([]byte, probeSize)
	rand.Read(data) // never fails
	f.sum = block.Sum(data).Sum
	file, err := memoryFile("kvfs-probe")
	if err != nil {
		return err
	}
	if _, err = file.WriteAt(data, 0); err == nil {
		f.region, err = f.transport.Register(file, probeSize)
	}
	if err != nil {
		file.Close()
		return err
	}
	f.file = file
	return nil
}

// closeProbe releases the probe region. f may be nil.
func (f *fabric) closeProbe() error {
	if f == nil {
		return nil
	}
	err := f.region.Close()
	f.file.Close()
	return err
}

// memoryFile returns an empty file in memory.
func memoryFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Describe implements wire.ControlServer.
func (v *service) Describe(context.Context, *wire.DescribeRequest) (*wire.DescribeReply, error) {
	f := v.n.fabric
	if f == nil {
		return nil, v.n.lacks(meta.FeatureRDMA)
	}
	r := f.region.Remote()
	return &wire.DescribeReply{
		FabricProto: f.proto, FabricAddr: f.transport.Addr(), ProbeKey: r.Key, ProbeSize: r.Size, ProbeSum: f.sum,
	}, nil
}

// register makes a region of a loan, for peers that read it by the fabric or by the transport.
// It returns nil on failure.
func (n *Node) register(loan *rdma.Loan, byFabric bool) rdma.Region {
	transport := n.o.Transport
	if byFabric {
		transport = n.fabric.transport
	}
	region, err := transport.Register(loan.File, loan.Size)
	if byFabric {
		if was := n.fabric.refused.Swap(err != nil); err != nil && !was {
			n.log.Warn("blocks cannot be registered for RDMA: sent by TCP", zap.Error(err))
		}
	}
	if err != nil {
		return nil
	}
	return region
}
