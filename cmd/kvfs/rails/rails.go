// Package rails is the RDMA of this machine: the cards over which a daemon reads the memory of
// peers, the obstacles, and the cards in use. The rails are the cards of the plan of package
// nic. Machine finds and opens them for a daemon, or tries them for kvfs doctor.
package rails

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
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

// findRails applies the settings to the cards of the machine. If it fails, it still returns what it has found.
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

func providerOf(d *nic.Device) string {
	if d.Driver == driverEFA {
		return fabric.EFA
	}
	return fabric.Verbs
}

// chooseProvider decides for auto. Cards of AWS come first: machines with both kinds use the others for management.
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

// exposure fails if machines other than peers could read the memory of this node. A rail does not authenticate connections.
// With certificates only peers get the keys of the memory; without them, kvfs must be reachable from this machine alone.
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

// oneLine returns an error with semicolons between its lines.
func oneLine(err error) error { return &lineError{err} }

type lineError struct{ err error }

func (e *lineError) Error() string { return strings.ReplaceAll(e.err.Error(), "\n", "; ") }
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

// Machine is the machine whose RDMA is used.
type Machine struct {
	nic     nic.Options
	devices string                         // directory of the character devices
	memlock func() (limit int64, all bool) // how much may be pinned; all: without limit
	open    func(fabric.Options) (transport, error)
	library func() (fabric.Library, error)
}

// ThisMachine returns the machine that the program runs on.
func ThisMachine() *Machine {
	return &Machine{devices: "/dev/infiniband", memlock: memlock, open: openTransportOf, library: fabric.Probe}
}

// openTransportOf is fabric.Open. It avoids an interface that holds a nil pointer.
func openTransportOf(o fabric.Options) (transport, error) {
	t, err := fabric.Open(o)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// pinned is the least memory to pin beside the cache: blocks that are being read, and queues.
const pinned = 64 * scalar.MiB

// obstacles lists the reasons why this process cannot use the cards, each with a remedy.
func (m *Machine) obstacles(r *set, cfg *config.Config) []error {
	if r.provider == fabric.TCP {
		return nil // sockets need no permission
	}
	return append(m.closedDevices(r), m.checkMemlock(cfg))
}

// closedDevices lists the character devices that cannot be opened.
func (m *Machine) closedDevices(r *set) []error {
	var errs []error
	if _, err := os.Stat(m.devices); errors.Is(err, os.ErrNotExist) {
		return []error{fmt.Errorf("%s is not there: load the modules ib_uverbs and rdma_ucm; into a container it comes by --device=%[1]s", m.devices)}
	}
	for _, device := range r.devices() {
		node, err := m.characterDevice(device)
		if err == nil {
			err = tryOpen(node)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", device, err))
		}
	}
	if r.provider == fabric.Verbs {
		if err := tryOpen(filepath.Join(m.devices, "rdma_cm")); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// characterDevice returns the path of the device through which programs talk to a card.
func (m *Machine) characterDevice(device string) (string, error) {
	root := m.nic.Sysfs
	if root == "" {
		root = "/sys"
	}
	found, err := filepath.Glob(filepath.Join(root, "class/infiniband_verbs/uverbs*/ibdev"))
	if err != nil {
		return "", err
	}
	for _, file := range found {
		if name, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(name)) == device {
			return filepath.Join(m.devices, filepath.Base(filepath.Dir(file))), nil
		}
	}
	return "", errors.New("it has no device for programs: load the module ib_uverbs")
}

// tryOpen opens a device as the library would. Its error names the remedy.
func tryOpen(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	switch {
	case err == nil:
		return f.Close()
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w: give this user the right to read and write it (a udev rule with MODE=\"0666\"); in a container, --device=%s", err, filepath.Dir(path))
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%w: load the modules ib_uverbs and rdma_ucm; into a container it comes by --device=%s", err, filepath.Dir(path))
	}
	return err
}

// PinnedBytes returns how much memory RDMA has to pin with these settings.
func PinnedBytes(cfg *config.Config) int64 { return int64(cfg.RDMA.Cache + pinned) }

// checkMemlock fails if this process may pin less than it needs.
func (m *Machine) checkMemlock(cfg *config.Config) error {
	limit, all := m.memlock()
	need := PinnedBytes(cfg)
	if all || limit >= need {
		return nil
	}
	return fmt.Errorf("the limit of locked memory is %s, and RDMA needs %s (rdma.cache and %s): ulimit -l unlimited, LimitMEMLOCK=infinity in a unit of systemd, "+
		"or --ulimit memlock=-1 of a container", show.Bytes(limit), show.Bytes(need), show.Bytes(int64(pinned)))
}

// leaseBytes returns how much may be registered for peers at a time: half of memory.size, and at most half of what may be
// pinned beside the cache, because reads of this node are pinned, too.
func (m *Machine) leaseBytes(r *set, cfg *config.Config) int64 {
	n := int64(cfg.Memory.Size / 2)
	if limit, all := m.memlock(); !all && r.provider != fabric.TCP {
		n = min(n, (limit-int64(cfg.RDMA.Cache))/2)
	}
	return max(n, 1)
}

// memlock returns how much this process may pin. The kernel requires CAP_IPC_LOCK beyond the limit.
func memlock() (limit int64, all bool) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil || r.Cur > 1<<62 {
		return 0, true
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return int64(r.Cur), false
	}
	return int64(r.Cur), data[0].Effective&(1<<unix.CAP_IPC_LOCK) != 0
}
