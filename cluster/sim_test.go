package cluster

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cluster/feed"
	"github.com/kvfs/kvfs/cluster/gossip"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/simnet"
	"github.com/kvfs/kvfs/rdma/inproc"
)

const (
	simStep    = 100 * time.Millisecond // between two changes somewhere in the cluster
	simLink    = 200 * time.Microsecond // one way
	simSlow    = 30 * time.Millisecond  // likewise, of one node
	simTrouble = 75 * time.Second       // between two troubles
	simSettle  = time.Minute            // after a trouble answers must be right again
	simLag     = 2 * time.Second        // from a change until all must know it, without trouble
	simRecent  = 2000                   // names that are looked up
)

// simCluster is a cluster of real nodes in one process: gossip, feeds, graves, owners and questions are the product's, over
// gRPC. The network and the clock are simulated. The nodes hold names without bytes.
type simCluster struct {
	t         *testing.T
	locations Locations
	net       *simnet.Net
	bulk      *inproc.Network
	rnd       *rand.Rand
	nodes     []*simNode
	names     []*simName // the latest last
	trouble   time.Time  // when the last one began or ended

	lookups, absent      int
	wrong, missed, stale int
	untrue               int // missed and stale without trouble, but at the moment of a change
}

// simNode is a place of the cluster: a node that may be down.
type simNode struct {
	s    *simCluster
	name string
	addr string // of gossip
	host *simnet.Host
	n    *Node       // nil: down
	b    *simBackend // of n
	side int         // of a partition
	deaf bool        // takes no calls
	held map[string]uint64
}

// simName is a name and what is true of it.
type simName struct {
	path    string
	seq     uint64
	removed bool
	changed time.Time         // any of this
	ever    map[*simNode]bool // nodes that held it
}

// simBackend is the blocks of a node. A grave drops the block, as in the engine.
type simBackend struct {
	*fakeBackend
	node *simNode
}

func (b *simBackend) Bury(path string, _ bool, seq uint64) {
	b.mu.Lock()
	have := b.node.held[path]
	gone := have != 0 && have < seq
	if gone {
		delete(b.node.held, path)
		delete(b.blocks, path)
	}
	b.mu.Unlock()
	if gone {
		b.n.Append(feed.Record{Op: feed.Release, Hash: location.HashPath(path)})
	}
}

func newSimCluster(t *testing.T, size int, locations Locations, seed uint64) *simCluster {
	s := &simCluster{
		t: t, locations: locations, net: simnet.New(), bulk: inproc.NewNetwork(), rnd: rand.New(rand.NewPCG(seed, 0)),
	}
	t.Cleanup(func() {
		s.net.Cut(nil)
		time.Sleep(time.Minute) // reason: the virtual clock; what is under way, and a probe of memberlist, ends by its own timer
	})
	for i := range size {
		s.nodes = append(s.nodes, &simNode{s: s, name: fmt.Sprintf("n%02d", i), held: map[string]uint64{}})
	}
	for _, n := range s.nodes {
		n.start()
	}
	return s
}

