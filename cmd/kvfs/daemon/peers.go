package daemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cluster/gossip"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/pki"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/cmd/kvfs/rails"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/tcp"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/peer"
	"github.com/kvfs/kvfs/tiers/state"
)

type peers struct {
	node      *cluster.Node
	tier      *peer.Tier // closes node
	transport *tcp.Transport
	memory    *rails.Remote                // RDMA; node closes its transport
	engine    atomic.Pointer[tiers.Engine] // set by start
	stop      context.CancelFunc           // ends the watching of files
	required  []string                     // features of every peer
	held      heldCount
}

// openPeers listens for peers and returns the tier of their blocks, or nil without bind. It
// keeps the removals that it knows of in the file graves.
func openPeers(ctx context.Context, program Program, cfg *config.Config, graves string, log *zap.Logger) (p *peers, err error) {
	if cfg.Bind == "" {
		return nil, nil
	}
	p = &peers{required: cfg.Peer.Require}
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	p.stop = stop
	defer func() {
		if err != nil {
			stop()
		}
	}()
	certificates, err := loadCertificates(watching, cfg, log)
	if err != nil {
		return nil, err
	}
	keys, err := loadKeys(watching, cfg)
	if err != nil {
		return nil, err
	}
	names := func(addr string) []string { return p.node.BulkNames(addr) } // only the node connects
	if p.transport, err = openTransport(cfg, certificates, names, log); err != nil {
		return nil, err
	}
	if p.memory, err = rails.ThisMachine().OpenFabric(cfg, log.Named("rdma")); err != nil {
		return nil, errors.Join(err, p.transport.Close())
	}
	lost := peer.NewLost()
	o := cluster.Options{
		Gossip: gossip.Options{
			Name: cfg.NodeName, Bind: cfg.Bind, Advertise: cfg.Advertise, Join: cfg.Join, Keyring: keys,
			Profile: cfg.Peer.GossipProfile, Logger: log.Named("gossip"),
		},
		ControlBind: cfg.Peer.Control, TLS: certificates, Insecure: cfg.Insecure, Transport: p.transport,
		Fabric: p.memory.Fabric(), FabricLocal: p.memory.Local, FabricBytes: p.memory.Bytes, Path: paths[cfg.Peer.Transport],
		Zone: cfg.Zone, Capacity: p.capacity, Version: program.Version, Settings: sharedSettings(cfg), Require: cfg.Peer.Require,
		NoCopies:    cfg.Peer.Accept != config.On,
		Location:    location.Options{Lost: lost.Tell, MaxBytes: int64(cfg.Peer.LocationMemory)},
		Locations:   locations[cfg.Peer.Locations],
		GraveFile:   graves,
		CallTimeout: time.Duration(cfg.Peer.Timeout), MaxConns: channelConns(), Logger: log.Named("cluster"),
	}
	if p.node, err = cluster.Open(ctx, o); err != nil {
		return nil, errors.Join(err, p.transport.Close(), p.memory.Close())
	}
	p.memory.Refuse(p.node.FabricErr())
	p.transport.SetSource(p.node)
	p.tier, err = peer.Open(peer.Options{
		Node: p.node, Lost: lost, Replicas: cfg.Replicas, PreferredSegment: preferredSegment(cfg, log), Zone: cfg.Zone,
		WorldReadable: !cfg.TLS.On() && !cfg.Insecure,
		Accept:        cfg.Peer.Accept == config.On, Timeout: time.Duration(cfg.Peer.Timeout),
		HedgeQuantile: hedgeQuantile, Silence: time.Duration(cfg.Peer.Silence), Logger: log.Named("peer"),
	})
	if err != nil {
		return nil, errors.Join(err, p.node.Close())
	}
	return p, nil
}

// sharedSettings is a sum of the settings that all nodes of a cluster should share: with other ones a block that one node
// takes is refused, evicted or not found by another.
func sharedSettings(cfg *config.Config) uint32 {
	text, err := json.Marshal([]any{cfg.Groups, cfg.Specs, cfg.Mount.TempPatterns, cfg.Mount.PlainPatterns, cfg.Replicas})
	if err != nil {
		panic(err) // all of it is plain data
	}
	return crc32.ChecksumIEEE(text)
}

