package peer

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cluster/gossip"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/rdma/tcp"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/tiertest/suite"
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

// farNode is a node that has a memBackend.
type farNode struct {
	*memBackend
	node *cluster.Node
}

func startFar(t testing.TB, name string, join ...*cluster.Node) *farNode {
	f := &farNode{newMemBackend(), openNode(t, name, nil, join...)}
	f.announce = f.node.Append
	if err := f.node.Start(f.memBackend); err != nil {
		t.Fatal(err)
	}
	return f
}

// openReal opens a tier on a node of a real cluster with other nodes, and waits until all nodes
// know each other.
func openReal(t testing.TB, engine *stubEngine, peers int, edit func(o *Options)) (*Tier, []*farNode) {
	t.Helper()
	var far []*farNode
	var join []*cluster.Node
	for i := range peers {
		far = append(far, startFar(t, fmt.Sprint("far-", i), join...))
		join = []*cluster.Node{far[0].node}
	}
	lost := NewLost()
	n := openNode(t, "near", lost, join...)
	o := Options{Node: n, Lost: lost, Replicas: 1, Accept: true, Timeout: patience, Silence: patience}
	if edit != nil {
		edit(&o)
	}
	tier, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tier.Close(context.Background()) })
	engine.tier = tier
	if err := tier.start(engine, newStubEvents()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the nodes know each other", func() bool {
		for _, f := range far {
			if len(f.node.Peers()) != peers || n.PeerBy("far-0") == nil {
				return false
			}
		}
		for _, m := range n.Members()[1:] {
			if m.Feed != "following" || m.Snapshots == 0 {
				return false
			}
		}
		return len(n.Peers()) == peers
	})
	return tier, far
}

// TestConformanceCluster runs the suite of all tiers over real nodes: gossip, control and
// bulk channels on loopback.
func TestConformanceCluster(t *testing.T) {
	far := map[driver.Tier][]*farNode{}
	open := func(t *testing.T) driver.Tier {
		engine := newStubEngine()
		tier, list := openReal(t, engine, 2, nil)
		ct := &conformTier{Tier: tier, engine: engine, raised: map[block.Key]uint64{}, copies: 1}
		far[ct] = list
		return ct
	}
	suite.Run(t, open, suite.Options{Corrupt: func(t *testing.T, tier driver.Tier, key block.Key) {
		for _, f := range far[tier] {
			f.corrupt(key.Path())
		}
	}})
}
