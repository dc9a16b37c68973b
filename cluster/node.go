package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/feed"
	"github.com/kvfs/kvfs/cluster/gossip"
	"github.com/kvfs/kvfs/cluster/grave"
	"github.com/kvfs/kvfs/cluster/lease"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/cluster/owner"
	"github.com/kvfs/kvfs/cluster/remote"
	"github.com/kvfs/kvfs/rdma"
)

// Node is this node's part in the cluster. Its methods may be called in parallel.
type Node struct {
	// Constant after Open.
	o       Options
	log     *zap.Logger
	require meta.Feature
	epoch   uint64
	index   *location.Index
	scopes  *owner.Scopes
	feed    *feed.Log
	gossip  *gossip.Gossip
	server  *control.Server
	self    meta.Meta // except total and free, which belong to the goroutine of the capacity after Start
	opened  time.Time
	told    meta.Feature   // self.features as other nodes are told
	fabric  *remote.Fabric // nil: not used

	fabricErr error // why there is no fabric although there should be one

	ready  chan struct{}   // closed when listen has set all of the above: gossip reports nodes before that
	ctx    context.Context // ends when the node closes
	cancel context.CancelFunc
	wg     sync.WaitGroup // all goroutines

	slots     slotTable
	leases    lease.Table
	followers control.Followers
	graveFile *grave.File
	graves    grave.Exchange
	storing   chan struct{} // has one element for each Store that is being served
	counters  counters
	backend   atomic.Pointer[Backend] // nil before Start
	fatal     chan error              // capacity 1
	initial   atomic.Int64            // until this time, in ns since the epoch, a peer that lacks a required feature is fatal

	total, free atomic.Int64 // as announced by gossip

	mu struct {
		sync.Mutex
		peers   map[string]*Peer // all nodes seen lately, live or not
		started bool
		closed  bool
		left    bool
	}
}

// Open listens on the control address and the gossip address. It does not serve or join yet.
// It fails with everything that is wrong with the options, or if an address is taken. After an
// error the transports still belong to the caller.
func Open(ctx context.Context, o Options) (*Node, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	n := &Node{
		o: o, log: o.Logger, epoch: rand.Uint64() | 1, opened: time.Now(),
		fatal: make(chan error, 1), storing: make(chan struct{}, maxStoring),
		ready: make(chan struct{}),
	}
	n.openIndex()
	n.openScopes()
	n.require, _ = meta.ParseFeatures(o.Require) // withDefaults has checked it
	n.feed = feed.NewLog(feed.LogOptions{Epoch: n.epoch})
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.mu.peers = map[string]*Peer{}
	if err := n.listen(ctx); err != nil {
		n.cancel()
		n.feed.Close()
		return nil, fmt.Errorf("cluster: %w", err)
	}
	n.dropFabric()
	n.openGraves()
	return n, nil
}

// openIndex makes the index, and what brings its graves to others and to the next process.
func (n *Node) openIndex() {
	n.graveFile = grave.NewFile(n.o.GraveFile)
	n.o.Location.Buried = n.graveFile.Told
	n.index = location.New(n.o.Location)
	now := n.o.Location.Now
	if now == nil {
		now = time.Now
	}
	n.graves = grave.Exchange{
		Index: n.index, Epoch: n.epoch, Now: now,
		Sent:  func(count int) { n.counters.gravesSent.Add(uint64(count)) },
		Taken: func(path string, dir bool, seq uint64) { n.taken(path, dir, seq, "") },
		Bad: func(far bool) {
			if far {
				n.counters.farVersion.Add(1)
			} else {
				n.counters.Malformed.Add(1)
			}
		},
	}
}

// listen opens the control address and gossip, and sets the addresses that peers are told.
func (n *Node) listen(ctx context.Context) (err error) {
	l, err := n.o.tuning.network.Listen(ctx, n.o.ControlBind)
	if err != nil {
		return fmt.Errorf("control address: %w", err)
	}
	channel := n.channel()
	channel.Closed, channel.Counters = func(c *control.Conn) { n.leases.Abandon(c) }, &n.counters.Counters
	n.server = control.NewServer(l, &service{n: n}, channel)
	defer func() {
		if err == nil {
			return
		}
		err = errors.Join(err, n.server.Close(), n.fabric.Close())
		n.cancel() // gossip waits for an event handler, which waits for this context
		if n.gossip != nil {
			err = errors.Join(err, n.gossip.Close())
		}
	}()
	g := n.o.Gossip
	g.Events, g.Logger = events{n}, n.log
	if n.gossip, err = gossip.Open(g); err != nil {
		return err
	}
	at := n.gossip.Self().Addr
	control, bulk := l.Addr().String(), n.o.Transport.Addr()
	if err := n.o.checkExposure(at, control, bulk); err != nil {
		return err
	}
	if err := n.openFabric(); err != nil {
		return err
	}
	t := &n.o.tuning
	caps := n.o.Transport.Caps()
	features := meta.Feature(meta.AllFeatures)
	if !caps.Get {
		features &^= meta.FeatureGet
	}
	if n.fabric == nil {
		features &^= meta.FeatureRDMA
	}
	features &^= t.mask
	n.told = features
	if n.o.NoCopies {
		n.told |= meta.NoCopies
	}
	n.self = meta.Meta{
		Protocol: t.protocol, MinProtocol: t.minProtocol, Features: features,
		Control: gossip.AddrFor(control, g.Bind, at), Bulk: gossip.AddrFor(bulk, g.Bind, at), BulkProto: caps.Proto,
		Zone: n.o.Zone, Version: strings.ToValidUTF8(n.o.Version[:min(len(n.o.Version), meta.MaxText)], ""), Settings: n.o.Settings,
	}
	if err := n.announce(n.o.Capacity()); err != nil {
		return err
	}
	close(n.ready)
	return nil
}