// gravePath returns the file of removals. It lies beside the blocks that would come back without it.
func gravePath(cfg *config.Config, memory string) (string, error) {
	if len(cfg.Disk.Dirs) == 0 {
		return memory + ".graves", nil
	}
	dir, err := filepath.Abs(cfg.Disk.Dirs[0].Path)
	return filepath.Join(dir, "kvfs-graves"), err
}

// locations are the values of peer.locations.
var locations = map[string]cluster.Locations{
	config.Auto: cluster.LocationsAuto, config.LocationsAll: cluster.LocationsAll, config.LocationsOwned: cluster.LocationsOwned,
}

// paths are the values of peer.transport.
var paths = map[string]cluster.Path{
	config.Auto: cluster.PathAuto, config.TransportTCP: cluster.PathTCP, config.TransportRDMA: cluster.PathRDMA,
}

// freed returns the function that the engine calls when the file of a block goes, or nil if no one needs the call.
func (p *peers) freed() func(dev, ino uint64) {
	if p == nil {
		return nil
	}
	return p.memory.Freed()
}

// loadCertificates reads the certificates and follows their changes. It returns nil without any.
func loadCertificates(ctx context.Context, cfg *config.Config, log *zap.Logger) (*pki.Loader, error) {
	if !cfg.TLS.On() {
		return nil, nil
	}
	l, err := pki.Load(pki.Files{CA: cfg.TLS.CA, Cert: cfg.TLS.Cert, Key: cfg.TLS.Key}, log.Named("tls"))
	if err != nil {
		return nil, err
	}
	if err := l.CheckName(cfg.NodeName); err != nil {
		return nil, err
	}
	go l.Watch(ctx) // ends with ctx
	return l, nil
}

// loadKeys reads the keys of the gossip and follows their changes. It returns nil without any.
func loadKeys(ctx context.Context, cfg *config.Config) (*gossip.Keyring, error) {
	if cfg.Peer.GossipKeys == "" {
		return nil, nil
	}
	k, err := gossip.LoadKeyring(cfg.Peer.GossipKeys)
	if err != nil {
		return nil, err
	}
	go k.Watch(ctx) // ends with ctx
	return k, nil
}

// hedgeQuantile is a quantile of recent fetch times. A fetch that takes longer also asks a second holder.
const hedgeQuantile = 0.95

// openTransport listens for peers that fetch blocks. names returns the nodes with an address.
func openTransport(cfg *config.Config, certificates *pki.Loader, names func(addr string) []string, log *zap.Logger) (*tcp.Transport, error) {
	host, _, err := scalar.HostPort(cfg.Bind)
	if err != nil {
		return nil, err
	}
	o := tcp.Options{
		Bind: net.JoinHostPort(host, "0"), Congestion: cfg.Peer.Congestion, Rate: int64(cfg.Peer.SendRate),
		StallTimeout: time.Duration(cfg.Peer.Timeout), MaxConns: min(channelConns(), maxBulk), Logger: log.Named("bulk"),
	}
	if cfg.Peer.Bulk != "" {
		o.Bind = cfg.Peer.Bulk
	}
	if certificates != nil {
		o.ServerTLS = checked(certificates.Server(), anyNode)
		o.ClientTLS = func(addr string) *tls.Config {
			return checked(certificates.ClientAny(), oneOf(addr, names(addr)))
		}
	}
	return tcp.Open(o)
}

// checked adds a check of the other side's certificate to conf.
func checked(conf *tls.Config, check func(*x509.Certificate) error) *tls.Config {
	before := conf.VerifyConnection
	conf.VerifyConnection = func(s tls.ConnectionState) error {
		if err := before(s); err != nil {
			return err
		}
		return check(s.PeerCertificates[0])
	}
	return conf
}

// anyNode fails unless c is the certificate of a node: the CA may have issued others.
func anyNode(c *x509.Certificate) error {
	if !slices.ContainsFunc(c.DNSNames, func(name string) bool { return strings.HasSuffix(name, pki.DNSName("")) }) {
		return fmt.Errorf("the certificate of %s is not that of a node", c.Subject)
	}
	return nil
}

