package gossip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
)

// MaxMeta is the largest meta of a node, in bytes.
const MaxMeta = 512

const (
	// maxName keeps an announcement, name and meta included, within one packet.
	maxName = 128

	// maxNodes bounds the memory for names. Holders of a key, or any machine if there are no
	// keys, could otherwise fill it.
	maxNodes = 16384

	// packetBytes is how much memberlist puts into one packet, so that it fits an Ethernet
	// frame with all headers, including ours.
	packetBytes = 1400

	// defaultRejoin is the time between two tries to bring lost members back. A try costs one
	// connection.
	defaultRejoin = 10 * time.Second

	// leaveLimit bounds the time of a leave when no node answers.
	leaveLimit = 10 * time.Second
)

// ErrClosed is the error of a call after Close or, for SetMeta, after Leave.
var ErrClosed = errors.New("gossip: closed")

// Options configures a Gossip.
type Options struct {
	Name      string   // required, unique in the cluster; up to 128 bytes
	Bind      string   // required: host:port, or host for port 7946; port 0 takes a free one
	Advertise string   // host:port or host that other nodes should use. Empty: see Open.
	Join      []string // host:port or host; a name stands for all of its addresses
	Keyring   *Keyring // nil: not encrypted

	// Profile sets the timeouts of memberlist: "lan" (default), "wan" or "local".
	Profile string
	// Rejoin is the time between two tries of lost members and of the names in Join. Zero
	// means 10 s.
	Rejoin time.Duration

	// Transport takes the place of sockets on Bind, for simulations. Nil: sockets.
	Transport memberlist.NodeAwareTransport

	Meta   []byte // see SetMeta
	Events Events // nil: none
	Logger *zap.Logger
}

// Events reports other nodes. Calls come one at a time and must not block for long. They
// report states, not every step: a change that is undone during a call is not reported. After
// a Left of a name only a Joined can follow. A call must not call Close.
type Events interface {
	Joined(n Node)
	Updated(n Node)           // its meta or address changed
	Left(n Node, failed bool) // failed: it sent no goodbye
}

// Node is one node of the cluster.
type Node struct {
	Name string
	Addr string // host:port of its gossip
	Meta []byte // must not be changed
}

// Stats are totals.
type Stats struct {
	Nodes     int    `json:"nodes" help:"nodes alive, this one included"`
	Rejected  uint64 `json:"rejected" help:"packets and streams refused: no or wrong key, malformed, replayed"`
	Conflicts uint64 `json:"conflicts" help:"other nodes that used a taken name"`
	Health    int    `json:"health" help:"score of the gossip of itself; 0 is best"`
	Joined    bool   `json:"joined" help:"an address of 'join' has been a member or this node, or there is none"`
}

// Gossip is one node's part in the gossip. Its methods may be called in parallel.
type Gossip struct {
	// dependencies
	log       *zap.Logger
	deps      deps
	list      *memberlist.Memberlist
	transport memberlist.NodeAwareTransport
	members   *members
	rejects   *rejects

	// constant after Open
	name      string
	addr      netip.AddrPort // that other nodes use
	local     netip.AddrPort // that it listens on
	seeds     []string
	rejoin    time.Duration
	ambiguous string
	// how often memberlist sends each news, and the time between two sends
	retransmit int
	interval   time.Duration

	// own goroutines: Close ends them by quit and waits for them; Leave ends joining
	quit     context.Context
	stop     context.CancelFunc
	joinStop context.CancelFunc
	joinQuit context.Context
	joined   atomic.Bool // for Stats
	wg       sync.WaitGroup

	// metaMu makes changes of the meta reach memberlist in order. It is taken before all other
	// locks.
	metaMu sync.Mutex

	// mu guards the fields below. No call is made with it held.
	mu      sync.Mutex
	joining bool
	leaving chan struct{} // nil before Leave; closed when memberlist has finished it
	closed  bool
}

// deps are the parts that tests replace. The zero value means the real ones.
type deps struct {
	lookup     lookup
	interfaces func() ([]ifaceAddr, error)
	tune       func(c *memberlist.Config) // nil: as the profile says
}

// Open listens, without joining. It fails at once if the address is not available or cannot be
// advertised.
//
// If Bind is a wildcard and Advertise is empty, Open chooses the machine's private address, or
// else its global address, IPv4 first. Of several candidates it takes that of the lowest
// interface; Ambiguous then returns a warning that names them all.
func Open(o Options) (*Gossip, error) { return open(o, deps{}) }

