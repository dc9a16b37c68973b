package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/kvfs/kvfs/cluster/breaker"
	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/gossip"
	"github.com/kvfs/kvfs/cluster/grave"
	"github.com/kvfs/kvfs/cluster/message"
	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
)

// Peer is another node that is live or was live lately. It stays the same object while the
// node goes away and comes back. Its methods may be called in parallel. They fail with
// rdma.ErrUnavailable while the node is away or the breaker that they need is open.
type Peer struct {
	n    *Node
	name string

	// One channel may work while another does not: each has its own addresses and perhaps its
	// own firewall.
	control *breaker.Breaker // of calls
	bulk    *breaker.Breaker // of fetches over the transport
	fabric  *breaker.Breaker // of the link: only its back-off; there is no link while it is open

	feed  *following
	links *links
	marks *grave.Marks

	wake    chan struct{} // has one element if target has changed
	session atomic.Pointer[session]
	zone    atomic.Pointer[string]

	inflight                 atomic.Int64 // blocks being fetched
	fetchedKeys, fetchedSize atomic.Uint64
	failures                 atomic.Uint64

	mu struct {
		sync.Mutex
		state, reason string
		since         time.Time
		gossipAddr    string
		meta          meta.Meta
		target        *target      // nil: this node must not talk to the peer
		warned        meta.Feature // features of which the log has been told
		warnedFor     string       // the version for which it was told
		lastError     string
	}
}

// The states of a member.
const (
	stateAlive   = "alive"
	stateLeft    = "left"
	stateFailed  = "failed"
	stateRefused = "refused"
)

// answered records that the peer has answered in this session.
func (s *session) answered() {
	if s.begin != nil {
		s.begin()
		s.begin = nil
	}
}

// target is one way to reach a peer. It is valid until gossip tells something else.
type target struct {
	meta   meta.Meta
	ctx    context.Context
	cancel context.CancelFunc
	ended  atomic.Bool // readers look at this rather than at ctx
}

func (t *target) end() {
	t.ended.Store(true)
	t.cancel()
}

// session is the connections to a live peer. Until the peer answers, only run knows the
// session.
type session struct {
	*target
	features meta.Feature // that both sides have
	conn     *grpc.ClientConn
	control  wire.ControlClient
	health   healthpb.HealthClient
	bulk     rdma.Peer
	getter   rdma.Getter // nil: lease and read
	begin    func()      // run when the peer has answered, then nil; only Peer.run uses it

	link atomic.Pointer[link] // nil: the fabric is not used now
	lost chan struct{}        // has one element after the link was lost

	missed chan struct{} // has one element if graves are to be exchanged again
}

// newPeer returns a peer of which nothing but the name is known.
func (n *Node) newPeer(name string) *Peer {
	t := &n.o.tuning
	p := &Peer{
		n: n, name: name, marks: grave.NewMarks(), wake: make(chan struct{}, 1),
		control: breaker.New(t.breakerMin, t.breakerMax), bulk: breaker.New(t.breakerMin, t.breakerMax),
		fabric: breaker.New(t.breakerMin, t.breakerMax),
	}
	p.feed, p.links = newFollowing(p), &links{p: p}
	return p
}

// live returns the session, or nil if the peer is not live.
func (p *Peer) live() *session {
	if s := p.session.Load(); s != nil && !s.ended.Load() {
		return s
	}
	return nil
}

// setTarget stores what gossip tells of the peer. m is nil if this node must not talk to it. A
// session that no longer fits ends at once. setTarget returns the missing features of which
// the log is to be told. n.mu is held.
func (p *Peer) setTarget(state, reason string, addr string, m *meta.Meta) (missing meta.Feature) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.state != state {
		p.mu.since = time.Now()
	}
	p.mu.state, p.mu.reason = state, reason
	if addr != "" {
		p.mu.gossipAddr = addr
	}
	old := p.mu.target
	if m != nil {
		p.mu.meta = *m
		p.zone.Store(&m.Zone)
		if p.mu.warnedFor != m.Version {
			p.mu.warned, p.mu.warnedFor = 0, m.Version
		}
		missing = p.n.wanted() &^ m.Features &^ p.mu.warned
		p.mu.warned |= missing
		if old != nil && old.meta.SameLink(m) {
			return missing
		}
		p.mu.target = &target{meta: *m}
		p.mu.target.ctx, p.mu.target.cancel = context.WithCancel(p.n.ctx)
	} else {
		p.mu.target = nil
	}
	if old != nil {
		old.end()
	}
	if old != nil || m != nil { // otherwise nothing changes for run
		notify(p.wake)
	}
	return missing
}

func (p *Peer) target() *target {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.target
}