// oneOf returns a check that fails unless the certificate is of one of the nodes that announce addr.
func oneOf(addr string, nodes []string) func(*x509.Certificate) error {
	return func(c *x509.Certificate) error {
		for _, node := range nodes {
			if c.VerifyHostname(pki.DNSName(node)) == nil {
				return nil
			}
		}
		return fmt.Errorf("the certificate of %s at %s is not that of node %v", c.Subject, addr, nodes)
	}
}

var _ rdma.Source = (*cluster.Node)(nil)

// preferredSegment returns the setting if it is valid. An invalid one is logged and ignored.
func preferredSegment(cfg *config.Config, log *zap.Logger) string {
	s, err := scalar.ParseSegment(cfg.PreferredSegment)
	if err != nil {
		log.Warn("preferred_segment is invalid: ignoring it", zap.Error(err))
	}
	return s
}

// start joins the cluster and serves the blocks of the engine.
func (p *peers) start(e *tiers.Engine) error {
	if p == nil {
		return nil
	}
	p.engine.Store(e)
	return p.tier.Start(e)
}

// fatal delivers the error with which this node must leave its cluster, if there is one.
func (p *peers) fatal() <-chan error {
	if p == nil {
		return nil
	}
	return p.node.Fatal()
}

// close stops watching files. The engine closes the tier.
func (p *peers) close() {
	if p != nil {
		p.stop()
	}
}

// capacity returns the bytes that this node contributes, and how many are free.
func (p *peers) capacity() (total, free int64) {
	e := p.engine.Load()
	if e == nil {
		return 0, 0
	}
	st := e.Stats()
	total, free = st.CapacityBytes, st.CapacityBytes-st.UsedBytes
	for _, s := range st.Secondaries {
		total += s.CapacityBytes
		free += s.CapacityBytes - s.UsedBytes
	}
	return total, max(free, 0)
}

// secondary returns the peer tier as the engine takes it.
func (p *peers) secondary(cfg *config.Config) state.SecondaryOptions {
	o := state.SecondaryOptions{Name: "peer", Tier: p.tier, Cascade: state.CascadeMode(cfg.Peer.Cascade), QueueBytes: int64(cfg.Peer.Queue)}
	if cfg.Replicas == 0 {
		o.Cascade = state.CascadeOff
	}
	return o
}

func (p *peers) status(s *state.Summary) *status.Cluster {
	if p == nil {
		return nil
	}
	node, bulk := p.node.Stats(), p.transport.Stats()
	members := p.members()
	c := &status.Cluster{
		LocalReadRatio: status.LocalReadRatio(s), Members: members, Warning: p.node.Warning(), Node: node, Bulk: bulk, Required: p.required,
		RDMA: p.memory.Status(),
		Rejected: map[string]uint64{
			"gossip": node.Gossip.Rejected, "connections": node.Strangers, "unknown": node.Unknown,
			"malformed": node.Malformed, "denied": node.Denied, "bulk": uint64(bulk.Refused + bulk.Strangers),
		},
	}
	if len(members) > 0 {
		c.Requested = members[0].Features
	}
	return c
}

// members lists the nodes of the cluster, with the blocks that this node holds itself.
func (p *peers) members() []cluster.Member {
	list := p.node.Members()
	if e := p.engine.Load(); e != nil && len(list) > 0 && list[0].Self {
		list[0].Blocks = p.held.get(e)
	}
	return list
}

// heldLife is how long a count of the held blocks is used: counting walks over all.
const heldLife = time.Second

// heldCount is a cached count of the blocks that this node holds.
type heldCount struct {
	mu struct {
		sync.Mutex
		n  int64
		at time.Time
	}
}

func (c *heldCount) get(e *tiers.Engine) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.mu.at) < heldLife {
		return c.mu.n
	}
	c.mu.n = 0
	e.Holdings(context.Background(), func(h *tiers.Holding) error { // cannot fail
		if h.Mode&unix.S_IFMT != unix.S_IFDIR {
			c.mu.n++
		}
		return nil
	})
	c.mu.at = time.Now()
	return c.mu.n
}