// channel returns the options of the control channel.
func (n *Node) channel() control.Options {
	return control.Options{
		Name: n.o.Gossip.Name, TLS: n.o.TLS, CallTimeout: n.o.CallTimeout, Stranger: n.o.tuning.stranger, Refusal: n.refusal,
		Network: n.o.tuning.network, MaxConns: n.o.MaxConns,
	}
}

// announce tells the capacity by gossip.
func (n *Node) announce(total, free int64) error {
	m := n.self
	m.Features = n.told
	m.Total = max(total, 0)
	m.Free = min(max(free, 0), m.Total)
	b, err := m.Encode()
	if err != nil {
		return err
	}
	if err := n.gossip.SetMeta(b); err != nil {
		return err
	}
	n.total.Store(m.Total)
	n.free.Store(m.Free)
	return nil
}

// Start serves b to peers, joins the cluster, and follows the feeds of all peers. It does not
// block; Fatal reports later findings. After an error the caller must close the node.
func (n *Node) Start(b Backend) error {
	n.mu.Lock()
	if n.mu.closed || n.mu.started {
		n.mu.Unlock()
		return fmt.Errorf("cluster: start: %w", rdma.ErrClosed)
	}
	n.mu.started = true
	n.backend.Store(&b)
	n.buryAgain()
	n.initial.Store(time.Now().Add(n.o.tuning.initial).UnixNano())
	for _, p := range n.mu.peers {
		n.wg.Go(p.run) // ends when the node closes or the peer is forgotten
	}
	n.wg.Go(n.serve)         // ends when Close stops the server
	n.wg.Go(n.watchCapacity) // these end with n.ctx
	n.wg.Go(func() { n.scopes.Run(n.ctx) })
	n.wg.Go(n.exchangeGraves)
	n.wg.Go(n.keepGraves)
	n.wg.Go(n.expireLeases)
	n.mu.Unlock()
	if err := n.gossip.Join(n.ctx); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	return nil
}

// Fatal reports why the process should end: in its first seconds the node met a peer without a
// feature that Options.Require names. The channel gets at most one element and is never
// closed.
func (n *Node) Fatal() <-chan error { return n.fatal }

// serve serves the control channel.
func (n *Node) serve() {
	if err := n.server.Serve(); err != nil {
		n.log.Error("control channel ended", zap.Error(err))
	}
}

// watchCapacity announces the capacity again when it has changed by more than 2 % of the
// total. It also gives back the memory of lost peers.
func (n *Node) watchCapacity() {
	tick := time.NewTicker(n.o.tuning.capacity)
	defer tick.Stop()
	for {
		total, free := n.o.Capacity()
		old := n.total.Load()
		if step := old / 50; absDiff(total, old) > step || absDiff(free, n.free.Load()) > step {
			if err := n.announce(total, free); err != nil {
				n.log.Warn("capacity cannot be announced: peers know the old one", zap.Error(err))
			}
		}
		n.index.GiveBack()
		select {
		case <-tick.C:
		case <-n.ctx.Done():
			return
		}
	}
}

func absDiff(a, b int64) int64 { return max(a-b, b-a) }

// Append adds records to the feed of this node. It enters graves in this node's index, too.
func (n *Node) Append(records ...feed.Record) {
	for i := range records {
		r := &records[i]
		if r.Op == feed.Bury {
			n.index.Bury(r.Hash, r.Seq, dirMode(r.Mode), r.Path, r.Time)
		}
		if n.self.Features&meta.FeatureMemory == 0 {
			r.Memory = false
		}
	}
	n.feed.Append(records...)
}

// Resync makes every peer take a new snapshot of what this node holds.
func (n *Node) Resync() { n.feed.Resync() }

// dirMode reports whether mode is that of a directory.
func dirMode(mode uint32) bool { return mode&0o170000 == 0o040000 }

// Warning returns what is doubtful about the name of this node or its announced address, or ""
// if nothing is.
func (n *Node) Warning() string {
	if w := n.gossip.Contested(); w != "" {
		return w
	}
	return n.gossip.Ambiguous()
}

// Index returns the location index.
func (n *Node) Index() *location.Index { return n.index }

// Leave tells the other nodes that this node leaves, so that they need not find out.
func (n *Node) Leave(ctx context.Context) error {
	n.mu.Lock()
	done := n.mu.left || n.mu.closed
	n.mu.left = true
	n.mu.Unlock()
	if done {
		return nil
	}
	return n.gossip.Leave(ctx)
}

// Close stops serving, ends all calls, and closes the transports. It waits until nothing uses
// the backend any more. A second call does nothing.
func (n *Node) Close() error {
	n.mu.Lock()
	if n.mu.closed {
		n.mu.Unlock()
		return nil
	}
	n.mu.closed = true
	n.mu.Unlock()
	n.cancel()
	n.feed.Close()
	// The server waits for its handlers. Their contexts end with it. A backend that fetches
	// for a handler ends with the sessions.
	err := n.gossip.Close()
	err = errors.Join(err, n.server.Close())
	n.wg.Wait()
	n.leases.Close()
	err = errors.Join(err, n.graveFile.Close(), n.fabric.Close())
	if n.o.Fabric != nil {
		err = errors.Join(err, n.o.Fabric.Close())
	}
	return errors.Join(err, n.o.Transport.Close())
}
