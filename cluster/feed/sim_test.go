package feed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/simnet"
)

// The network of the simulation: each node has a link of 10 Gbit/s to a switch that is never the
// bottleneck.
const (
	simLatency      = 200 * time.Microsecond // one way
	simBitsPerNano  = 10
	simOverhead     = 150             // bytes on the wire that a batch costs besides its records: protobuf, gRPC, TLS, TCP, IP, Ethernet
	simEventsPerSec = 500             // of each node: half new blocks, half evictions
	simSteady       = 2 * time.Second // how long the traffic is counted
	simForget       = time.Minute     // from the loss of a node until it is dropped
)

// simScale is one row of the table.
type simScale struct {
	nodes, blocks int  // blocks of each node
	subscribers   int  // nodes with an index; the last joins when the others are done
	owned         bool // each subscriber follows only the shards that it owns: three of all nodes own each
}

// simResult is the measurement of one run. Times are of the bubble's clock, except CPU.
type simResult struct {
	simScale
	entries                  int64
	join                     time.Duration // until the last subscriber has all snapshots
	joinBytes                uint64        // of records, for the last subscriber
	joinCPU                  time.Duration // of both sides, and of making up the blocks
	hideCPU, dropCPU         time.Duration // of one lost node
	indexBytes               int64
	feedBytes, wire, batches uint64 // a second and subscriber
	applyCPU                 time.Duration
}

// TestSimulation runs a small cluster through a join, steady traffic, and a loss.
func TestSimulation(t *testing.T) {
	simulate(t, simScale{nodes: 10, blocks: 2000, subscribers: 10})
	simulate(t, simScale{nodes: 10, blocks: 2000, subscribers: 10, owned: true})
}

// TestSimulationTable makes the columns of the table of the package comment for up to KVFS_SIM nodes, and figures of
// docs/cluster.md. 1,000 take some minutes and 8 GB of memory.
func TestSimulationTable(t *testing.T) {
	if os.Getenv("KVFS_SIM") == "" {
		t.Skip("KVFS_SIM is not a number of nodes")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(30))
	for _, table := range []string{"all", "owned"} {
		for _, n := range simnet.Sizes() {
			r := simulate(t, simScale{n, 100_000, max(1, min(10, 300/n)), table == "owned"})
			for _, f := range []simnet.Figure{
				{Row: "index of each node", Value: float64(r.indexBytes), Unit: "B"},
				{Row: "a node that joins receives", Value: float64(r.joinBytes), Unit: "B"},
				{Row: "each node receives while nothing changes but these 500 events a second on each", Value: float64(r.wire), Unit: "B/s"},
			} {
				f.Table, f.Column = table, fmt.Sprint(n)
				t.Log(f)
			}
			debug.FreeOSMemory()
		}
	}
}

func simulate(t *testing.T, s simScale) (r simResult) {
	synctest.Test(t, func(t *testing.T) { r = newSimulation(t, s).run() })
	n := uint64(s.nodes)
	t.Logf("%d nodes of %d blocks, %d subscribers, owned shards only: %v", s.nodes, s.blocks, s.subscribers, s.owned)
	t.Logf("  join  %8.1f ms, %7.1f MB, %5.1f B/record, CPU %.2f s", r.join.Seconds()*1e3, float64(r.joinBytes)/1e6, float64(r.joinBytes)/float64(r.entries), r.joinCPU.Seconds())
	t.Logf("  loss  hidden by %.2f ms CPU, dropped by %.2f ms CPU", r.hideCPU.Seconds()*1e3, r.dropCPU.Seconds()*1e3)
	t.Logf("  index %d entries, %.1f MB, %.1f B/entry", r.entries, float64(r.indexBytes)/1e6, float64(r.indexBytes)/float64(r.entries))
	t.Logf("  feed  %.1f KB/s a subscriber, %.1f KB/s on the wire, %d batches/s; %.1f MB/s in all, %.1f on the wire; %.2f CPU s/s a subscriber, both sides",
		float64(r.feedBytes)/1e3, float64(r.wire)/1e3, r.batches, float64(r.feedBytes*n)/1e6, float64(r.wire*n)/1e6,
		r.applyCPU.Seconds()/simSteady.Seconds()/float64(s.subscribers))
	return r
}

// simulation is a cluster in one process.
type simulation struct {
	simScale
	t          *testing.T
	interval   time.Duration
	publishers []*simPublisher
	readers    []*simSubscriber
	rnd        *rand.Rand
}

// simPublisher is a node that holds its blocks number low to high: it makes the next one and evicts
// the oldest.
type simPublisher struct {
	node, blocks uint64
	log          *Log
	out          simLink
	mu           struct {
		sync.Mutex
		low, high uint64
	}
}

// simLink is one direction of a node's link, with the time when it is free again.
type simLink struct {
	mu struct {
		sync.Mutex
		free time.Time
	}
}

// pass returns when bytes that come at time at have passed.
func (l *simLink) pass(at time.Time, bytes int) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.free.After(at) {
		at = l.mu.free
	}
	l.mu.free = at.Add(time.Duration(bytes * 8 / simBitsPerNano))
	return l.mu.free
}

