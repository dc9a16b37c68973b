package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvfs/kvfs/cluster/gossip"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/tcp"
)

// TestMembers shows what is told of nodes while they come, change, go and are forgotten,
// and that what they hold is found accordingly.
func TestMembers(t *testing.T) {
	var total, free atomic.Int64
	total.Store(1000)
	free.Store(500)
	a := start(t, "a", func(o *Options) { o.tuning.drop = 50 * time.Millisecond })
	b := start(t, "b", func(o *Options) { o.Capacity = func() (int64, int64) { return total.Load(), free.Load() } }, a)
	together(t, a, b)
	list := a.Members()
	if len(list) != 2 || list[0].Name != "a" || !list[0].Self || list[1].Name != "b" || list[1].Self {
		t.Fatalf("members %+v", list)
	}
	if _, err := json.Marshal(list); err != nil {
		t.Error(err)
	}
	m := list[1]
	if m.Version != "v1-b" || m.Zone != "z1" || m.Protocol != 1 || m.TotalBytes != 1000 || m.FreeBytes != 500 ||
		m.GossipAddr != b.gossip.Self().Addr || m.ControlAddr != b.self.Control || m.BulkAddr != b.o.Transport.Addr() ||
		len(m.Missing) != 0 || m.Breaker != "closed" || m.Since.IsZero() {
		t.Errorf("b is told as %+v", m)
	}
	for _, by := range []string{"b", m.GossipAddr, m.ControlAddr, m.BulkAddr} {
		if p := a.PeerBy(by); p == nil || p.Name() != "b" {
			t.Errorf("PeerBy(%q) = %v", by, p)
		}
	}
	if a.PeerBy("") != nil || a.PeerBy("a") != nil || a.PeerBy("zz") != nil {
		t.Error("PeerBy finds what is not there")
	}
	free.Store(400)
	eventually(t, "the free capacity is told", func() bool { m, _ := a.member("b"); return m.FreeBytes == 400 })
	total.Store(2000)
	eventually(t, "the capacity is told", func() bool { m, _ := a.member("b"); return m.TotalBytes == 2000 })
	free.Store(390) // half a per cent: not worth telling, but told with what is
	total.Store(3000)
	eventually(t, "both are told", func() bool { m, _ := a.member("b"); return m.TotalBytes == 3000 && m.FreeBytes == 390 })

	b.put("g/x", 1, nil)
	at := a.located(t, "g/x", 1)
	if m, _ := a.member("b"); m.Blocks != 1 {
		t.Errorf("%d blocks", m.Blocks)
	}
	must(t, b.Leave(t.Context()))
	if err := b.Leave(t.Context()); err != nil {
		t.Error("a second Leave:", err)
	}
	eventually(t, "b has left", func() bool { m, _ := a.member("b"); return m.State == stateLeft })
	if len(a.Locate("g/x", nil)) != 0 || a.PeerBy("b") != nil || len(a.Peers()) != 0 {
		t.Error("found after it left")
	}
	p := at[0].Peer
	if _, _, err := fetchOne(t, t.Context(), p, BlockRef{Path: "g/x", Seq: 1}); !errors.Is(err, rdma.ErrUnavailable) || p.Usable() || p.Can(meta.FeatureGet) {
		t.Errorf("fetch from who left: %v", err)
	}
	if _, err := p.Stat(t.Context(), []string{"x"}); !errors.Is(err, rdma.ErrUnavailable) {
		t.Errorf("stat of who left: %v", err)
	}
	eventually(t, "what it held is forgotten", func() bool { return a.Stats().Index.Entries == 0 })
	if len(a.Members()) != 2 {
		t.Error("b is forgotten too early")
	}
}

// holder returns a peer that is there, and its slot.
func (tn *testNode) holder(name, zone string) (*Peer, location.Slot) {
	p := tn.newPeer(name)
	p.zone.Store(&zone)
	p.session.Store(&session{target: &target{}})
	slot, _ := p.feed.TakeSlot()
	tn.index.SetLive(slot, true)
	return p, slot
}

