package fabric

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
)

// ErrUnavailable: this program or this machine lacks something for RDMA: built without libfabric,
// no library or one too old, no such provider, no permission, memory that may not be locked. The
// message says what is missing and what to install or set.
var ErrUnavailable = errors.New("RDMA is not available")

// Provider names as in Options.Provider.
const (
	Verbs = "verbs" // InfiniBand and RoCE; libfabric 2.0 or later
	EFA   = "efa"   // of AWS
	TCP   = "tcp"   // no RDMA: the same code over sockets, for tests
)

// Options configure a Transport. The zero value of each field but Provider is usable.
type Options struct {
	// Provider is Verbs, EFA or TCP.
	Provider string
	// Devices are the network cards, one rail each, in the order in which peers pair them: names of
	// /sys/class/infiniband for Verbs and EFA, network interfaces for TCP. Empty: the provider's
	// preferred one. At most MaxRails, none twice.
	Devices []string
	// Host is the IP address at which peers reach this node, for providers with one address per
	// endpoint and devices with several. Empty: the device's first.
	Host string
	// Stripe is the length of the piece of a read that goes by a single rail. A longer read is
	// spread over the rails. Zero: each read goes by one rail, in turn.
	Stripe int64

	// CacheBytes bounds the memory that stays registered after its last Region was closed, so that
	// the next Region needs no registration. It counts whole pages, of at most 4096 files, none
	// without a name. Zero: none stays.
	CacheBytes int64
	// KeepUnnamed: files that had no name at registration stay, too. Blocks have a name. Other
	// files are rarely asked for again, and their memory is not free when they are closed.
	KeepUnnamed bool
	// CacheTime limits how long it stays. Zero means 5 s.
	CacheTime time.Duration

	// StallTimeout: if no read of a peer completes for so long, its endpoint is closed, and the
	// reads fail with rdma.ErrUnavailable. Zero means 5 s.
	StallTimeout time.Duration

	Logger *zap.Logger // nil: none

	//lint:ignore U1000 only code with the tag ofi reads it
	pollOnly bool // for tests: as if the provider could not wake
	//lint:ignore U1000 only code with the tag ofi reads it
	direct bool // for tests: no buffers, as with a card
}

// MaxRails bounds Options.Devices: the keys of all rails must fit rdma.MaxKey.
const MaxRails = 32

// minStripe keeps a piece from costing more for messages than it gains.
const minStripe = 64 << 10

// withDefaults returns o with its zero values replaced, or an error.
func (o Options) withDefaults() (Options, error) {
	if err := o.check(); err != nil {
		return o, fmt.Errorf("fabric: %w", err)
	}
	if o.CacheTime == 0 {
		o.CacheTime = 5 * time.Second
	}
	if o.StallTimeout == 0 {
		o.StallTimeout = 5 * time.Second
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return o, nil
}

// check returns what is wrong with o.
func (o *Options) check() error {
	switch o.Provider {
	case Verbs, EFA, TCP:
	default:
		return fmt.Errorf("provider %q: there are %s, %s and %s", o.Provider, Verbs, EFA, TCP)
	}
	if err := checkDevices(o.Devices); err != nil {
		return err
	}
	if o.Host != "" && net.ParseIP(o.Host) == nil {
		return fmt.Errorf("host %q is no IP address", o.Host)
	}
	if o.Stripe < 0 || o.Stripe > 0 && o.Stripe < minStripe {
		return fmt.Errorf("stripe of %d bytes, %d is the least", o.Stripe, minStripe)
	}
	if o.CacheBytes < 0 || o.CacheTime < 0 || o.StallTimeout < 0 {
		return fmt.Errorf("negative cache of %d bytes, cache time %v or stall timeout %v", o.CacheBytes, o.CacheTime, o.StallTimeout)
	}
	return nil
}

// checkDevices returns what is wrong with the names of network cards.
func checkDevices(devices []string) error {
	if len(devices) > MaxRails {
		return fmt.Errorf("%d devices, %d is the limit", len(devices), MaxRails)
	}
	for i, d := range devices {
		if d == "" || strings.ContainsAny(d, " /\x00") {
			return fmt.Errorf("device %d has no usable name: %q", i, d)
		}
		if slices.Contains(devices[:i], d) {
			return fmt.Errorf("device %s is listed twice", d)
		}
	}
	return nil
}