// run talks to the peer while it is live. When the peer is away, run first hides and then
// deletes the peer's entries. It ends when the peer is forgotten or the node closes. It alone
// makes sessions and uses the follower. Gossip may report a name that no node has; between two
// tries such a name costs only this goroutine.
func (p *Peer) run() {
	backoff := p.n.o.tuning.retryMin
	for p.n.ctx.Err() == nil {
		t := p.target()
		if t == nil {
			if !p.idle() {
				return
			}
			continue
		}
		if t.ctx.Err() != nil {
			continue // there is a new target, or the node closes
		}
		s, err := p.open(t)
		if err != nil {
			// The address makes no sense, or the transport is closed.
			p.failed(p.control, err, p.control.Failed)
			p.n.log.Warn("peer cannot be talked to", zap.String("peer", p.name), zap.Error(err))
			<-t.ctx.Done() // gossip tells another address, or the node closes
			continue
		}
		if p.talk(s) {
			backoff = p.n.o.tuning.retryMin
			continue
		}
		timer := time.NewTimer(breaker.Jitter(backoff))
		select {
		case <-timer.C:
			backoff = min(2*backoff, p.n.o.tuning.retryMax)
		case <-t.ctx.Done():
		}
		timer.Stop()
	}
}

// talk runs one session from beginning to end. If the peer does not answer, the session ends
// soon. talk reports whether the peer answered.
func (p *Peer) talk(s *session) bool {
	p.links.forget()
	var wg sync.WaitGroup
	// These goroutines end with the session. talk waits for them below.
	s.begin = func() {
		p.control.Reset()
		p.bulk.Reset()
		p.session.Store(s)
		p.feed.follower.SetLive(true)
		wg.Go(func() { p.control.Run(s.ctx, func(ctx context.Context) error { return p.probe(ctx, s) }) })
		wg.Go(func() { p.bulk.Run(s.ctx, func(ctx context.Context) error { return p.probeBulk(ctx, s) }) })
		wg.Go(func() { p.exchangeFirst(s) })
		if p.n.fabric != nil {
			wg.Go(func() { p.links.watch(s) })
		}
	}
	p.feed.run(s)
	p.session.Store(nil)
	if p.n.ctx.Err() == nil { // otherwise the node is closing
		p.feed.follower.SetLive(false)
	}
	p.feed.set("")
	if err := errors.Join(s.conn.Close(), s.bulk.Close()); err != nil {
		p.n.log.Debug("closing a session", zap.String("peer", p.name), zap.Error(err))
	}
	wg.Wait()
	return s.begin == nil
}

// idle waits for a target. Meanwhile it deletes the entries of the peer. If the peer itself is
// forgotten in the end, idle returns false.
func (p *Peer) idle() bool {
	drop := time.NewTimer(p.n.o.tuning.drop)
	defer drop.Stop()
	forget := time.NewTimer(p.n.o.tuning.forget)
	defer forget.Stop()
	for {
		select {
		case <-p.wake:
			return true
		case <-drop.C:
			p.feed.drop()
		case <-forget.C:
			p.feed.drop()
			if p.n.forget(p) {
				return false
			}
			forget.Reset(p.n.o.tuning.forget) // refused, but still present
		case <-p.n.ctx.Done():
			return false
		}
	}
}

// open makes a session. It does not wait for the network.
func (p *Peer) open(t *target) (*session, error) {
	channel := p.n.channel()
	conn, err := control.Dial(p.name, t.meta.Control, &channel)
	if err != nil {
		return nil, fmt.Errorf("control address %s: %w", t.meta.Control, err)
	}
	bulk, err := p.n.o.Transport.Connect(t.meta.Bulk)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bulk address %s: %w", t.meta.Bulk, err), conn.Close())
	}
	s := &session{
		target: t, features: t.meta.Offered() & p.n.self.Features,
		conn: conn, control: wire.NewControlClient(conn), health: healthpb.NewHealthClient(conn), bulk: bulk,
		lost: make(chan struct{}, 1), missed: make(chan struct{}, 1),
	}
	if s.features&meta.FeatureGet != 0 {
		s.getter, _ = bulk.(rdma.Getter)
	}
	return s, nil
}

// probe tests whether the peer answers calls.
func (p *Peer) probe(ctx context.Context, s *session) error {
	ctx, cancel := context.WithTimeout(ctx, p.n.o.CallTimeout)
	defer cancel()
	s.conn.ResetConnectBackoff()
	_, err := s.health.Check(ctx, &healthpb.HealthCheckRequest{})
	return control.Error(ctx, err)
}

// probeRef names a block that does not exist. A peer that answers "gone" is alive.
var probeRef = BlockRef{Path: "kvfs-probe", Seq: 1}

// errProbe refuses the block if it exists after all.
var errProbe = errors.New("only a probe")

