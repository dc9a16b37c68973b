package config

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
)

// Peer configures the traffic with peers.
type Peer struct {
	Timeout       scalar.Duration `kvfs:"timeout" above:"0" default:"5s" help:"How long a block may take to come from peers, from all that have it together. After that it is a miss."`
	Silence       scalar.Duration `kvfs:"silence" case:"tests/rdma/nodes has blocks that take seconds" above:"0" default:"300ms" help:"If a peer sends nothing of a block for this time, kvfs asks another holder. This is the least value; it grows with the observed times."`
	Transport     string          `kvfs:"transport" short:"Peers" enum:"auto|tcp|rdma" default:"auto" help:"How blocks come from peers. auto: by RDMA if this node and the peer have it, else TCP. tcp: never by RDMA. rdma: only by RDMA; the start fails without RDMA, and a block that only a peer without RDMA has is a miss."`
	Control       string          `kvfs:"control" check:"hostport" example:"10.0.0.3:7947" help:"Address of the control channel, host:port. Empty means a free port of the host of bind."`
	Bulk          string          `kvfs:"bulk" check:"hostport" example:"10.0.0.3:7948" help:"Address on which blocks are served, host:port. Empty means a free port of the host of bind."`
	Congestion    string          `kvfs:"congestion" case:"in a data centre cubic can be several times as fast as the default, see cluster.md" check:"word" example:"cubic" help:"TCP congestion control of these connections, as in net.ipv4.tcp_allowed_congestion_control. Empty means the default of the machine."`
	SendRate      scalar.Size     `kvfs:"send_rate" default:"0" help:"Most bytes of blocks that this node sends to its peers in a second over TCP. They take turns of 64KiB, so a block that many want does not keep others waiting. Zero means no limit."`
	Require       []string        `kvfs:"require" enum:"get|store|bury|list|resume|memory|rdma|digest|find" example:"store,bury" help:"Features that every peer must have. kvfs refuses a peer without one of them."`
	GossipProfile string          `kvfs:"gossip_profile" case:"tests/cluster sees sooner that a node is lost" enum:"lan|wan|local" default:"lan" help:"How long peers wait for each other before one counts as lost."`
	GossipKeys    string          `kvfs:"gossip_keys" holds:"path" short:"Peers" example:"/etc/kvfs/gossip.keys" help:"File with the keys that encrypt the gossip. kvfs uses a changed file without a restart. kvfs keys create makes one."`
	Accept        string          `kvfs:"accept" enum:"on|off" default:"on" help:"Whether this peer accepts copies of blocks of other peers."`
	Cascade       string          `kvfs:"cascade" enum:"async|sync|off" default:"async" help:"When a committed block is copied to the peers that replicas asks for. async: soon after the commit. sync: close or rename waits for the copies. off: never."`
	Queue         scalar.Size     `kvfs:"queue" case:"tests/bench measures copies without losing one" default:"0" help:"Most bytes that wait to be copied to peers. Blocks beyond that are not copied. Zero means automatic: a quarter of memory.size, at most 1GiB."`

	LocationMemory scalar.Size `kvfs:"location_memory" default:"1GiB" help:"Most memory for what this node knows of the blocks of all peers, about 29 bytes for each block and holder. A node for which that is too little asks other nodes: see locations. Blocks that have no room even so are misses. Zero means no limit."`
	Locations      string      `kvfs:"locations" enum:"auto|all|owned" default:"auto" help:"What this node knows of the blocks of other nodes. all: everything, so that look-ups never wait for the network. owned: only the share that it keeps for the cluster; it asks other nodes about other names. auto: all, and owned if location_memory is too little for all."`
}

// Values of peer.locations, besides Auto.
const (
	LocationsAll   = "all"
	LocationsOwned = "owned"
)

// TLS names the files of the certificates.
type TLS struct {
	CA   string `kvfs:"ca" holds:"path" short:"Peers" example:"/etc/kvfs/ca.pem" help:"Certificates of the trusted authorities; several during a rotation."`
	Cert string `kvfs:"cert" holds:"path" short:"Peers" example:"/etc/kvfs/gpu-7.pem" help:"Certificate of this peer, for NODE_NAME.kvfs."`
	Key  string `kvfs:"key" holds:"path" short:"Peers" example:"/etc/kvfs/gpu-7-key.pem" help:"Private key of this peer. Others must not be able to read it: mode 0600, or 0640."`
}

// On reports whether certificates are used.
func (t TLS) On() bool { return t.CA != "" }

// Readdir configures listings.
type Readdir struct {
	Remote string `kvfs:"remote" enum:"on|off" default:"on" help:"Whether ls also shows blocks that only peers hold. stat and open find them in any case."`
}

