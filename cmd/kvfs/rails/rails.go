// Package rails is the RDMA of this machine: the cards over which a daemon reads the memory of
// peers, the obstacles, and the cards in use. The rails are the cards of the plan of package
// nic. Machine finds and opens them for a daemon, or tries them for kvfs doctor.
package rails

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/fabric"
	"github.com/kvfs/kvfs/rdma/nic"
)

// transport is the part of a fabric that this program uses.
type transport interface {
	rdma.Transport
	Forget(dev, ino uint64)
	Stats() fabric.Stats
}

var _ transport = (*fabric.Transport)(nil)

// stripe is the length of one piece of a read that all cards share.
const stripe = 1 << 20

// driverEFA is the kernel's driver of the cards of AWS.
const driverEFA = "efa"

// errExposed reports that machines other than peers could read registered memory.
var errExposed = errors.New("other machines could read the memory of this node, and nothing says who they are: " +
	"set tls.ca, tls.cert and tls.key (kvfs certs init makes them); insecure: true does without")

// errNoCard: this machine has nothing to do RDMA with.
var errNoCard = errors.New("this machine has no RDMA device")

// set is the provider, the plan and the cards for RDMA.
type set struct {
	provider  string
	inventory *nic.Inventory // nil for provider tcp
	plan      *nic.Plan
}

// findRails applies the settings to the cards of the machine. If it fails, it still returns
// what it has found.
func (m *Machine) findRails(cfg *config.Config) (*set, error) {
	if cfg.RDMA.Provider == config.TransportTCP {
		return &set{provider: fabric.TCP, plan: planSockets(cfg)}, nil
	}
	r := &set{}
	inventory, err := nic.Discover(m.nic)
	if err != nil {
		return r, err
	}
	r.inventory = inventory
	if r.provider, err = chooseProvider(cfg.RDMA.Provider, inventory); err != nil {
		return r, err
	}
	driven := *inventory
	driven.Devices = slices.DeleteFunc(slices.Clone(inventory.Devices), func(d nic.Device) bool { return providerOf(&d) != r.provider })
	r.plan, err = driven.Plan(nic.Policy(cfg.RDMA.Policy), cfg.RDMA.Devices)
	return r, err
}

// providerOf returns the provider that drives a device.
func providerOf(d *nic.Device) string {
	if d.Driver == driverEFA {
		return fabric.EFA
	}
	return fabric.Verbs
}

// chooseProvider decides for auto. Cards of AWS come first: machines with both kinds use the
// others for management.
func chooseProvider(wanted string, inventory *nic.Inventory) (string, error) {
	if len(inventory.Devices) == 0 {
		return "", errNoCard
	}
	var down []string
	for _, provider := range []string{fabric.EFA, fabric.Verbs} {
		if wanted != config.Auto && wanted != provider {
			continue
		}
		for i := range inventory.Devices {
			switch d := &inventory.Devices[i]; {
			case providerOf(d) != provider:
			case d.Active():
				return provider, nil
			default:
				down = append(down, fmt.Sprintf("port %d of %s is %s", d.Port, d.Name, d.State))
			}
		}
	}
	if len(down) == 0 {
		return "", fmt.Errorf("%w: none for provider %s", errNoCard, wanted)
	}
	return "", fmt.Errorf("no RDMA device is active: %s", strings.Join(down, ", "))
}

// planSockets makes the plan of provider tcp. Its devices are the network interfaces of the
// list, or any that the library takes.
func planSockets(cfg *config.Config) *nic.Plan {
	p := &nic.Plan{Policy: nic.Policy(cfg.RDMA.Policy)}
	for _, entry := range cfg.RDMA.Devices {
		for name := range strings.SplitSeq(entry, "+") {
			name = strings.TrimSpace(name)
			if !slices.ContainsFunc(p.Rails, func(r nic.Rail) bool { return r.Device.Name == name }) {
				p.Rails = append(p.Rails, nic.Rail{Device: nic.Device{Name: name, GIDIndex: -1, NUMA: -1}})
			}
		}
		if p.Policy == nic.Single {
			break
		}
	}
	p.Striped = p.Policy == nic.All && len(p.Rails) > 1
	return p
}