func open(o Options, d deps) (*Gossip, error) {
	d = d.withDefaults()
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Rejoin == 0 {
		o.Rejoin = defaultRejoin
	}
	conf, err := o.config()
	if err != nil {
		return nil, err
	}
	g := &Gossip{
		log: o.Logger.Named("gossip"), deps: d,
		name: o.Name, seeds: append([]string(nil), o.Join...), rejoin: o.Rejoin,
	}
	g.quit, g.stop = context.WithCancel(context.Background())
	g.joinQuit, g.joinStop = context.WithCancel(g.quit)
	g.rejects = &rejects{log: g.log}
	if o.Keyring != nil {
		o.Keyring.log.CompareAndSwap(nil, g.log)
		conf.Keyring = o.Keyring.ring
		conf.GossipVerifyIncoming, conf.GossipVerifyOutgoing = true, true
		conf.UDPBufferSize = packetBytes - sealOverhead
	}
	if err := g.listen(o); err != nil {
		g.stop()
		return nil, err
	}
	g.members = newMembers(o.Name, o.Meta, o.Events, g.log)
	conf.BindPort = int(g.local.Port())
	conf.Transport = g.transport
	conf.Logger = log.New(&logWriter{log: g.log, rejects: g.rejects}, "", 0)
	conf.Delegate, conf.Events, conf.Conflict, conf.Alive = g.members, g.members, g.members, g.members
	if d.tune != nil {
		d.tune(conf)
	}
	g.retransmit, g.interval = conf.RetransmitMult, conf.GossipInterval
	if g.list, err = memberlist.Create(conf); err != nil {
		g.stop()
		return nil, errors.Join(fmt.Errorf("gossip: %w", err), g.transport.Shutdown())
	}
	if o.Events != nil {
		// Reports events until Close, which waits for it.
		g.wg.Go(func() { g.members.tell(g.quit) })
	}
	return g, nil
}

// listen opens the transport and finds the address that other nodes use.
func (g *Gossip) listen(o Options) error {
	if o.Transport != nil {
		g.transport = o.Transport
		ip, port, err := g.transport.FinalAdvertiseAddr("", 0)
		if err != nil {
			return fmt.Errorf("gossip: %w", err)
		}
		a, _ := netip.AddrFromSlice(ip)
		g.addr = netip.AddrPortFrom(a.Unmap(), uint16(port))
		g.local = g.addr
		return nil
	}
	ctx, cancel := context.WithTimeout(g.quit, lookupLimit)
	defer cancel()
	bind, err := bindAddr(ctx, g.deps.lookup, o.Bind)
	if err != nil {
		return err
	}
	adv, err := g.deps.advertise(ctx, o.Advertise, bind)
	if err != nil {
		return err
	}
	t, err := listen(bind, o.Keyring, g.rejects)
	if err != nil {
		return err
	}
	g.local = t.local()
	if adv.addr.Port() == 0 {
		adv.addr = netip.AddrPortFrom(adv.addr.Addr(), g.local.Port())
	}
	t.start(adv.addr)
	g.transport, g.addr, g.ambiguous = t, adv.addr, adv.warning
	if g.ambiguous != "" {
		g.log.Warn(g.ambiguous)
	}
	return nil
}

// config checks the options and returns the configuration of memberlist.
func (o *Options) config() (*memberlist.Config, error) {
	var errs []error
	if err := checkName(o.Name); err != nil {
		errs = append(errs, fmt.Errorf("gossip: name %q: %w", o.Name, err))
	}
	if len(o.Meta) > MaxMeta {
		errs = append(errs, fmt.Errorf("gossip: meta of %d bytes, %d is the limit", len(o.Meta), MaxMeta))
	}
	if o.Keyring != nil && o.Keyring.set.Load() == nil {
		errs = append(errs, errors.New("gossip: keyring: was not loaded"))
	}
	if o.Rejoin < 0 {
		errs = append(errs, fmt.Errorf("gossip: rejoin of %v: must not be negative", o.Rejoin))
	}
	var conf *memberlist.Config
	switch o.Profile {
	case "", "lan":
		conf = memberlist.DefaultLANConfig()
	case "wan":
		conf = memberlist.DefaultWANConfig()
	case "local":
		conf = memberlist.DefaultLocalConfig()
	default:
		errs = append(errs, fmt.Errorf("gossip: profile %q: must be lan, wan or local", o.Profile))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	conf.Name = o.Name
	conf.UDPBufferSize = packetBytes
	// A dead node may come back with another address at once. Zero would mean never.
	conf.DeadNodeReclaimTime = time.Nanosecond
	return conf, nil
}

// checkName fails if a name does not suit messages and logs.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("must not be empty")
	case len(name) > maxName:
		return fmt.Errorf("of %d bytes, %d is the limit", len(name), maxName)
	case !utf8.ValidString(name):
		return errors.New("must be UTF-8")
	}
	for _, r := range name {
		if !unicode.IsPrint(r) || r == '/' || r == ' ' {
			return fmt.Errorf("must not have %q in it", r)
		}
	}
	return nil
}