// simSubscriber is a node with an index.
type simSubscriber struct {
	scope     Parts // nil: of everything
	index     *location.Index
	slots     *slotPool
	in        simLink
	followers []*Follower // one a publisher
	left      atomic.Int64
	complete  chan time.Time // receives the time of the last snapshot
	bytes     atomic.Uint64
}

func newSimulation(t *testing.T, s simScale) *simulation {
	m := &simulation{simScale: s, t: t, rnd: rand.New(rand.NewPCG(1, 2))}
	// The interval of as many subscribers as nodes.
	m.interval = max(defaultInterval, time.Duration(s.nodes)*perSubscriber)
	for i := range s.nodes {
		p := &simPublisher{node: uint64(i), blocks: uint64(s.blocks)}
		p.log = NewLog(LogOptions{Epoch: 1, Interval: m.interval})
		p.mu.high = p.blocks
		m.publishers = append(m.publishers, p)
	}
	return m
}

// block returns the record of block number j. The first blocks are of the last day, in random
// order; new ones come in sequence.
func (p *simPublisher) block(j uint64) Record {
	hash := (p.node<<32 + j + 1) * 0x9e3779b97f4a7c15
	hash = (hash ^ hash>>32) * 0xd6e8feb86659fd93
	seq := 1_790_000_000_000_000_000 + hash%86_400_000_000_000
	if j >= p.blocks {
		seq = 1_790_086_400_000_000_000 + (j-p.blocks)*4_000_000
	}
	return Record{Op: Hold, Hash: hash ^ hash>>29, Seq: seq, Size: 4 << 20, Mode: 0o100644, UID: 1000, GID: 1000, Memory: j&1 == 0}
}

// act makes one block or evicts one.
func (p *simPublisher) act() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.high-p.mu.low <= p.blocks {
		p.log.Append(p.block(p.mu.high))
		p.mu.high++
		return
	}
	p.log.Append(release(p.block(p.mu.low).Hash))
	p.mu.low++
}

func (p *simPublisher) snapshot(_ context.Context, fn func(*Record) error) error {
	p.mu.Lock()
	low, high := p.mu.low, p.mu.high
	p.mu.Unlock()
	for j := low; j < high; j++ {
		r := p.block(j)
		if err := fn(&r); err != nil {
			return err
		}
	}
	return nil
}

// held returns how many blocks the node holds, in a scope.
func (p *simPublisher) held(scope Parts) (count int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if scope == nil {
		return int64(p.mu.high - p.mu.low)
	}
	for j := p.mu.low; j < p.mu.high; j++ {
		if scope.Holds(p.block(j).Hash) {
			count++
		}
	}
	return count
}

// inFlight is a batch on its way.
type inFlight struct {
	*Batch
	at time.Time
}

// join makes a node follow all publishers until ctx ends.
func (m *simulation) join(ctx context.Context, wait *sync.WaitGroup) *simSubscriber {
	s := &simSubscriber{index: location.New(location.Options{}), complete: make(chan time.Time, 1)}
	s.slots = newSlotPool(m.t, s.index, 2*m.nodes)
	if m.owned { // as many shards as package owner gives it
		s.scope = NewParts(MaxParts)
		rnd := rand.New(rand.NewPCG(uint64(len(m.readers)), 3)) // m.rnd is that of the traffic
		for shard := range MaxParts {
			if rnd.IntN(m.nodes) < 3 {
				s.scope.Add(shard)
			}
		}
	}
	s.left.Store(int64(m.nodes))
	for _, p := range m.publishers {
		f := NewFollower(s.index, s.slots, nil, nil)
		s.followers = append(s.followers, f)
		pipe := make(chan inFlight, 1)
		wait.Go(func() { // ends with ctx
			err := p.log.ServeParts(ctx, Position{}, nil, s.scope, p.snapshot, func(b *Batch) error { return s.send(ctx, p, b, pipe) })
			if !errors.Is(err, context.Canceled) {
				m.t.Errorf("node %d: Serve: %v", p.node, err)
			}
		})
		wait.Go(func() { // ends with ctx
			if err := s.receive(ctx, f, pipe); err != nil {
				m.t.Errorf("node %d: %v", p.node, err)
			}
		})
	}
	return s
}