// devices lists the cards of the plan, each once: several GPUs may share one.
func (r *set) devices() []string {
	var names []string
	if r.plan == nil {
		return nil
	}
	for i := range r.plan.Rails {
		if name := r.plan.Rails[i].Device.Name; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// options returns the options of a transport over the rails.
func (r *set) options(cfg *config.Config, log *zap.Logger) fabric.Options {
	o := fabric.Options{
		Provider: r.provider, Devices: r.devices(), Host: r.host(cfg),
		CacheBytes: int64(cfg.RDMA.Cache), StallTimeout: time.Duration(cfg.Peer.Timeout), Logger: log,
	}
	if r.plan.Striped {
		o.Stripe = stripe
	}
	return o
}

// host returns the address of bind if it can be that of the only rail.
func (r *set) host(cfg *config.Config) string {
	host, _, err := scalar.HostPort(cfg.Bind)
	if err != nil {
		return ""
	}
	if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
		host = "127.0.0.1"
	}
	ip, err := netip.ParseAddr(host)
	if err != nil || ip.IsUnspecified() || len(r.devices()) > 1 {
		return ""
	}
	switch {
	case len(r.plan.Rails) == 0: // provider tcp
		return ip.String()
	case r.provider == fabric.TCP && slices.Contains(addrsOf(r.plan.Rails[0].Device.Name), ip):
		return ip.String()
	case slices.Contains(r.plan.Rails[0].Device.Addrs, ip):
		return ip.String()
	}
	return ""
}

// local reports whether only this machine reaches the rails.
func (r *set) local(cfg *config.Config) bool {
	ip, err := netip.ParseAddr(r.host(cfg))
	return r.provider == fabric.TCP && err == nil && ip.Unmap().IsLoopback()
}

// exposure fails if machines other than peers could read the memory of this node. A rail does
// not authenticate connections. With certificates only peers get the keys of the memory;
// without them, kvfs must be reachable from this machine alone.
func (r *set) exposure(cfg *config.Config) error {
	if cfg.TLS.On() || cfg.Insecure || r.local(cfg) {
		return nil
	}
	return errExposed
}

// addrsOf returns the addresses of a network interface; none if there is none.
func addrsOf(name string) []netip.Addr {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil
	}
	list, err := i.Addrs()
	if err != nil {
		return nil
	}
	var addrs []netip.Addr
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			addrs = append(addrs, p.Addr())
		}
	}
	return addrs
}

// Describe lists the rails of a plan in words: "mlx5_0 for GPU 0 (PIX)". Without a plan there are none.
func Describe(plan *nic.Plan) []string {
	var lines []string
	if plan == nil {
		return nil
	}
	for i := range plan.Rails {
		lines = append(lines, describeRail(&plan.Rails[i]))
	}
	return lines
}

// describeRail says which card a rail is, for which GPUs, and how near it is to them.
func describeRail(rail *nic.Rail) string {
	text := rail.Device.Name
	for i, gpu := range rail.GPUs {
		text += fmt.Sprintf("%s %d", []string{" for GPU", ","}[min(i, 1)], gpu)
	}
	if rail.Path != "" {
		text += " (" + rail.Path + ")"
	}
	return text
}

// Remote is this node's RDMA, or the reason why there is none.
type Remote struct {
	transport transport // nil: none
	rails     *set      // nil if it was not searched for
	err       error     // why there is none; nil if it is turned off
	wanted    string    // peer.transport
	Local     bool      // only this machine reaches it
	Bytes     int64     // that may be registered for peers at a time
}

