package peer

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cluster/gossip"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/tcp"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/tiertest/suite"
)

// openNode opens a node of a real cluster on loopback.
func openNode(t testing.TB, name string, lost *Lost, join ...*cluster.Node) *cluster.Node {
	t.Helper()
	return openNodeWith(t, name, lost, nil, join...)
}

// openNodeWith opens a node that reads its peers only by the fabric, unless that is nil.
func openNodeWith(t testing.TB, name string, lost *Lost, fabric rdma.Transport, join ...*cluster.Node) *cluster.Node {
	t.Helper()
	tr, err := tcp.Open(tcp.Options{Bind: "127.0.0.1:0", DialTimeout: patience, StallTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	o := cluster.Options{
		Gossip:    gossip.Options{Name: name, Bind: "127.0.0.1:0", Profile: "local", Rejoin: 50 * time.Millisecond},
		Transport: tr, Version: "test", Capacity: func() (int64, int64) { return 1 << 30, 1 << 30 }, CallTimeout: patience,
	}
	if fabric != nil {
		o.Fabric, o.Path = fabric, cluster.PathRDMA
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

// TestClusterLife shows the life of a block over a real cluster: it is found and read on other
// nodes, its loss is reported, a removal reaches its holder, and copies are taken from offering
// peers.
func TestClusterLife(t *testing.T) {
	engine := newStubEngine()
	tier, far := openReal(t, engine, 2, nil)
	host := &testHost{make(chan block.Key, 16)}
	tier.SetHost(host)
	data := payload(100000, 3)
	far[0].add(cluster.BlockInfo{Path: "g/x", Seq: 5, UID: 7}, data)
	far[1].add(cluster.BlockInfo{Path: "g/y", Seq: 6}, data)
	eventually(t, "both blocks are located", func() bool {
		_, x := tier.Locate("g/x")
		_, y := tier.Locate("g/y")
		return x && y
	})
	out, files := load(t, tier, want{path: "g/x", size: 100000, seq: 5}, want{path: "g/y", size: 100000, seq: 6})
	for i, o := range out {
		if o.Status != driver.Loaded || !bytes.Equal(files[i], data) {
			t.Errorf("block %d: %v (%v)", i, o.Status, o.Err)
		}
	}
	tier.Watch(keyOf("g/y"))
	if err := far[1].node.Leave(context.Background()); err != nil {
		t.Error(err)
	}
	if err := far[1].node.Close(); err != nil {
		t.Error(err)
	}
	if key := within(t, "loss of the block of a node that left", host.lost); key != keyOf("g/y") {
		t.Errorf("lost %v", key)
	}
	tier.Bury([]driver.Grave{{Path: "g/x", Seq: 6}})
	if _, ok := tier.Locate("g/x"); ok {
		t.Error("found after its removal")
	}
	eventually(t, "the holder drops it", func() bool { return far[0].Stat([]string{"g/x"})[0] == nil })

	far[0].mu.Lock() // not announced
	far[0].blocks["g/z"] = &memBlock{cluster.BlockInfo{Path: "g/z", Seq: 9, Size: 100000, Sum: block.Sum(data), Mode: modeRegular}, data}
	far[0].mu.Unlock()
	near := far[0].node.PeerBy("near")
	if near == nil {
		t.Fatal("far-0 does not know near")
	}
	o := near.Store(context.Background(), []cluster.BlockInfo{*far[0].Stat([]string{"g/z"})[0]})
	if h, ok := engine.Holding("g/z"); o[0].Status != cluster.StoreDone || !ok || h.Seq != 9 || h.Sum != block.Sum(data) {
		t.Errorf("offer: %+v, %+v %v", o, h, ok)
	}
}
