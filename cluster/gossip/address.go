package gossip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// defaultPort is the default of memberlist.
	defaultPort = 7946

	// lookupLimit bounds one look-up of a name.
	lookupLimit = 5 * time.Second
)

// lookup finds the addresses of a name.
type lookup func(ctx context.Context, host string) ([]netip.Addr, error)

func systemLookup(ctx context.Context, host string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// ifaceAddr is an address of an interface that is up.
type ifaceAddr struct {
	iface string
	index int
	addr  netip.Addr
}

func systemInterfaces() ([]ifaceAddr, error) {
	ifaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var all []ifaceAddr
	for _, i := range ifaces {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			return nil, err
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok {
					all = append(all, ifaceAddr{i.Name, i.Index, ip.Unmap()})
				}
			}
		}
	}
	return all, nil
}

func (d deps) withDefaults() deps {
	if d.lookup == nil {
		d.lookup = systemLookup
	}
	if d.interfaces == nil {
		d.interfaces = systemInterfaces
	}
	return d
}

// splitAddr cuts host:port. Without a port it returns the default port. An IPv6 address
// without a port needs no brackets.
func splitAddr(s string, port uint16) (string, uint16, error) {
	host := s
	switch {
	case strings.HasPrefix(s, "["):
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return "", 0, fmt.Errorf("address %q: missing ]", s)
		}
		host = s[1:end]
		if _, err := netip.ParseAddr(host); err != nil || !strings.Contains(host, ":") {
			return "", 0, fmt.Errorf("address %q: %q is not an IPv6 address", s, host)
		}
		if rest := s[end+1:]; rest != "" {
			p, ok := strings.CutPrefix(rest, ":")
			if !ok {
				return "", 0, fmt.Errorf("address %q: %q after ]", s, rest)
			}
			return withPort(s, host, p)
		}
	case strings.Count(s, ":") == 1:
		h, p, _ := strings.Cut(s, ":")
		return withPort(s, h, p)
	}
	return withPort(s, host, strconv.Itoa(int(port)))
}

func withPort(s, host, port string) (string, uint16, error) {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("address %q: port %q is not a number from 0 to 65535", s, port)
	}
	if err := checkHost(host); err != nil {
		return "", 0, fmt.Errorf("address %q: %w", s, err)
	}
	return host, uint16(n), nil
}

// checkHost fails if host can be neither an address nor a DNS name.
func checkHost(host string) error {
	if strings.Contains(host, ":") {
		if _, err := netip.ParseAddr(host); err != nil {
			return errors.New("not an IPv6 address, and a host name has no colon")
		}
		return nil
	}
	if len(host) > 253 {
		return errors.New("host name too long")
	}
	for _, r := range host {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-._", r) {
			return fmt.Errorf("%q cannot be in a host name", r)
		}
	}
	return nil
}

// Loopback reports whether only this machine can reach an address: host:port or host.
func Loopback(addr string) bool {
	host := HostOf(addr)
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// HostOf returns the host of an address: host:port or host. It takes an IPv6 address out of its brackets.
func HostOf(addr string) string {
	if host, _, err := net.SplitHostPort(addr); err == nil {
		return host
	}
	if host, ok := strings.CutPrefix(addr, "["); ok && strings.HasSuffix(host, "]") {
		return strings.TrimSuffix(host, "]")
	}
	return addr
}

// AddrFor returns the address that other nodes should use to reach something bound to addr, on a
// node whose gossip is bound to bind and reached at self. If addr has the host of bind or a
// wildcard, the result has the host of self. An addr without a port stays as it is.
func AddrFor(addr, bind, self string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	ip := net.ParseIP(host)
	if host == "" || ip != nil && ip.IsUnspecified() || host == HostOf(bind) {
		host = HostOf(self)
	}
	return net.JoinHostPort(host, port)
}

// resolve returns the addresses of a host, sorted, IPv4 first.
func (l lookup) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		if a.Zone() != "" {
			return nil, fmt.Errorf("address %s: other nodes cannot use a zone: leave it out", a)
		}
		return []netip.Addr{a.Unmap()}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	addrs, err := l(ctx, host)
	if err != nil {
		return nil, err
	}
	for i, a := range addrs {
		addrs[i] = a.Unmap().WithZone("")
	}
	slices.SortFunc(addrs, func(a, b netip.Addr) int {
		return cmp.Or(cmp.Compare(a.BitLen(), b.BitLen()), a.Compare(b))
	})
	if addrs = slices.Compact(addrs); len(addrs) == 0 {
		return nil, fmt.Errorf("host %q has no address", host)
	}
	return addrs, nil
}