// needBind lists the settings that mean nothing without bind; one that ends in a dot stands for a section.
var needBind = []string{"join", "advertise", "replicas", "preferred_segment", "peer.", "rdma."}

// needsBind reports whether a setting means nothing without bind.
func needsBind(path string) bool {
	return slices.ContainsFunc(needBind, func(p string) bool {
		return path == p || strings.HasSuffix(p, ".") && strings.HasPrefix(path, p)
	})
}

func (l *loader) validatePeers() {
	if l.cfg.Bind == "" && l.good("bind") {
		l.validateNoPeers()
	}
	l.validateTLS()
	l.validateSecurity()
}

// validateNoPeers refuses settings without effect, so that nobody believes that they work. It
// ignores a preferred segment from the environment, also under the names of other programs:
// that may be meant for another program, and must never prevent a start.
func (l *loader) validateNoPeers() {
	defaults := reflect.ValueOf(defaultConfig()).Elem()
	for _, t := range textSettings() {
		o, got := l.cfg.Origin(t.path), reflect.ValueOf(l.cfg).Elem().FieldByIndex(t.at)
		if needsBind(t.path) && l.good(t.path) && !isOthers(t.path, o) && format(got) != format(defaults.FieldByIndex(t.at)) {
			l.fail(o, t.path, scalar.Violate(scalar.ErrInvalid, "it needs bind, without which there are no peers"))
		}
	}
}

// isOthers reports whether a setting comes from what the environment says to others, too.
func isOthers(path string, o Origin) bool {
	return o.Source == Env && (path == "preferred_segment" || !strings.HasPrefix(o.Name, envPrefix))
}

// validateTLS wants all files of the certificates, or none.
func (l *loader) validateTLS() {
	files := []struct{ path, name string }{{"tls.ca", l.cfg.TLS.CA}, {"tls.cert", l.cfg.TLS.Cert}, {"tls.key", l.cfg.TLS.Key}}
	given := slices.IndexFunc(files, func(f struct{ path, name string }) bool { return f.name != "" })
	if given < 0 {
		return
	}
	for _, f := range files {
		if f.name == "" && l.good(f.path) {
			o := l.cfg.Origin(files[given].path)
			l.fail(o, f.path, scalar.Violate(scalar.ErrInvalid, "it is missing: %s is given (%v), and tls.ca, tls.cert and tls.key go together", files[given].path, o))
		}
	}
}

// validateSecurity refuses an address that others can reach without keys and certificates, unless that is wanted.
func (l *loader) validateSecurity() {
	c := l.cfg
	if c.Insecure || c.Bind == "" || !l.good("insecure", "bind") {
		return
	}
	var missing []string
	if c.TLS == (TLS{}) {
		missing = append(missing, "tls.ca, tls.cert and tls.key (kvfs certs init makes them)")
	}
	if c.Peer.GossipKeys == "" {
		missing = append(missing, "peer.gossip_keys (kvfs keys create makes them)")
	}
	if len(missing) == 0 {
		return
	}
	for _, a := range []struct{ path, address string }{{"bind", c.Bind}, {"peer.control", c.Peer.Control}, {"peer.bulk", c.Peer.Bulk}} {
		if a.address == "" || scalar.IsLoopback(a.address) || !l.good(a.path) {
			continue
		}
		l.fail(c.Origin(a.path), a.path, scalar.Violate(scalar.ErrInvalid, "%q is not a loopback address and needs %s; insecure: true does without",
			a.address, strings.Join(missing, ", and ")))
		return
	}
}

// forgetOthers resets what the environment says about peers in the names of other programs, and
// a preferred segment: see validateNoPeers.
func forgetOthers(c *Config) {
	defaults := reflect.ValueOf(defaultConfig()).Elem()
	for _, t := range textSettings() {
		if needsBind(t.path) && isOthers(t.path, c.Origin(t.path)) {
			reflect.ValueOf(c).Elem().FieldByIndex(t.at).Set(defaults.FieldByIndex(t.at))
			delete(c.origins, t.path)
		}
	}
}

// rationalizePeers fills in the name and the queue, if there are peers. hostname is that of the machine; empty means to look.
func rationalizePeers(c *Config, hostname string) error {
	if c.Bind == "" {
		forgetOthers(c)
		return nil
	}
	if c.Peer.Queue == 0 {
		c.Peer.Queue = min(c.Memory.Size/4, maxQueue)
	}
	if c.NodeName != "" {
		return nil
	}
	if hostname == "" {
		var err error
		if hostname, err = os.Hostname(); err != nil {
			return &Error{Path: "node_name", Err: fmt.Errorf("no default, set it: %w", err)}
		}
	}
	if err := scalar.CheckName(hostname); err != nil {
		return &Error{Path: "node_name", Err: fmt.Errorf("the host name is no default, set it: %w", err)}
	}
	c.NodeName = hostname
	return nil
}