// TestLocateOrder shows the order of the answer: breaker, memory, zone, load; and that
// a look-up does not allocate.
func TestLocateOrder(t *testing.T) {
	a := prepare(t, "a", nil)
	hash := location.HashPath("g/x")
	add := func(name, zone string, memory bool, inflight int64, open bool) {
		p, slot := a.holder(name, zone)
		p.inflight.Store(inflight)
		for open && p.bulk.Closed() {
			p.bulk.Failed()
		}
		a.index.Put(slot, location.Entry{Hash: hash, Seq: 5, Size: 3, Mode: 0o100644, Memory: memory})
	}
	add("open", "z1", true, 0, true)
	add("ssd", "z1", false, 0, false)
	add("far", "z2", true, 0, false)
	add("busy", "z1", true, 7, false)
	add("best", "z1", true, 1, false)
	var names []string
	for _, l := range a.Locate("g/x", nil) {
		names = append(names, l.Peer.name)
	}
	if got := strings.Join(names, " "); got != "best busy far ssd open" {
		t.Errorf("order %s", got)
	}
	buf := make([]Location, 0, 8)
	least := math.Inf(1) // of some runs: others, such as the gossip, may allocate during one
	for range 5 {
		least = min(least, testing.AllocsPerRun(100, func() { a.Locate("g/x", buf); a.Locate("g/none", buf) }))
	}
	if least != 0 {
		t.Errorf("%v allocations", least)
	}
}

// TestLocateSpreads shows that nodes which read the same blocks in the same order do not ask the same holder for
// each of them: of two that are equal the first is another one from block to block and from node to node (C19).
func TestLocateSpreads(t *testing.T) {
	const blocks = 1000
	var first [2][blocks]string
	for i, name := range []string{"a", "b"} {
		n := prepare(t, name, nil)
		for _, holder := range []string{"x", "y"} {
			_, slot := n.holder(holder, n.o.Zone)
			for b := range blocks {
				n.index.Put(slot, location.Entry{Hash: location.HashPath(fmt.Sprint("g/", b)), Seq: 5, Size: 3, Mode: 0o100644, Memory: true})
			}
		}
		for b := range blocks {
			first[i][b] = n.Locate(fmt.Sprint("g/", b), nil)[0].Peer.name
		}
	}
	x, same := 0, 0
	for b := range blocks {
		if first[0][b] == "x" {
			x++
		}
		if first[0][b] == first[1][b] {
			same++
		}
	}
	if x < blocks/4 || x > blocks*3/4 || same < blocks/4 || same > blocks*3/4 {
		t.Errorf("of %d blocks one node asks x for %d, and another node asks the same holder for %d; want about half", blocks, x, same)
	}
}

// TestSlots shows that slots are all given, once, and again when they are free.
func TestSlots(t *testing.T) {
	var s slotTable
	p := &Peer{}
	seen := map[location.Slot]bool{}
	for range location.MaxSlots {
		slot, ok := s.take(p)
		if !ok || seen[slot] {
			t.Fatalf("slot %d: %v, twice %v", slot, ok, seen[slot])
		}
		seen[slot] = true
	}
	if _, ok := s.take(p); ok {
		t.Error("more than there are")
	}
	s.peers[17].Store(nil)
	if slot, ok := s.take(p); !ok || slot != 17 {
		t.Errorf("got %d, %v", slot, ok)
	}
}

