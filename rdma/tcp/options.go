package tcp

import (
	"crypto/tls"
	"fmt"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/rdma"
)

// Options configure a Transport. The zero value of each field but Bind is usable.
type Options struct {
	Bind      string      // host:port to listen on; port 0: a free one
	Advertise string      // value of Addr; "": the address of the listener
	Source    rdma.Source // serves blocks by name; nil: none until SetSource

	// ServerTLS secures accepted connections. ClientTLS, given the address, secures dialled ones.
	// Both or neither; nil: plain TCP.
	ServerTLS *tls.Config
	ClientTLS func(addr string) *tls.Config

	Connections int    // most to a peer; 0: 4
	MaxConns    int    // most served at a time; a quarter more may be greeting; 0: 4096
	Congestion  string // congestion control of all connections; "": the host's default
	Rate        int64  // most bytes of blocks sent in a second, of all connections together; 0: no limit

	DialTimeout  time.Duration // for connecting and greeting; 0: 5 s
	IdleTimeout  time.Duration // an unused connection is closed after it; 0: 1 min
	StallTimeout time.Duration // a connection on which no byte moves is cut after it; 0: 5 s

	Logger *zap.Logger // nil: none
}

// withDefaults returns o with its zero values replaced, or an error.
func (o Options) withDefaults() (Options, error) {
	if (o.ServerTLS == nil) != (o.ClientTLS == nil) {
		return o, fmt.Errorf("tcp: TLS on one side only")
	}
	for _, v := range []*int{&o.Connections, &o.MaxConns} {
		if *v < 0 {
			return o, fmt.Errorf("tcp: %d connections", *v)
		}
	}
	if o.Rate < 0 {
		return o, fmt.Errorf("tcp: rate of %d bytes a second", o.Rate)
	}
	for _, d := range []*time.Duration{&o.DialTimeout, &o.IdleTimeout, &o.StallTimeout} {
		if *d < 0 {
			return o, fmt.Errorf("tcp: negative timeout %v", *d)
		}
	}
	setDefault(&o.Connections, 4)
	setDefault(&o.MaxConns, 4096)
	setDefault(&o.DialTimeout, 5*time.Second)
	setDefault(&o.IdleTimeout, time.Minute)
	setDefault(&o.StallTimeout, 5*time.Second)
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.ServerTLS != nil {
		o.ServerTLS = largeRecords(o.ServerTLS)
	}
	return o, checkCongestion(o.Congestion)
}

// maxGreeting bounds the connections that have not greeted yet: with TLS, that have shown no
// certificate.
func (o *Options) maxGreeting() int { return max(1, o.MaxConns/4) }

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// largeRecords returns c with records of full size from the start. Small first records help
// browsers to render, but not readers of blocks.
func largeRecords(c *tls.Config) *tls.Config {
	c = c.Clone()
	c.DynamicRecordSizingDisabled = true
	return c
}

// checkCongestion asks the kernel whether this process may use the congestion
// control of that name.
func checkCongestion(name string) error {
	if name == "" {
		return nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("tcp: congestion control %s: %w", name, err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name); err != nil {
		return fmt.Errorf("tcp: congestion control %s: %w", name, err)
	}
	return nil
}