// probeBulk tests whether the peer answers fetches.
func (p *Peer) probeBulk(ctx context.Context, s *session) error {
	ctx, cancel := context.WithTimeout(ctx, p.n.o.CallTimeout)
	defer cancel()
	var err error
	if s.getter != nil {
		var name []byte
		if name, err = message.BlockName(&probeRef); err != nil {
			return err
		}
		err = s.getter.Get(ctx, []*rdma.Item{{
			Name:   name,
			Accept: func([]byte, int64) (rdma.Dest, error) { return rdma.Dest{}, errProbe },
			Done:   func(error) {}, // Get returns the peer's failure
		}})
	} else if err = p.probe(ctx, s); err == nil { // leases need it
		err = s.bulk.Read(ctx, rdma.RemoteRegion{Key: make([]byte, 16), Size: 1}, 0, 1, rdma.Dest{})
	}
	if errors.Is(err, rdma.ErrGone) {
		return nil
	}
	return err
}

// Test finds out whether the peer answers before ctx ends, because others do not. If it does not, this node asks it
// nothing until a probe succeeds.
func (p *Peer) Test(ctx context.Context) {
	s := p.live()
	if s == nil {
		return
	}
	came := p.fetchedKeys.Load()
	test := func(b *breaker.Breaker, probe func(context.Context, *session) error) {
		if !b.Closed() {
			return
		}
		switch err := probe(ctx, s); {
		case err == nil: // a probe is not a call of a reader: see package breaker
		case p.fetchedKeys.Load() != came: // it waited behind blocks
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			p.failed(b, err, b.Silent)
		default:
			p.outcome(b, err)
		}
	}
	var wg sync.WaitGroup
	if s.link.Load() != nil { // a link needs leases
		wg.Go(func() { test(p.control, p.probe) }) // waited for below
	}
	test(p.bulk, p.probeBulk)
	wg.Wait()
}

// outcome tells a breaker the result of a call to the peer.
func (p *Peer) outcome(b *breaker.Breaker, err error) {
	switch {
	case errors.Is(err, control.ErrEnded):
	case errors.Is(err, context.DeadlineExceeded) && b == p.bulk:
		p.failed(b, err, b.Silent)
	case errors.Is(err, rdma.ErrUnavailable), errors.Is(err, rdma.ErrProtocol), errors.Is(err, context.DeadlineExceeded):
		p.failed(b, err, b.Failed)
	case errors.Is(err, context.Canceled), errors.Is(err, rdma.ErrClosed):
		// The caller or this node gave up.
	default:
		b.OK()
	}
}

// plainError returns an error of a call as an operator reads it: the cause, without the layers of gRPC around it.
func plainError(err error) string {
	st, is := status.FromError(err)
	if !is {
		return err.Error()
	}
	text := st.Message()
	if i := strings.LastIndex(text, "desc = "); i >= 0 {
		text = strings.Trim(text[i+len("desc = "):], `"`)
	}
	return strings.TrimPrefix(strings.TrimPrefix(text, "transport: "), "Error while dialing: ")
}

// failed counts a failure of the peer. tell tells the breaker and reports whether that opened
// it.
func (p *Peer) failed(b *breaker.Breaker, err error, tell func() bool) {
	p.failures.Add(1)
	p.mu.Lock()
	p.mu.lastError = plainError(err)
	p.mu.Unlock()
	if tell() {
		what := "calls"
		if b == p.bulk {
			what = "fetches"
		}
		p.n.log.Warn("peer does not answer: this node asks it nothing until a probe succeeds",
			zap.String("peer", p.name), zap.String("what", what), zap.String("error", plainError(err)))
	}
}

// Name returns the name of the peer.
func (p *Peer) Name() string { return p.name }

// Can reports whether the peer is live and both nodes have the feature f.
func (p *Peer) Can(f meta.Feature) bool {
	s := p.live()
	return s != nil && s.features&f == f
}

// Callable reports whether the peer is live and the breaker lets calls through now. It says
// nothing about fetches.
func (p *Peer) Callable() bool { return p.live() != nil && p.control.Closed() }

// usable returns the session if the peer is live and b lets calls through.
func (p *Peer) usable(b *breaker.Breaker) (*session, error) {
	s := p.live()
	switch {
	case s == nil:
		return nil, fmt.Errorf("%w: %s is not live", rdma.ErrUnavailable, p.name)
	case !b.Closed():
		return nil, p.tooOften()
	}
	return s, nil
}

// tooOften returns the error of a call that a breaker refuses.
func (p *Peer) tooOften() error {
	return fmt.Errorf("%w: %s failed too often, breaker open", rdma.ErrUnavailable, p.name)
}

// notify puts an element into a channel of capacity one, unless the channel is full.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

var _ gossip.Events = events{}