// send passes a batch through both links.
func (s *simSubscriber) send(ctx context.Context, p *simPublisher, b *Batch, pipe chan<- inFlight) error {
	size := len(b.Records) + simOverhead
	out := p.out.pass(time.Now(), size)
	took := time.Duration(size * 8 / simBitsPerNano)
	at := s.in.pass(out.Add(simLatency-took), size)
	select {
	case pipe <- inFlight{b, at}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *simSubscriber) receive(ctx context.Context, f *Follower, pipe <-chan inFlight) error {
	for {
		select {
		case b := <-pipe:
			pause(ctx, time.Until(b.at))
			if err := f.Apply(b.Batch); err != nil {
				return err
			}
			s.bytes.Add(uint64(len(b.Records)))
			if b.End && s.left.Add(-1) == 0 {
				s.complete <- time.Now()
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// traffic makes random changes on all nodes for some time, or until ctx ends.
func (m *simulation) traffic(ctx context.Context, long time.Duration) {
	const step = time.Millisecond
	for begun := time.Now(); time.Since(begun) < long && ctx.Err() == nil; {
		for _, p := range m.publishers {
			if m.rnd.IntN(int(time.Second/step)) < simEventsPerSec {
				p.act()
			}
		}
		pause(ctx, step)
	}
}

// totals returns the sums over all logs.
func (m *simulation) totals() (sum LogStats) {
	for _, p := range m.publishers {
		s := p.log.Stats()
		sum.Bytes += s.Bytes
		sum.Batches += s.Batches
		sum.Records += s.Records
		sum.Appended += s.Appended
		sum.Overtaken += s.Overtaken
	}
	return sum
}

// cpuTime returns the CPU time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (m *simulation) run() simResult {
	r := simResult{simScale: m.simScale}
	ctx, cancel := context.WithCancel(m.t.Context())
	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel()
	for range m.subscribers - 1 {
		s := m.join(ctx, &wait)
		<-s.complete
		m.readers = append(m.readers, s)
	}
	last := m.measureJoin(ctx, &wait, &r)
	m.measureTraffic(ctx, &r)
	m.check()
	r.entries = last.index.Stats().Entries
	r.indexBytes = last.index.Stats().Bytes
	m.measureLoss(last, &r)
	return r
}

// measureJoin makes the last subscriber join while changes happen.
func (m *simulation) measureJoin(ctx context.Context, wait *sync.WaitGroup, r *simResult) *simSubscriber {
	busy, rest := context.WithCancel(ctx)
	defer rest()
	wait.Go(func() { m.traffic(busy, time.Hour) }) // ends with busy
	begun, cpu := time.Now(), cpuTime()
	s := m.join(ctx, wait)
	m.readers = append(m.readers, s)
	r.join = (<-s.complete).Sub(begun)
	r.joinCPU = cpuTime() - cpu
	r.joinBytes = s.bytes.Load()
	return s
}

// measureTraffic measures the cost of the feeds when all subscribers are there.
func (m *simulation) measureTraffic(ctx context.Context, r *simResult) {
	pause(ctx, time.Second) // until all batches under way have arrived
	before, cpu := m.totals(), cpuTime()
	m.traffic(ctx, simSteady)
	pause(ctx, time.Second)
	r.applyCPU = cpuTime() - cpu
	after := m.totals()
	each := uint64(m.subscribers) * uint64(simSteady/time.Second)
	r.feedBytes = (after.Bytes - before.Bytes) / each
	r.batches = (after.Batches - before.Batches) / each
	r.wire = r.feedBytes + r.batches*simOverhead
	if got, want := after.Records-before.Records, (after.Appended-before.Appended)*uint64(m.subscribers); got != want && !m.owned {
		m.t.Errorf("%d records were sent, not %d", got, want)
	}
	if after.Overtaken > 0 {
		m.t.Errorf("%d subscribers were overtaken", after.Overtaken)
	}
}

// check requires that each subscriber knows what each publisher holds.
func (m *simulation) check() {
	synctest.Wait()
	for n, s := range m.readers {
		for i, p := range m.publishers {
			slots := s.followers[i].Slots()
			if want := p.held(s.scope); len(slots) != 1 || s.index.Count(slots[0]) != want {
				m.t.Fatalf("subscriber %d: node %d: %d entries of %d", n, i, s.index.Count(slots[0]), want)
			}
			for _, j := range []uint64{p.mu.low, p.mu.low + uint64(m.rnd.IntN(int(p.held(nil)))), p.mu.high - 1} {
				if s.scope != nil && !s.scope.Holds(p.block(j).Hash) {
					continue
				}
				if want, got := p.block(j), s.index.Lookup(p.block(j).Hash, nil); len(got) != 1 || got[0].Seq != want.Seq {
					m.t.Fatalf("subscriber %d: node %d: block %d is found as %+v", n, i, j, got)
				}
			}
		}
	}
}

// measureLoss hides a node at once and forgets it after a minute.
func (m *simulation) measureLoss(s *simSubscriber, r *simResult) {
	lost, p := s.followers[0], m.publishers[0]
	cpu := cpuTime()
	lost.SetLive(false)
	r.hideCPU = cpuTime() - cpu
	if got := s.index.Lookup(p.block(p.mu.low).Hash, nil); len(got) != 0 {
		m.t.Errorf("a lost node is found: %+v", got)
	}
	pause(m.t.Context(), simForget)
	cpu = cpuTime()
	lost.Drop()
	r.dropCPU = cpuTime() - cpu
	if got, want := s.index.Stats().Entries, r.entries-p.held(s.scope); got != want {
		m.t.Errorf("%d entries after a loss, want %d", got, want)
	}
}
