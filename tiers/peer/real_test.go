package peer

import (
	"context"
	"testing"
	"time"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cluster/gossip"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/rdma/tcp"
)

// openNode opens a node of a real cluster on loopback.
func openNode(t testing.TB, name string, lost *Lost, join ...*cluster.Node) *cluster.Node {
	t.Helper()
	tr, err := tcp.Open(tcp.Options{Bind: "127.0.0.1:0", DialTimeout: patience, StallTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	o := cluster.Options{
		Gossip:    gossip.Options{Name: name, Bind: "127.0.0.1:0", Profile: "local", Rejoin: 50 * time.Millisecond},
		Transport: tr, Version: "test", Capacity: func() (int64, int64) { return 1 << 30, 1 << 30 }, CallTimeout: patience,
	}
	if lost != nil {
		o.Location = location.Options{Lost: lost.Tell}
	}
	for _, j := range join {
		o.Gossip.Join = append(o.Gossip.Join, j.Members()[0].GossipAddr)
	}
	n, err := cluster.Open(context.Background(), o)
	if err != nil {
		_ = tr.Close()
		t.Fatal(err)
	}
	tr.SetSource(n)
	t.Cleanup(func() { _ = n.Close() })
	return n
}