// TestOptions shows which options are refused, all at once, and that no address that
// strangers reach is opened without what keeps them out.
func TestOptions(t *testing.T) {
	tr, err := tcp.Open(tcp.Options{Bind: "127.0.0.1:0"})
	must(t, err)
	defer tr.Close()
	wild, err := tcp.Open(tcp.Options{Bind: "0.0.0.0:0"})
	must(t, err)
	defer wild.Close()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	good := gossip.Options{Name: "a", Bind: "127.0.0.1:0"}
	for _, tc := range []struct {
		name string
		o    Options
		want []string
	}{
		{"nothing", Options{}, []string{"no node name", "no address", "no transport"}},
		{"bad", Options{Gossip: good, Transport: tr, CallTimeout: -1, ControlBind: "x", Require: []string{"speed"}},
			[]string{"call timeout", "control address", `feature "speed"`}},
		{"exposed", Options{Gossip: gossip.Options{Name: "a", Bind: "0.0.0.0:0", Advertise: "127.0.0.1"}, Transport: wild},
			[]string{"gossip address 0.0.0.0:0", "control address 0.0.0.0:0", "bulk address"}},
		{"exposed control", Options{Gossip: good, ControlBind: ":0", Transport: tr}, []string{"control address :0 is not loopback and has no TLS"}},
		{"taken", Options{Gossip: good, ControlBind: taken.Addr().String(), Transport: tr}, []string{"control address: ", "in use"}},
		{"long zone", Options{Gossip: good, Transport: tr, Zone: strings.Repeat("z", 65)}, []string{"zone of 65 bytes"}},
		{"long name", Options{Gossip: gossip.Options{Name: strings.Repeat("n", 200), Bind: "127.0.0.1:0"}, Transport: tr}, []string{"node name of 200 bytes"}},
	} {
		n, err := Open(t.Context(), tc.o)
		if err == nil {
			n.Close()
			t.Errorf("%s: accepted", tc.name)
			continue
		}
		for _, w := range tc.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q does not say %q", tc.name, err, w)
			}
		}
	}
	n, err := Open(t.Context(), Options{
		Gossip: gossip.Options{Name: "a", Bind: "0.0.0.0:0", Advertise: "127.0.0.1"}, Transport: wild, Insecure: true, Version: strings.Repeat("v", 100),
	})
	if err != nil {
		t.Fatal("insecure:", err)
	}
	if host := gossip.HostOf(n.self.Control); host != "127.0.0.1" || gossip.HostOf(n.self.Bulk) != host {
		t.Errorf("advertised %s and %s", n.self.Control, n.self.Bulk)
	}
	n.Close()
}

// TestBeforeStart shows that a node that is open but not started serves nothing.
func TestBeforeStart(t *testing.T) {
	a := prepare(t, "a", nil)
	if _, err := a.Node.Lend(t.Context(), nil); !errors.Is(err, rdma.ErrBusy) {
		t.Error(err)
	}
	if len(a.Members()) != 1 || len(a.Peers()) != 0 {
		t.Error("members before the start")
	}
	a.Node.Close()
	if err := a.Start(a.fakeBackend); !errors.Is(err, rdma.ErrClosed) {
		t.Error(err)
	}
	if err := a.Leave(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestNoLeak shows that nothing of a cluster runs on after it is closed, also not if
// fetches, stores and leases were under way.
func TestNoLeak(t *testing.T) {
	before := ours()
	for _, way := range ways {
		a, b := pair(t, way.change(t))
		a.put("g/x", 1, pattern(1, 1000))
		p := b.located(t, "g/x", 1)[0].Peer
		gate := make(chan struct{})
		a.locked(func() { a.gate = gate })
		done := make(chan error, 4)
		for range 4 {
			go func() { // ends when the node closes
				_, _, err := fetchOne(t, context.Background(), p, BlockRef{Path: "g/x", Seq: 1})
				done <- err
			}()
		}
		eventually(t, "fetches are under way", func() bool { return p.inflight.Load() == 4 })
		b.Node.Close()
		for range 4 {
			if err := <-done; !errors.Is(err, rdma.ErrUnavailable) {
				t.Errorf("fetch of a node that closes: %v", err)
			}
		}
		close(gate)
		a.Node.Close()
		if a.loans() != 0 {
			t.Errorf("%d loans after Close", a.loans())
		}
	}
	eventually(t, "no goroutine is left", func() bool { return ours() <= before })
}

// ours counts the goroutines that run, or were started by, code of this module or gRPC.
func ours() int {
	buf := make([]byte, 4<<20)
	buf = buf[:runtime.Stack(buf, true)]
	n := 0
	for _, g := range strings.Split(string(buf), "\n\n") {
		for _, pkg := range []string{"kvfs/cluster.(", "kvfs/rdma/", "google.golang.org/grpc", "hashicorp/memberlist", "kvfs/cluster/"} {
			if strings.Contains(g, pkg) && !strings.Contains(g, "testing.tRunner") {
				n++
				break
			}
		}
	}
	return n
}
