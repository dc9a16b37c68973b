package cluster

import (
	"errors"
	"fmt"
	"net"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/gossip"
	"github.com/kvfs/kvfs/cluster/meta"
)

// minStranger is the least time that a new connection has for its first call.
const minStranger = 10 * time.Second

// maxStall bounds the time in which a small block has to come by the fabric. A fetch waits
// little longer than this for the first sign of life.
const maxStall = 150 * time.Millisecond

// tuning is the settings that only tests change. Zero means the default.
type tuning struct {
	retryMin, retryMax     time.Duration // between two attempts to follow a feed
	breakerMin, breakerMax time.Duration // between opening and the probe
	exchange               time.Duration // between two exchanges of graves
	resync                 time.Duration // between two comparisons of all that a peer holds, or snapshots
	drop                   time.Duration // after which the entries of a lost peer are deleted
	forget                 time.Duration // after which a lost peer itself is deleted
	capacity               time.Duration // between two checks of the capacity
	lease                  time.Duration // lifetime of a lease
	stall                  time.Duration // in which a small block has to come by the fabric
	cards                  time.Duration // between two tests of all network cards for a peer
	stranger               time.Duration // after which a connection without a call is closed
	settle                 time.Duration // as owner.Options.Settle
	initial                time.Duration // time after Start in which a peer without a required feature is fatal

	mask                  meta.Feature // features that this node is to lack
	protocol, minProtocol uint32
	network               control.Network
}

func (t tuning) withDefaults() tuning {
	for _, d := range []struct {
		p *time.Duration
		v time.Duration
	}{
		{&t.retryMin, 100 * time.Millisecond}, {&t.retryMax, 5 * time.Second},
		{&t.breakerMin, time.Second}, {&t.breakerMax, 30 * time.Second},
		{&t.exchange, 30 * time.Second}, {&t.resync, time.Hour},
		{&t.drop, time.Minute}, {&t.forget, time.Hour},
		{&t.capacity, 5 * time.Second}, {&t.lease, 30 * time.Second}, {&t.initial, 10 * time.Second},
		{&t.cards, 10 * time.Second},
	} {
		if *d.p == 0 {
			*d.p = d.v
		}
	}
	if t.network == nil {
		t.network = control.TCP{}
	}
	if t.protocol == 0 {
		t.protocol, t.minProtocol = meta.Protocol, meta.MinProtocol
	}
	return t
}

// withDefaults returns o with defaults filled in, or an error that names everything wrong with
// o.
func (o Options) withDefaults() (Options, error) {
	bad := o.check()
	if o.ControlBind == "" {
		o.ControlBind = net.JoinHostPort(gossip.HostOf(o.Gossip.Bind), "0")
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = 5 * time.Second
	}
	if o.tuning.stall == 0 {
		o.tuning.stall = min(o.CallTimeout/4, maxStall) // leaves time for the transport
	}
	if o.FabricBytes == 0 {
		o.FabricBytes = fabricBytes
	}
	if o.Capacity == nil {
		o.Capacity = func() (int64, int64) { return 0, 0 }
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	o.tuning = o.tuning.withDefaults()
	if o.tuning.stranger == 0 {
		o.tuning.stranger = max(minStranger, 2*o.CallTimeout)
	}
	if len(bad) == 0 {
		bad = append(bad, o.checkExposure(o.Gossip.Bind, o.ControlBind, o.Transport.Addr()))
	}
	return o, errors.Join(bad...)
}

// check returns what is wrong with the options, other than what strangers reach.
func (o *Options) check() []error {
	var bad []error
	if o.Gossip.Name == "" {
		bad = append(bad, errors.New("no node name"))
	}
	if len(o.Gossip.Name) > control.MaxName {
		bad = append(bad, fmt.Errorf("node name of %d bytes, %d is the limit", len(o.Gossip.Name), control.MaxName))
	}
	if o.Gossip.Bind == "" {
		bad = append(bad, errors.New("no address to bind"))
	}
	if o.Transport == nil {
		bad = append(bad, errors.New("no transport"))
	}
	switch {
	case o.Path > PathRDMA:
		bad = append(bad, fmt.Errorf("path %d: not one of 0 to %d", o.Path, PathRDMA))
	case o.Path == PathRDMA && o.Fabric == nil:
		bad = append(bad, errors.New("only RDMA is to be used, and there is no fabric"))
	case o.Fabric != nil && !o.Fabric.Caps().OneSided:
		bad = append(bad, fmt.Errorf("fabric %q: cannot read one-sided", o.Fabric.Caps().Proto))
	}
	if o.FabricBytes < 0 {
		bad = append(bad, fmt.Errorf("leases of %d bytes: negative", o.FabricBytes))
	}
	if o.CallTimeout < 0 {
		bad = append(bad, fmt.Errorf("call timeout %v: negative", o.CallTimeout))
	}
	if _, err := meta.ParseFeatures(o.Require); err != nil {
		bad = append(bad, err)
	}
	if _, _, err := net.SplitHostPort(o.ControlBind); o.ControlBind != "" && err != nil {
		bad = append(bad, fmt.Errorf("control address: %w", err))
	}
	return bad
}

// checkExposure fails if strangers can reach an address that is not protected. The error names
// everything that is missing.
func (o *Options) checkExposure(gossipAddr, controlAddr, bulkAddr string) error {
	if o.Insecure {
		return nil
	}
	var bad []error
	for _, a := range []struct {
		what, addr, need string
		safe             bool
	}{
		{"gossip", gossipAddr, "gossip keys", o.Gossip.Keyring != nil},
		{"control", controlAddr, "TLS", o.TLS != nil},
		// An address without a port belongs to a transport within the process.
		{"bulk", bulkAddr, "TLS", o.Transport.Caps().Encrypted || gossip.HostOf(bulkAddr) == bulkAddr},
	} {
		if !a.safe && !gossip.Loopback(a.addr) {
			bad = append(bad, fmt.Errorf("%s address %s is not loopback and has no %s (or set insecure)", a.what, a.addr, a.need))
		}
	}
	if o.Fabric != nil && o.Path != PathTCP && o.TLS == nil && !o.FabricLocal && !o.Fabric.Caps().Encrypted {
		bad = append(bad, errors.New("fabric: other machines may reach it, and there is no TLS (or set insecure)"))
	}
	return errors.Join(bad...)
}