// start starts a node with what it holds. It joins by its first neighbour that is up.
func (n *simNode) start() {
	s := n.s
	n.host = s.net.Host(n.addr)
	n.addr = n.host.Addr()
	slow := s.nodes[len(s.nodes)-1].addr
	s.net.Delay(func(from, to string) time.Duration {
		if from == slow || to == slow {
			return simSlow
		}
		return simLink
	})
	bulk, err := s.bulk.Transport(n.name, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	o := Options{
		Gossip: gossip.Options{
			Name: n.name, Bind: n.addr, Profile: "lan", Rejoin: 10 * time.Second, Transport: n.host,
		},
		ControlBind: n.host.ControlAddr(), Transport: bulk, Insecure: true, Locations: s.locations,
		Logger: zap.NewNop(), tuning: tuning{network: n.host},
	}
	for _, other := range s.nodes {
		if other.n != nil {
			o.Gossip.Join = append(o.Gossip.Join, other.addr)
			break
		}
	}
	if n.n, err = Open(s.t.Context(), o); err != nil {
		s.t.Fatal(err)
	}
	n.b = &simBackend{&fakeBackend{t: s.t, n: n.n, blocks: map[string]*fakeBlock{}, buried: map[string]uint64{}}, n}
	for path, seq := range n.held {
		n.b.blocks[path] = &fakeBlock{info: simInfo(path, seq)}
	}
	node := n.n
	s.t.Cleanup(func() { _ = node.Close() })
	if err := node.Start(n.b); err != nil {
		s.t.Fatal(err)
	}
}

func simInfo(path string, seq uint64) BlockInfo {
	return BlockInfo{Path: path, Seq: seq, Size: 1 << 20, Mode: 0o100644}
}

// stop ends a node, as a kill does.
func (n *simNode) stop() {
	if err := n.n.Close(); err != nil {
		n.s.t.Error(err)
	}
	n.n = nil
}

// leave ends a node that says goodbye.
func (n *simNode) leave() {
	if err := n.n.Leave(n.s.t.Context()); err != nil {
		n.s.t.Error(err)
	}
	n.stop()
}

// hold makes a node hold a name.
func (n *simNode) hold(x *simName) {
	info := simInfo(x.path, x.seq)
	n.b.mu.Lock()
	n.held[x.path], n.b.blocks[x.path] = x.seq, &fakeBlock{info: info}
	n.b.mu.Unlock()
	x.ever[n], x.changed = true, time.Now()
	n.n.Append(record(&info))
}

// holds reports whether a node holds a name, up or down.
func (n *simNode) holds(x *simName) bool {
	if n.b != nil {
		n.b.mu.Lock()
		defer n.b.mu.Unlock()
	}
	return n.held[x.path] == x.seq
}

// reachable reports whether another node can ask this one.
func (n *simNode) reachable(by *simNode) bool {
	return n.n != nil && n.side == by.side && !n.deaf && !by.deaf
}

// up returns a random node that is up.
func (s *simCluster) up() *simNode {
	for {
		if n := s.nodes[s.rnd.IntN(len(s.nodes))]; n.n != nil {
			return n
		}
	}
}

func (s *simCluster) recent() *simName {
	return s.names[len(s.names)-1-s.rnd.IntN(min(len(s.names), simRecent))]
}

// change makes one random change: a block is committed, copied, evicted or removed.
func (s *simCluster) change() {
	n := s.up()
	kind := s.rnd.IntN(10)
	if kind < 6 || len(s.names) < 100 {
		x := &simName{path: fmt.Sprint("g/", len(s.names)), seq: uint64(time.Now().UnixNano()), ever: map[*simNode]bool{}}
		s.names = append(s.names, x)
		n.hold(x)
		return
	}
	x := s.recent()
	switch {
	case x.removed || s.cut(n, x):
	case kind < 8:
		n.hold(x)
	case kind < 9 && n.holds(x):
		n.b.mu.Lock()
		delete(n.held, x.path)
		n.b.mu.Unlock()
		x.changed = time.Now()
		n.b.drop(x.path, false)
	case kind == 9:
		x.removed, x.changed = true, time.Now()
		n.b.mu.Lock()
		delete(n.held, x.path)
		n.b.mu.Unlock()
		n.b.remove(x.path, uint64(time.Now().UnixNano()))
	}
}

// cut reports whether a partition separates a node from a holder of a name: such a name stays as it is.
func (s *simCluster) cut(n *simNode, x *simName) bool {
	return slices.ContainsFunc(s.nodes, func(h *simNode) bool { return (h.side != n.side || h.deaf != n.deaf) && h.holds(x) })
}

// find looks a name up as the tier does.
func (n *simNode) find(path string) (list []Location) {
	if n.n.Knows(location.HashPath(path)) {
		return n.n.Locate(path, nil)
	}
	n.n.Ask(n.s.t.Context(), []string{path}, func(_ string, holders []Location) { list = holders })
	return list
}

// lookUp looks up a random name on a random node, and judges the answer. It reports whether it was as things are.
func (s *simCluster) lookUp(n *simNode, x *simName) bool {
	got := n.find(x.path)
	s.lookups++
	right, found := true, map[string]bool{}
	for _, l := range got {
		h := s.nodes[slices.IndexFunc(s.nodes, func(h *simNode) bool { return h.name == l.Peer.Name() })]
		found[h.name] = true
		switch {
		case !x.ever[h] || l.Seq != x.seq || h == n:
			s.wrong++
			s.t.Errorf("%s finds %s, version %d, at %s, which never had it", n.name, x.path, l.Seq, h.name)
		case h.n == nil || !h.holds(x):
			s.stale++
			right = false
			if h.n == nil || h.reachable(n) {
				s.late(n, x, "still finds", h.name)
			}
		}
	}
	live := 0
	for _, h := range s.nodes {
		if h != n && h.reachable(n) && h.holds(x) && !x.removed {
			live++
		}
	}
	if live == 0 {
		s.absent++
	} else if !slices.ContainsFunc(s.nodes, func(h *simNode) bool { return found[h.name] && h.reachable(n) && h.holds(x) }) {
		s.missed++
		right = false
		s.late(n, x, "does not find", "")
	}
	return right
}

// late notes an answer that was not right, and fails if there was no trouble.
func (s *simCluster) late(n *simNode, x *simName, what, at string) {
	change, trouble := time.Since(x.changed), time.Since(s.trouble)
	if trouble >= simSettle && change >= simLag {
		s.t.Errorf("%s %s %s %s, %v after its last change and %v after the last trouble", n.name, what, x.path, at, change, trouble)
	}
	if trouble >= simSettle && change > 0 {
		s.untrue++
	}
}

// pass lets time pass, with changes and look-ups.
func (s *simCluster) pass(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		s.change()
		for range 3 {
			s.lookUp(s.up(), s.recent())
		}
		time.Sleep(simStep) // reason: the virtual clock
	}
}