// OpenFabric opens RDMA according to the settings. It fails only if the settings require RDMA.
// Else it logs once why there is none.
func (m *Machine) OpenFabric(cfg *config.Config, log *zap.Logger) (*Remote, error) {
	f := &Remote{wanted: cfg.Peer.Transport}
	if f.wanted == config.TransportTCP {
		return f, nil
	}
	f.rails, f.err = m.findRails(cfg)
	if f.err == nil {
		f.err = errors.Join(append(m.obstacles(f.rails, cfg), f.rails.exposure(cfg))...)
	}
	if f.err == nil {
		f.transport, f.err = m.open(f.rails.options(cfg, log))
	}
	switch {
	case f.err == nil:
		f.Local, f.Bytes = f.rails.local(cfg), m.leaseBytes(f.rails, cfg)
		f.logPlan(cfg, log)
	case f.wanted == config.TransportRDMA:
		return nil, fmt.Errorf("peer.transport %s: %w", f.wanted, oneLine(f.err))
	case errors.Is(f.err, errNoCard) && len(cfg.RDMA.Devices) == 0 && cfg.RDMA.Provider == config.Auto:
		log.Debug("no RDMA: peers are reached by TCP", zap.Error(f.err))
	default:
		log.Warn("RDMA cannot be used: peers are reached by TCP", zap.Error(oneLine(f.err)), zap.Strings("rails", Describe(f.rails.plan)))
	}
	return f, nil
}

// oneLine joins the lines of an error.
func oneLine(err error) error { return &lineError{err} }

// lineError is an error in one line.
type lineError struct{ err error }

// Error returns the lines with semicolons between them.
func (e *lineError) Error() string { return strings.ReplaceAll(e.err.Error(), "\n", "; ") }

// Unwrap returns the error with its lines.
func (e *lineError) Unwrap() error { return e.err }

// logPlan logs the cards in use, their GPUs, and the notes for an operator.
func (f *Remote) logPlan(cfg *config.Config, log *zap.Logger) {
	caps := f.transport.Caps()
	about := []zap.Field{
		zap.String("provider", caps.Provider), zap.String("policy", string(f.rails.plan.Policy)),
		zap.Strings("rails", Describe(f.rails.plan)), zap.Bool("striped", f.rails.plan.Striped),
	}
	if len(f.rails.plan.Rails) == 0 {
		about = append(about, zap.Strings("devices", caps.Rails))
	}
	if notes := f.rails.plan.Notes; len(notes) > 0 {
		about = append(about, zap.Strings("notes", notes))
	}
	log.Info("RDMA: reading the memory of peers", about...)
	if cfg.TLS.On() && !caps.Encrypted {
		log.Info("RDMA: blocks travel without encryption; the keys that open them do not. peer.transport: tcp encrypts all")
	}
}

// Freed returns the function to call when the file of a block goes, or nil if none is needed.
func (f *Remote) Freed() func(dev, ino uint64) {
	if f.transport == nil {
		return nil
	}
	return f.transport.Forget
}

// Fabric returns the transport for the cluster; nil if there is none.
func (f *Remote) Fabric() rdma.Transport {
	if f.transport == nil {
		return nil
	}
	return f.transport
}

// Refuse notes why the node closed the transport without using it. nil means that the node uses it.
func (f *Remote) Refuse(err error) {
	if err != nil {
		f.transport, f.err = nil, err
	}
}

// Close ends the transport, where no node does so.
func (f *Remote) Close() error {
	if f.transport == nil {
		return nil
	}
	return f.transport.Close()
}

// State is the RDMA part of the status document.
type State struct {
	Transport string        `json:"transport" help:"setting 'peer.transport'"`
	Provider  string        `json:"provider,omitempty" help:"provider of libfabric, with its version; absent if there is none"`
	Plan      *nic.Plan     `json:"plan,omitempty"`
	Stats     *fabric.Stats `json:"stats,omitempty"` // absent if RDMA is not used
	Error     string        `json:"error,omitempty" help:"why RDMA is not used"`
}

// Status returns the RDMA part of the status document.
func (f *Remote) Status() *State {
	s := &State{Transport: f.wanted}
	if f.rails != nil {
		s.Plan = f.rails.plan
	}
	if f.err != nil {
		s.Error = oneLine(f.err).Error()
	}
	if f.transport != nil {
		stats := f.transport.Stats()
		s.Provider, s.Stats = f.transport.Caps().Provider, &stats
	}
	return s
}