// RDMA configures the reading of the memory of peers by network cards.
type RDMA struct {
	Provider string      `kvfs:"provider" enum:"auto|verbs|efa|tcp" default:"auto" help:"Driver of the cards. auto: efa if an active card is an AWS card, else verbs (InfiniBand, RoCE) if a card is active, else none. tcp: the same code over sockets, for tests."`
	Devices  []string    `kvfs:"devices" short:"Peers" check:"device" empty:"contains an empty RDMA device entry" example:"mlx5_0,mlx5_1" help:"Cards to use, as in /sys/class/infiniband; + joins several for one GPU. For provider tcp: network interfaces. Empty means all; the policy chooses from them."`
	Policy   string      `kvfs:"policy" enum:"affinity|all|single|gpu_index" default:"affinity" help:"Which cards are used. affinity: those nearest to each GPU, on PCIe, then by NUMA node. all: every card; each read is spread over them. single: the first. gpu_index: the entry of the devices at the number of each local GPU."`
	Cache    scalar.Size `kvfs:"cache" case:"to register 1 MiB takes 4 us, and 1 us if it is still registered" default:"256MiB" help:"Most memory that stays registered with the cards after a block was sent, so that sending the block again needs no registration. Zero means none."`
}

// Values of Peer.Transport, with Auto. TransportTCP is one of RDMA.Provider, too.
const (
	TransportTCP  = "tcp"
	TransportRDMA = "rdma"
)

// PolicyGPUIndex is the value of RDMA.Policy that needs a list.
const PolicyGPUIndex = "gpu_index"

// device matches the names of RDMA devices and of network interfaces.
var device = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,64}$`)

// checkDevice wants an entry of rdma.devices: one device, or several joined by plus signs.
func checkDevice(s string) error {
	for name := range strings.SplitSeq(s, "+") {
		switch name = strings.TrimSpace(name); {
		case name == "":
			return scalar.Violate(scalar.ErrInvalid, "%q contains an empty RDMA device entry", s)
		case !device.MatchString(name):
			return scalar.Violate(scalar.ErrInvalid, "%q has the device %q, which cannot be one: want a name of /sys/class/infiniband, such as mlx5_0", s, name)
		}
	}
	return nil
}

// validateRDMA checks the policy against the list. Source: get_configured_worker_rnic of
// vLLM's Mooncake connector, which picks from a list by the index of the GPU.
func (l *loader) validateRDMA() {
	const policy, devices, require = "rdma.policy", "rdma.devices", "peer.require"
	if l.cfg.Peer.Transport == TransportTCP && slices.Contains(l.cfg.Peer.Require, TransportRDMA) && l.good(require) {
		l.fail(l.cfg.Origin(require), require, scalar.Violate(scalar.ErrInvalid, "%s is turned off by peer.transport %s (%v)", TransportRDMA, TransportTCP, l.cfg.Origin("peer.transport")))
	}
	if l.cfg.RDMA.Policy != PolicyGPUIndex || len(l.cfg.RDMA.Devices) > 0 || !l.good(policy, devices) {
		return
	}
	l.fail(l.cfg.Origin(policy), policy, scalar.Violate(scalar.ErrInvalid, "%s takes an entry of rdma.devices, which is empty", PolicyGPUIndex))
}

// idleRDMA says, in one line, which settings of RDMA were given although it is turned off.
func (l *loader) idleRDMA() []string {
	o := l.cfg.Origin("peer.transport")
	if l.cfg.Bind == "" || l.cfg.Peer.Transport != TransportTCP {
		return nil
	}
	var paths []string
	for _, child := range schema().find("rdma").settings {
		if l.cfg.Origin(child.path).Source != Default {
			paths = append(paths, child.path)
		}
	}
	if len(paths) == 0 {
		return nil
	}
	return []string{"peer.transport " + TransportTCP + " (" + o.String() + "): no effect have " + strings.Join(paths, ", ")}
}

// aliasTransport makes a transport of a protocol of Mooncake. Its rdma does not become ours,
// which would keep a node from starting for a variable that may be meant for an engine.
func aliasTransport(text string) (string, error) {
	switch strings.ToLower(text) {
	case "tcp":
		return TransportTCP, nil
	case "rdma", "efa":
		return Auto, nil
	}
	return "", scalar.Violate(scalar.ErrEnum, "%q is not a protocol of kvfs", text)
}

// aliasDevices wants a list as in rdma.devices; empty entries are an error there and a warning here.
func aliasDevices(text string) (string, error) {
	for entry := range strings.SplitSeq(text, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			return "", scalar.Violate(scalar.ErrInvalid, "%q contains an empty RDMA device entry", text)
		} else if err := checkDevice(entry); err != nil {
			return "", err
		}
	}
	return text, nil
}