// Join begins to join and goes on in the background until Leave or Close. It fails only if all
// of Join is malformed, or if ctx has ended. It also tries members that were lost to a
// partition. A second call does nothing.
func (g *Gossip) Join(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	seeds, errs := parseSeeds(g.seeds)
	if len(seeds) == 0 && len(errs) > 0 {
		return errors.Join(errs...)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return ErrClosed
	}
	if g.joining || g.leaving != nil {
		return nil
	}
	g.joining = true
	j := newJoiner(g, seeds)
	// Ends at Leave or Close. Close waits for it.
	g.wg.Go(func() {
		for _, err := range errs {
			g.log.Warn("address to join is ignored: correct it", zap.Error(err))
		}
		j.run(g.joinQuit)
	})
	return nil
}

// Self returns this node with the address that other nodes use.
func (g *Gossip) Self() Node {
	return Node{Name: g.name, Addr: g.addr.String(), Meta: g.members.NodeMeta(MaxMeta)}
}

// SetMeta changes this node's meta and spreads it. It does not wait until other nodes have it.
// It fails if meta is longer than MaxMeta, and with ErrClosed after Leave and Close.
func (g *Gossip) SetMeta(meta []byte) error {
	if len(meta) > MaxMeta {
		return fmt.Errorf("gossip: meta of %d bytes, %d is the limit", len(meta), MaxMeta)
	}
	g.metaMu.Lock()
	defer g.metaMu.Unlock()
	g.mu.Lock()
	gone := g.leaving != nil || g.closed
	g.mu.Unlock()
	if gone {
		return ErrClosed
	}
	g.members.setMeta(bytes.Clone(meta))
	// The only possible error is a timeout. The meta is on its way then, which is enough.
	_ = g.list.UpdateNode(time.Nanosecond)
	return nil
}

// Ambiguous returns the warning about the choice of the address, or "".
func (g *Gossip) Ambiguous() string { return g.ambiguous }

// Contested returns a warning if another node has, or lately had, this node's name. Otherwise
// it returns "".
func (g *Gossip) Contested() string { return g.members.contestWarning() }

// Stats returns the totals since Open.
func (g *Gossip) Stats() Stats {
	return Stats{
		Nodes:     g.members.count() + 1,
		Rejected:  g.rejects.total.Load(),
		Conflicts: g.members.conflictCount(),
		Health:    g.list.GetHealthScore(),
		Joined:    len(g.seeds) == 0 || g.joined.Load(),
	}
}

// Leave tells the other nodes that this node leaves. It waits until that is on its way, at
// most until ctx ends. A second call does nothing. It fails with ErrClosed after Close.
func (g *Gossip) Leave(ctx context.Context) error {
	limit := leaveLimit
	if t, ok := ctx.Deadline(); ok {
		limit = max(min(limit, time.Until(t)), time.Millisecond)
	}
	g.mu.Lock()
	if g.closed || g.leaving != nil {
		defer g.mu.Unlock()
		if g.closed {
			return ErrClosed
		}
		return nil
	}
	leaving, done := make(chan struct{}), make(chan error, 1)
	g.leaving = leaving
	g.mu.Unlock()
	// Ends within leaveLimit. Close waits for it.
	go func() {
		defer close(leaving)
		g.joinStop()
		g.sayGoodbye()
		done <- g.spread(limit)
	}()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("gossip: leave: %w", err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("gossip: leave: %w", ctx.Err())
	}
}

// spread has memberlist spread the leave until it has sent it as often as any other news, or
// until no other node is left. Memberlist itself does not notice that the last node has gone:
// two nodes that leave together would wait for each other.
func (g *Gossip) spread(limit time.Duration) error {
	often := g.retransmit * int(math.Ceil(math.Log10(float64(len(g.members.nodes())+2)))) // the formula of memberlist
	enough := time.Duration(often+1) * g.interval
	if g.list.Leave(time.Millisecond) == nil {
		return nil
	}
	until := time.Now().Add(min(limit, enough))
	tick := time.NewTicker(min(g.interval, 10*time.Millisecond))
	defer tick.Stop()
	for len(g.members.nodes()) > 0 {
		if <-tick.C; time.Now().After(until) {
			break
		}
	}
	if limit < enough && len(g.members.nodes()) > 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// sayGoodbye tells every member that this node leaves on purpose. Memberlist spreads that the
// node is gone, but does not tell its users why.
func (g *Gossip) sayGoodbye() {
	for _, n := range g.members.nodes() {
		ap, err := netip.ParseAddrPort(n.Addr)
		if err != nil {
			continue
		}
		to := &memberlist.Node{Name: n.Name, Addr: ap.Addr().AsSlice(), Port: ap.Port()}
		if err := g.list.SendBestEffort(to, goodbye(g.name)); err != nil {
			g.log.Debug("goodbye was not sent", zap.String("node", n.Name), zap.Error(err))
		}
	}
}

// Close stops at once; it announces nothing unless Leave was called before. It waits for all
// goroutines and running events. A second call does nothing.
func (g *Gossip) Close() error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil
	}
	g.closed = true
	leaving := g.leaving
	g.mu.Unlock()
	if leaving != nil {
		<-leaving // memberlist panics when it is told to leave after its end
	}
	g.stop()
	err := g.list.Shutdown()
	g.wg.Wait()
	return err
}
