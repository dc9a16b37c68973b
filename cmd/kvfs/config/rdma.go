package config

import (
	"regexp"
	"slices"
	"strings"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
)

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

// aliasDevices wants a list as in rdma.devices; empty entries are an error there and a warning
// here.
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
