// Package remote is the memory of nodes that is read one-sided, by a fabric: this node's for peers,
// and theirs for this node.
//
//	Fabric  this node's end: it registers memory, and connects to the fabrics of peers
//	Memory  the memory of one peer
//	Reader  reads blocks of a Memory that are leased, and decides how long to wait for them
//
// A Fabric has a probe region of random bytes, registered as long as it is open. Its Description names
// the address, and the key and the checksum of the probe. Connect reads the probe of the peer, and
// gives a Memory only if the bytes are right.
package remote

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
)

// ProbeSize is the size of the probe region in bytes: several messages of any network.
const ProbeSize = 64 << 10

// Fabric is what this node needs to read the memory of peers and to let peers read its own. Its
// methods may be called in parallel.
type Fabric struct {
	Proto string // what peers are told; only tests change it
	Sum   uint64 // likewise: the checksum of the probe region

	transport rdma.Transport
	file      *os.File // of the probe region
	region    rdma.Region
	refused   atomic.Bool // Register has failed, and said that it was the first time
}

// Open registers the probe region with a transport. It fails if that cannot be done.
func Open(transport rdma.Transport) (*Fabric, error) {
	f := &Fabric{transport: transport, Proto: transport.Caps().Proto}
	if err := f.openProbe(); err != nil {
		return nil, err
	}
	return f, nil
}

// openProbe registers the probe region, filled with random bytes.
func (f *Fabric) openProbe() error {
	data := make([]byte, ProbeSize)
	rand.Read(data) // never fails
	f.Sum = block.Sum(data).Sum
	file, err := memoryFile("kvfs-probe")
	if err != nil {
		return err
	}
	if _, err = file.WriteAt(data, 0); err == nil {
		f.region, err = f.transport.Register(file, ProbeSize)
	}
	if err != nil {
		file.Close()
		return err
	}
	f.file = file
	return nil
}

// Close releases the probe region, and leaves the transport open. f may be nil.
func (f *Fabric) Close() error {
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

// Description returns what a peer needs to read this node's memory.
func (f *Fabric) Description() *wire.DescribeReply {
	r := f.region.Remote()
	return &wire.DescribeReply{
		FabricProto: f.Proto, FabricAddr: f.transport.Addr(), ProbeKey: r.Key, ProbeSize: r.Size, ProbeSum: f.Sum,
	}
}

// Register makes a region of a loan. first reports whether it failed, and did not the last time.
func (f *Fabric) Register(loan *rdma.Loan) (region rdma.Region, first bool, err error) {
	region, err = f.transport.Register(loan.File, loan.Size)
	was := f.refused.Swap(err != nil)
	return region, err != nil && !was, err
}

// Connect returns the memory of the peer that has told its Description. It fails if the probe region
// cannot be read, with rdma.ErrProtocol if other bytes are there.
func (f *Fabric) Connect(ctx context.Context, d *wire.DescribeReply) (*Memory, error) {
	peer, err := f.transport.Connect(d.GetFabricAddr())
	if err != nil {
		return nil, err
	}
	m := NewMemory(peer, d)
	if err := m.Test(ctx); err != nil {
		return nil, errors.Join(err, peer.Close())
	}
	return m, nil
}
