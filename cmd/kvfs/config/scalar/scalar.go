// Package scalar has the values of settings that are more than a number or a word: sizes, durations, and addresses.
// Each has one text form, and an error that says what is wrong with a text and what is wanted.
package scalar

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes, never negative. Its text is a number and a unit: B, KiB, MiB, GiB, TiB (powers of 1024), KB,
// MB, GB, TB (powers of 1000). Only zero may stand without a unit.
type Size int64

// The units of Size.
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
	TiB Size = 1 << 40
)

// sizeUnits holds the units, those first that String prefers.
var sizeUnits = []struct {
	name  string
	bytes Size
}{
	{"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"B", 1},
}

// MaxNumber bounds the digits of a number in text, so that arithmetic on it is bounded too; 2^63 has 19.
const MaxNumber = 40

// ParseSize is the inverse of String. A fraction is fine if it comes to whole
// bytes ("1.5GiB"). It fails with ErrUnit, ErrRange or ErrType.
func ParseSize(s string) (Size, error) {
	text := strings.TrimSpace(s)
	number, unit := SplitNumber(text)
	switch {
	case strings.HasPrefix(number, "-"):
		return 0, Violate(ErrRange, "%q is negative", s)
	case number == "" || len(number) > MaxNumber:
		return 0, Violate(ErrType, "%q is not a size: want a number and a unit, such as 4GiB", s)
	}
	value, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, Violate(ErrType, "%q is not a size: want a number and a unit, such as 4GiB", s)
	}
	if unit == "" {
		if value.Sign() == 0 {
			return 0, nil
		}
		return 0, Violate(ErrUnit, "%q needs a unit: %sB, %sKiB, %sMiB, %sGiB, ...", s, number, number, number, number)
	}
	for _, u := range sizeUnits {
		if u.name == unit {
			return wholeBytes(s, value.Mul(value, new(big.Rat).SetInt64(int64(u.bytes))))
		}
	}
	return 0, Violate(ErrUnit, "%q has the unknown unit %q; one of B, KiB, MiB, GiB, TiB, KB, MB, GB, TB", s, unit)
}

func wholeBytes(s string, bytes *big.Rat) (Size, error) {
	if !bytes.IsInt() {
		return 0, Violate(ErrType, "%q is not a whole number of bytes", s)
	}
	if !bytes.Num().IsInt64() {
		return 0, Violate(ErrRange, "%q is more than %d bytes", s, int64(math.MaxInt64))
	}
	return Size(bytes.Num().Int64()), nil
}

// SplitNumber cuts s after its leading sign, digits and dots.
func SplitNumber(s string) (number, unit string) {
	i := 0
	for i < len(s) && (s[i] >= '0' && s[i] <= '9' || s[i] == '.' || i == 0 && (s[i] == '-' || s[i] == '+')) {
		i++
	}
	return s[:i], strings.TrimSpace(s[i:])
}

// String returns the size exactly, in the unit that gives the smallest whole number; "0" for zero.
func (s Size) String() string {
	if s == 0 {
		return "0"
	}
	best := sizeUnits[len(sizeUnits)-1]
	for _, u := range sizeUnits {
		if s%u.bytes == 0 && u.bytes > best.bytes {
			best = u
		}
	}
	return fmt.Sprintf("%d%s", s/best.bytes, best.name)
}

// MarshalText returns String.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is ParseSize.
func (s *Size) UnmarshalText(text []byte) (err error) {
	*s, err = ParseSize(string(text))
	return err
}

// Duration is a time span, never negative, in the form of Go: 5s, 1m30s, 250ms. Only zero may stand without a unit.
type Duration time.Duration

// ParseDuration is the inverse of String. It fails with ErrUnit, ErrRange or ErrType.
func ParseDuration(s string) (Duration, error) {
	text := strings.TrimSpace(s)
	d, err := time.ParseDuration(text)
	number, unit := SplitNumber(text)
	switch {
	case err == nil && d < 0, err != nil && unit == "" && strings.HasPrefix(number, "-"):
		return 0, Violate(ErrRange, "%q is negative", s)
	case err == nil:
		return Duration(d), nil
	case number != "" && unit == "":
		return 0, Violate(ErrUnit, "%q needs a unit: %sms, %ss, %sm, %sh", s, number, number, number, number)
	}
	return 0, Violate(ErrType, "%q is not a duration: want a number and a unit, such as 30s or 1m30s", s)
}

// String returns the duration without trailing zero units: "1h", not "1h0m0s".
func (d Duration) String() string {
	text := time.Duration(d).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// MarshalText returns String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText is ParseDuration.
func (d *Duration) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDuration(string(text))
	return err
}

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

// lastNumber matches names whose end is a number. None of a host is, so that it is a wrong address, or a port without a host.
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

// ParseSegment reads preferred_segment: the name of a peer, or host:port, in one form. Load takes any text for it, because a
// bad one is a warning and no preference, never a failed start.
func ParseSegment(s string) (string, error) {
	s = strings.TrimSpace(s)
	if s == "" || nodeName.MatchString(s) {
		return s, nil
	}
	host, text, err := net.SplitHostPort(s)
	if err != nil {
		return "", Violate(ErrInvalid, "%q is neither the name of a peer nor host:port, such as 10.0.0.2:7946 or [fd00::2]:7946", s)
	}
	port, err := ParsePort(s, text, 1)
	if bad := CheckHost(s, host); bad != nil || err != nil {
		return "", cmp.Or(bad, err)
	}
	return net.JoinHostPort(host, strconv.Itoa(port)), nil
}

// Kind is a sentinel of which only the identity counts: it adds nothing to the text of the violation that wraps it.
type Kind string

// Error returns the name of the kind.
func (k Kind) Error() string { return string(k) }

// The kinds of violation. Test with errors.Is.
const (
	ErrSyntax    = Kind("syntax")    // not YAML, not JSON, a second document, no mapping
	ErrUnknown   = Kind("unknown")   // a key, variable or flag that does not exist
	ErrDuplicate = Kind("duplicate") // a key given twice
	ErrType      = Kind("type")      // another type than the setting has
	ErrUnit      = Kind("unit")      // a size or duration without a unit, or with an unknown one
	ErrRange     = Kind("range")     // negative, too small, too large
	ErrEnum      = Kind("enum")      // not one of the values
	ErrInvalid   = Kind("invalid")   // any other bad value, or values that exclude each other
)

type violation struct {
	kind Kind
	text string
}

// Violate makes a violation.
func Violate(k Kind, format string, args ...any) error {
	return &violation{kind: k, text: fmt.Sprintf(format, args...)}
}

// Error returns the text.
func (v *violation) Error() string { return v.text }

// Unwrap returns the kind.
func (v *violation) Unwrap() error { return v.kind }
