//go:build ofi && cgo

package fabric

import (
	"encoding/binary"
	"net"
	"testing"

	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/rdmatest"
)

// relays stand between transports over sockets. A client is led to a relay instead of the peer.
type relays struct {
	rdmatest.Relays
	tb testing.TB
}

// relayed is a Transport whose connections go through relays.
type relayed struct {
	*Transport
	net *relays
}

// Connect implements rdma.Transport.
func (r *relayed) Connect(addr string) (rdma.Peer, error) {
	a, err := parseAddress(addr)
	if err != nil {
		return nil, err
	}
	a.rails[0].endpoint = r.net.to(addr, a.rails[0].endpoint)
	return r.Transport.Connect(a.String())
}

// to returns the address of the relay to addr, whose socket address is endpoint, IPv4.
func (n *relays) to(addr string, endpoint []byte) []byte {
	r := n.Relay(addr)
	if r == nil {
		target := &net.TCPAddr{IP: net.IP(endpoint[4:8]), Port: int(binary.BigEndian.Uint16(endpoint[2:]))}
		r = rdmatest.NewRelay(n.tb, target.IP.String())
		r.Serve(target.String())
		n.Add(addr, r)
	}
	via := append([]byte{}, endpoint...)
	binary.BigEndian.PutUint16(via[2:], uint16(r.Addr().Port))
	return via
}