// bindAddr returns the address that Options.Bind names.
func bindAddr(ctx context.Context, l lookup, bind string) (netip.AddrPort, error) {
	if bind == "" {
		return netip.AddrPort{}, errors.New("gossip: bind: must be given as host:port")
	}
	host, port, err := splitAddr(bind, defaultPort)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("gossip: bind: %w", err)
	}
	if host == "" {
		return netip.AddrPortFrom(netip.IPv6Unspecified(), port), nil
	}
	addrs, err := l.resolve(ctx, host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("gossip: bind %q: %w", bind, err)
	}
	if addrs[0].IsMulticast() {
		return netip.AddrPort{}, fmt.Errorf("gossip: bind %q: is a multicast address", bind)
	}
	return netip.AddrPortFrom(addrs[0], port), nil
}

// usable fails if other nodes cannot use an address to reach this node.
func usable(a netip.Addr) error {
	switch {
	case !a.IsValid():
		return errors.New("not an address")
	case a.IsUnspecified():
		return errors.New("is a wildcard")
	case a.IsMulticast():
		return errors.New("is a multicast address")
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return errors.New("is a broadcast address")
	}
	return nil
}

// advertised is the address that other nodes use. Port 0 means the port that this node listens
// on.
type advertised struct {
	addr    netip.AddrPort
	warning string
}

// advertise returns the address that other nodes use: the given one, or that of bind, or, if
// that is a wildcard, one of this machine's addresses.
func (d deps) advertise(ctx context.Context, given string, bind netip.AddrPort) (advertised, error) {
	if given == "" {
		if !bind.Addr().IsUnspecified() {
			return advertised{addr: bind}, nil
		}
		a, warning, err := d.choose(bind.Addr().Is4())
		return advertised{netip.AddrPortFrom(a, bind.Port()), warning}, err
	}
	host, port, err := splitAddr(given, bind.Port())
	if err != nil {
		return advertised{}, fmt.Errorf("gossip: advertise: %w", err)
	}
	if port == 0 && bind.Port() != 0 {
		return advertised{}, fmt.Errorf("gossip: advertise %q: port 0", given)
	}
	if host == "" {
		return advertised{}, fmt.Errorf("gossip: advertise %q: no host", given)
	}
	addrs, err := d.lookup.resolve(ctx, host)
	if err != nil {
		return advertised{}, fmt.Errorf("gossip: advertise %q: %w", given, err)
	}
	if err := usable(addrs[0]); err != nil {
		return advertised{}, fmt.Errorf("gossip: advertise %q: %w", given, err)
	}
	return advertised{addr: netip.AddrPortFrom(addrs[0], port)}, nil
}

// choose picks one of the machine's addresses. It prefers a private address to a global one,
// then IPv4 to IPv6, then the interface with the lowest index, then the lowest address. If
// there are several, the warning names them all.
func (d deps) choose(only4 bool) (netip.Addr, string, error) {
	all, err := d.interfaces()
	if err != nil {
		return netip.Addr{}, "", fmt.Errorf("gossip: interfaces: %w", err)
	}
	classes := make([][]ifaceAddr, 4) // best first
	for _, i := range all {
		a := i.addr
		if !a.IsGlobalUnicast() || usable(a) != nil || (only4 && !a.Is4()) {
			continue // loopback, link-local or unusable
		}
		class := 0
		if !a.IsPrivate() {
			class = 2
		}
		if !a.Is4() {
			class++
		}
		classes[class] = append(classes[class], i)
	}
	for _, c := range classes {
		if len(c) == 0 {
			continue
		}
		slices.SortFunc(c, func(a, b ifaceAddr) int {
			return cmp.Or(cmp.Compare(a.index, b.index), a.addr.Compare(b.addr))
		})
		return c[0].addr, ambiguity(c), nil
	}
	return netip.Addr{}, "", errors.New("gossip: this machine has no address that others could use; set advertise")
}

// ambiguity returns the warning about several candidates. The chosen one comes first.
func ambiguity(c []ifaceAddr) string {
	if len(c) < 2 {
		return ""
	}
	names := make([]string, len(c))
	for i, a := range c {
		names[i] = fmt.Sprintf("%s (%s)", a.addr, a.iface)
	}
	return fmt.Sprintf("several addresses could be advertised to peers: %s; took %s; set advertise to choose",
		strings.Join(names, ", "), c[0].addr)
}
