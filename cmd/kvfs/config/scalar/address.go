package scalar

import (
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// DefaultPort is the port of addresses of peers that leave it out.
const DefaultPort = 7946

// HostPort splits an address of a peer, "host" or "host:port", that CheckListen accepts.
// IPv6 addresses may stand in brackets, and have to with a port.
func HostPort(s string) (host string, port int, err error) {
	bare := strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	if ip, err := netip.ParseAddr(bare); err == nil && ip.Is6() && len(s)-len(bare) != 1 {
		return bare, DefaultPort, nil
	}
	host, port = s, DefaultPort
	if strings.ContainsAny(s, ":[]") {
		var text string
		if host, text, err = net.SplitHostPort(s); err != nil {
			return "", 0, Violate(ErrInvalid, "%q is not host or host:port, such as 10.0.0.1:7946, [fd00::1]:7946 or node-1", s)
		}
		if port, err = ParsePort(s, text, 0); err != nil {
			return "", 0, err
		}
	}
	if err := CheckHost(s, host); err != nil {
		return "", 0, err
	}
	return host, port, nil
}

// ParsePort wants a number of at least least. s is the address that it is part of.
func ParsePort(s, text string, least int) (int, error) {
	port, err := strconv.ParseUint(text, 10, 16) // takes no sign
	if err != nil || int(port) < least {
		return 0, Violate(ErrRange, "%q has the port %q: want %d to 65535", s, text, least)
	}
	return int(port), nil
}

// hostName matches the names that a host can have.
var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?\.?$`)

// lastNumber matches names whose end is a number. None of a host is, so that it is a
// wrong address, or a port without a host.
var lastNumber = regexp.MustCompile(`(^|\.)[0-9]+\.?$`)

// CheckHost wants an IP address or a name. s is the address that it is part of.
func CheckHost(s, host string) error {
	if _, err := netip.ParseAddr(host); err == nil {
		return nil
	}
	switch {
	case host == "":
		return Violate(ErrInvalid, "%q has no host: for all addresses of the machine write 0.0.0.0 or [::]", s)
	case !hostName.MatchString(host):
		return Violate(ErrInvalid, "%q has the host %q, which is neither a name nor an IP address", s, host)
	case lastNumber.MatchString(host):
		return Violate(ErrInvalid, "%q has the host %q, which is not an IP address, and ends in a number as no name does", s, host)
	}
	return nil
}

// CheckListen wants an address to listen on; port 0 is a free one.
func CheckListen(s string) error {
	_, _, err := HostPort(s)
	return err
}

// CheckAddress wants an address to connect to.
func CheckAddress(s string) error {
	host, port, err := HostPort(s)
	if err != nil {
		return err
	}
	if port == 0 {
		return Violate(ErrRange, "%q has the port 0: want 1 to 65535", s)
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		return Violate(ErrInvalid, "%q cannot be reached: it stands for all addresses of a machine", s)
	}
	return nil
}

// IsLoopback reports whether only this machine can reach an address. A name other than
// localhost may mean any address. No host means all addresses.
func IsLoopback(s string) bool {
	host, _, err := net.SplitHostPort(s)
	if err != nil {
		if host, _, err = HostPort(s); err != nil {
			return false
		}
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return strings.EqualFold(strings.TrimSuffix(host, "."), "localhost")
	}
	return ip.Unmap().IsLoopback()
}

// nodeName matches the names of peers and zones.
var nodeName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// CheckName wants the name of a peer or a zone.
func CheckName(s string) error {
	if !nodeName.MatchString(s) {
		return Violate(ErrInvalid, "%q is not a name: want 1 to 64 letters, digits, dots, dashes and underscores", s)
	}
	return nil
}

// word matches the names of congestion controls, at most 15 characters in Linux.
var word = regexp.MustCompile(`^[A-Za-z0-9_]{1,15}$`)

// CheckWord wants the name of a congestion control.
func CheckWord(s string) error {
	if !word.MatchString(s) {
		return Violate(ErrInvalid, "%q is not a name: want 1 to 15 letters, digits and underscores", s)
	}
	return nil
}

// Segment says which peer is preferred: by its name, or by host and port. The zero
// Segment is no preference.
type Segment struct {
	Name string
	Host string // empty if Name is set
	Port int    // 1 to 65535 with Host
}

// ParseSegment reads preferred_segment: the name of a peer, or host:port. Load takes
// any text for it, because a bad one is a warning and no preference, never a failed
// start.
func ParseSegment(s string) (Segment, error) {
	s = strings.TrimSpace(s)
	switch {
	case s == "":
		return Segment{}, nil
	case nodeName.MatchString(s):
		return Segment{Name: s}, nil
	}
	host, text, err := net.SplitHostPort(s)
	if err != nil {
		return Segment{}, Violate(ErrInvalid, "%q is neither the name of a peer nor host:port, such as 10.0.0.2:7946 or [fd00::2]:7946", s)
	}
	if err := CheckHost(s, host); err != nil {
		return Segment{}, err
	}
	port, err := ParsePort(s, text, 1)
	if err != nil {
		return Segment{}, err
	}
	return Segment{Host: host, Port: port}, nil
}