// converge waits until all answers about the latest names are as things are, and returns when the last one was not.
func (s *simCluster) converge() time.Duration {
	began := time.Now()
	last := began
	for {
		right := true
		for _, n := range s.nodes {
			for range 50 {
				if !s.lookUp(n, s.recent()) {
					last, right = time.Now(), false
				}
			}
		}
		if right {
			return last.Sub(began)
		}
		if time.Since(began) > 10*time.Minute {
			s.t.Fatal("the answers are never right")
		}
		time.Sleep(simStep) // reason: the virtual clock
	}
}

// trouble is something that happens to a cluster, and its end.
type trouble struct {
	name string
	run  func(s *simCluster, n *simNode)
}

var troubles = []trouble{
	{"a node is killed and starts again", func(s *simCluster, n *simNode) {
		n.stop()
		s.pass(20 * time.Second)
		n.start()
	}},
	{"a node loses all and starts again", func(s *simCluster, n *simNode) {
		n.stop()
		s.pass(5 * time.Second)
		clear(n.held)
		n.start()
	}},
	{"a node leaves and comes back at another address", func(s *simCluster, n *simNode) {
		n.leave()
		s.pass(30 * time.Second)
		n.addr = ""
		n.start()
	}},
	{"a node is cut off", func(s *simCluster, n *simNode) {
		s.part(func(k *simNode) bool { return k == n }, 30*time.Second)
	}},
	{"the cluster falls into halves", func(s *simCluster, n *simNode) {
		s.part(func(k *simNode) bool { return slices.Index(s.nodes, k)%2 == 0 }, time.Minute)
	}},
	{"a node gossips and takes no calls, and three leave", func(s *simCluster, n *simNode) {
		deaf := n.host.ControlAddr()
		n.deaf = true
		s.net.Cut(func(from, to string) bool { return from == deaf || to == deaf })
		s.pass(5 * time.Second)
		var others []*simNode
		for i := range 3 {
			others = append(others, s.nodes[(slices.Index(s.nodes, n)+1+i)%len(s.nodes)])
			others[i].leave()
		}
		s.pass(2 * simSettle) // the others must be right again before its end
		s.net.Cut(nil)
		n.deaf = false
		for _, other := range others {
			other.start()
		}
	}},
}

// part makes a partition for some time.
func (s *simCluster) part(away func(n *simNode) bool, d time.Duration) {
	side := map[string]bool{}
	for _, n := range s.nodes {
		if away(n) {
			n.side = 1
			side[n.addr], side[n.host.ControlAddr()] = true, true
		}
	}
	s.net.Cut(func(from, to string) bool { return side[from] != side[to] })
	s.pass(d)
	s.net.Cut(nil)
	for _, n := range s.nodes {
		n.side = 0
	}
}

// TestSimulatedCluster runs a cluster in virtual time through changes, restarts and partitions, with all locations on each node and
// with owned ones. Answers must be right a while after each trouble, and never about something that never was. KVFS_SIM nodes
// take the place of eight.
func TestSimulatedCluster(t *testing.T) {
	size, rounds := 8, 1
	if testing.Short() {
		size = 6 // under the race detector eight take minutes
	}
	if n, err := strconv.Atoi(os.Getenv("KVFS_SIM")); err == nil {
		size, rounds = min(n, 20), 3
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for name, locations := range map[string]Locations{"all": LocationsAll, "owned": LocationsOwned} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newSimCluster(t, size, locations, seed).run(rounds) })
		})
	}
}

func (s *simCluster) run(rounds int) {
	s.trouble = time.Now()
	for range 200 {
		s.change()
	}
	s.t.Logf("%d nodes: all know all %v after the start", len(s.nodes), s.converge())
	s.pass(simSettle)
	received := s.received()
	s.pass(simSettle)
	s.t.Logf("without trouble each receives %.1f KB/s", float64(s.received()-received)/simSettle.Seconds()/float64(len(s.nodes))/1e3)
	for range rounds {
		for _, what := range troubles {
			s.trouble = time.Now()
			lookups, missed, stale := s.lookups, s.missed, s.stale
			what.run(s, s.up())
			s.t.Logf("%s: of %d look-ups %d were misses, %d stale", what.name, s.lookups-lookups, s.missed-missed, s.stale-stale)
			s.trouble = time.Now()
			took := s.converge()
			s.figure("all answers are right again after: "+what.name, took.Seconds(), "s")
			s.pass(simTrouble - time.Since(s.trouble))
		}
	}
	s.figure("look-ups", float64(s.lookups), "")
	s.figure("look-ups of names that nobody has", float64(s.absent), "")
	s.figure("answers about what never was", float64(s.wrong), "")
	s.figure("without trouble: misses, and answers that were not true any more", float64(s.untrue), "")
}

// figure logs a cell of the table.
func (s *simCluster) figure(row string, value float64, unit string) {
	locations := map[Locations]string{LocationsAll: "all locations", LocationsOwned: "owned"}[s.locations]
	s.t.Log(simnet.Figure{Table: "trouble", Row: row, Column: fmt.Sprintf("%d nodes, %s", len(s.nodes), locations), Value: value, Unit: unit})
}

// received returns the bytes that have come to all nodes.
func (s *simCluster) received() (sum uint64) {
	for _, n := range s.nodes {
		sum += n.host.Received()
	}
	return sum
}
