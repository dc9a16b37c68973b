package gossip

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestSplitAddr shows the forms of addresses, IPv6 too (E2), and what is refused.
func TestSplitAddr(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   string
		host string
		port uint16
		bad  string // in the error
	}{
		{in: "h", host: "h", port: 7946},
		{in: "h:1", host: "h", port: 1},
		{in: "h:0", host: "h"},
		{in: "a-b.c_d.:65535", host: "a-b.c_d.", port: 65535},
		{in: "10.0.0.1", host: "10.0.0.1", port: 7946},
		{in: "10.0.0.1:9", host: "10.0.0.1", port: 9},
		{in: ":9", port: 9},
		{in: "", port: 7946},
		{in: "::1", host: "::1", port: 7946},
		{in: "::", host: "::", port: 7946},
		{in: "[::1]", host: "::1", port: 7946},
		{in: "[::]:0", host: "::"},
		{in: "[fd00::1]:9", host: "fd00::1", port: 9},
		{in: "h:", bad: `port ""`},
		{in: "h:65536", bad: `port "65536"`},
		{in: "h:-1", bad: `port "-1"`},
		{in: "h:http", bad: `port "http"`},
		{in: "[::1", bad: "missing ]"},
		{in: "[::1]9", bad: "after ]"},
		{in: "[h]:9", bad: "not an IPv6 address"},
		{in: "[10.0.0.1]:9", bad: "not an IPv6 address"},
		{in: "a:b:c", bad: "colon"},
		{in: "fd00::1:99999", bad: "colon"},
		{in: "ho st:1", bad: "' '"},
		{in: "name/host:1", bad: "'/'"},
		{in: strings.Repeat("x", 300), bad: "too long"},
	} {
		host, port, err := splitAddr(c.in, defaultPort)
		if c.bad != "" {
			if err == nil {
				t.Errorf("%q: taken as %q, %d", c.in, host, port)
			} else if text := err.Error(); !strings.Contains(text, c.bad) {
				t.Errorf("%q: %q does not tell of %s", c.in, text, c.bad)
			}
			continue
		}
		if err != nil || host != c.host || port != c.port {
			t.Errorf("%q: %q, %d, %v; want %q, %d", c.in, host, port, err, c.host, c.port)
		}
		if got := HostOf(c.in); got != c.host && c.host != "" {
			t.Errorf("%q: host %q, want %q", c.in, got, c.host)
		}
	}
}

// TestAddrFor shows which addresses get the host of the gossip, and which only this machine reaches.
func TestAddrFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		addr, bind, want string
		local            bool // addr
	}{
		{"0.0.0.0:5", "0.0.0.0:1", "10.0.0.9:5", false},
		{":5", "host:1", "10.0.0.9:5", false},
		{"[::]:5", "host:1", "10.0.0.9:5", false},
		{"host:5", "host:1", "10.0.0.9:5", false},
		{"10.0.0.1:5", "0.0.0.0:1", "10.0.0.1:5", false},
		{"127.0.0.1:5", "0.0.0.0:1", "127.0.0.1:5", true},
		{"[::1]:5", "0.0.0.0:1", "[::1]:5", true},
		{"localhost:5", "localhost:1", "10.0.0.9:5", true},
		{"name", "name", "name", false},
		{"::1", "0.0.0.0:1", "::1", true},
	} {
		if got, local := AddrFor(c.addr, c.bind, "10.0.0.9:1"), Loopback(c.addr); got != c.want || local != c.local {
			t.Errorf("%s, gossip at %s: %s, loopback %v; want %s, %v", c.addr, c.bind, got, local, c.want, c.local)
		}
	}
}

func interfaces(addrs ...string) func() ([]ifaceAddr, error) {
	return func() ([]ifaceAddr, error) {
		var all []ifaceAddr
		for i, a := range addrs {
			name, ip, _ := strings.Cut(a, "=")
			index := slices.IndexFunc(all, func(x ifaceAddr) bool { return x.iface == name })
			if index < 0 {
				index = i
			} else {
				index = all[index].index
			}
			all = append(all, ifaceAddr{name, index, netip.MustParseAddr(ip)})
		}
		return all, nil
	}
}

// TestAdvertise shows the choice of the address that others use: it is the one given or
// bound (E9), else it is found among the interfaces only (E7), the same one every time;
// a choice that may be wrong is warned of, with all candidates and the remedy.
func TestAdvertise(t *testing.T) {
	t.Parallel()
	const lo, ll = "lo=127.0.0.1", "eth0=fe80::1"
	for _, c := range []struct {
		name      string
		bind      string
		advertise string
		ifaces    []string
		want      string
		warn      []string // in the warning; none: no warning
		bad       string
	}{
		{name: "bound", bind: "10.0.0.1:7", want: "10.0.0.1:7"},
		{name: "bound to loopback", bind: "127.0.0.1:7", want: "127.0.0.1:7"},
		{name: "given", bind: "0.0.0.0:7", advertise: "192.0.2.9:8", want: "192.0.2.9:8"},
		{name: "given without port", bind: "0.0.0.0:7", advertise: "192.0.2.9", want: "192.0.2.9:7"},
		{name: "given while the port is open", bind: "0.0.0.0:0", advertise: "192.0.2.9", want: "192.0.2.9:0"},
		{name: "given IPv6", bind: "[::]:7", advertise: "[fd00::9]:8", want: "[fd00::9]:8"},
		{name: "given as a name", bind: "0.0.0.0:7", advertise: "me.test", want: "10.1.1.1:7"},
		{name: "one private", bind: "0.0.0.0:7", ifaces: []string{lo, ll, "eth0=10.0.0.5"}, want: "10.0.0.5:7"},
		{name: "private before global", bind: "0.0.0.0:7", ifaces: []string{lo, "eth0=8.8.8.8", "eth1=192.168.0.2"}, want: "192.168.0.2:7"},
		{name: "one global", bind: "0.0.0.0:7", ifaces: []string{lo, "eth0=8.8.8.8"}, want: "8.8.8.8:7"},
		{name: "IPv4 of both", bind: "[::]:7", ifaces: []string{lo, "eth0=fd00::5", "eth0=10.0.0.5"}, want: "10.0.0.5:7"},
		{name: "private IPv6 before global IPv4", bind: "[::]:7", ifaces: []string{"eth0=8.8.8.8", "eth0=fd00::5"}, want: "[fd00::5]:7"},
		{name: "no IPv6 on an IPv4 wildcard", bind: "0.0.0.0:7", ifaces: []string{"eth0=fd00::5", "eth1=8.8.8.8"}, want: "8.8.8.8:7"},
		{name: "empty host", bind: ":7", ifaces: []string{"eth0=2001:db8::1"}, want: "[2001:db8::1]:7"},
		{name: "several", bind: "0.0.0.0:7", ifaces: []string{lo, "eth0=10.0.0.9", "docker0=172.17.0.1", "eth0=10.0.0.5"}, want: "10.0.0.5:7",
			warn: []string{"10.0.0.5 (eth0), 10.0.0.9 (eth0), 172.17.0.1 (docker0)", "took 10.0.0.5", "set advertise"}},
		{name: "several global", bind: "0.0.0.0:7", ifaces: []string{"b=9.9.9.9", "a=8.8.8.8"}, want: "9.9.9.9:7",
			warn: []string{"9.9.9.9 (b), 8.8.8.8 (a)"}},
		{name: "none", bind: "0.0.0.0:7", ifaces: []string{lo, ll}, bad: "set advertise"},
		{name: "wildcard", bind: "0.0.0.0:7", advertise: "0.0.0.0:8", bad: "wildcard"},
		{name: "IPv6 wildcard", bind: "0.0.0.0:7", advertise: "::", bad: "wildcard"},
		{name: "multicast", bind: "0.0.0.0:7", advertise: "224.0.0.1", bad: "multicast"},
		{name: "broadcast", bind: "0.0.0.0:7", advertise: "255.255.255.255:8", bad: "broadcast"},
		{name: "port 0", bind: "0.0.0.0:7", advertise: "10.0.0.1:0", bad: "port 0"},
		{name: "no host", bind: "0.0.0.0:7", advertise: ":8", bad: "no host"},
		{name: "bad port", bind: "0.0.0.0:7", advertise: "h:x", bad: `port "x"`},
		{name: "unknown name", bind: "0.0.0.0:7", advertise: "nobody.test", bad: "nobody.test"},
		{name: "zone", bind: "0.0.0.0:7", advertise: "fe80::1%eth0", bad: "zone"},
		{name: "bind with a bad port", bind: "127.0.0.1:x", bad: `port "x"`},
		{name: "bind to an unknown name", bind: "nobody.test:7", bad: "nobody.test"},
		{name: "bind to multicast", bind: "224.0.0.1:7", bad: "multicast"},
		{name: "bind to a name", bind: "me.test", want: "10.1.1.1:7946"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dns := &names{}
			dns.set("me.test", "fd00::1", "10.1.1.1")
			d := deps{lookup: dns.lookup, interfaces: interfaces(c.ifaces...)}
			adv, err := advertiseFor(t.Context(), d, c.bind, c.advertise)
			if c.bad != "" {
				if err == nil {
					t.Fatalf("taken as %v", adv.addr)
				} else if text := err.Error(); !strings.Contains(text, c.bad) {
					t.Fatalf("%q does not tell of %s", text, c.bad)
				}
				return
			}
			if err != nil || adv.addr.String() != c.want {
				t.Fatalf("got %v, %v; want %s", adv.addr, err, c.want)
			}
			if (adv.warning == "") != (len(c.warn) == 0) {
				t.Errorf("warning %q", adv.warning)
			}
			for _, w := range c.warn {
				if !strings.Contains(adv.warning, w) {
					t.Errorf("%q does not tell of %q", adv.warning, w)
				}
			}
		})
	}
}

func advertiseFor(ctx context.Context, d deps, bind, given string) (advertised, error) {
	b, err := bindAddr(ctx, d.lookup, bind)
	if err != nil {
		return advertised{}, err
	}
	return d.advertise(ctx, given, b)
}

// TestAmbiguousIsToldOnce shows that a node on a wildcard starts on a machine with
// several addresses (E10), warns once, and answers on all.
func TestAmbiguousIsToldOnce(t *testing.T) {
	t.Parallel()
	d := deps{interfaces: interfaces("a=10.9.9.9", "b=10.9.9.8")}
	a := start(t, "a", d, func(o *Options) { o.Bind = "0.0.0.0:0" })
	if n := a.warned("set advertise"); n != 1 || !strings.Contains(a.Ambiguous(), "10.9.9.8 (b)") {
		t.Errorf("%d warnings; ambiguous is %q", n, a.Ambiguous())
	}
	if host, port, _ := strings.Cut(a.Self().Addr, ":"); host != "10.9.9.9" || port == "0" {
		t.Errorf("advertises %s", a.Self().Addr)
	}
	fails := func() ([]ifaceAddr, error) { return nil, errors.New("no interfaces today") }
	if _, err := tryStart(t, "b", deps{interfaces: fails}, func(o *Options) { o.Bind = "0.0.0.0:0" }); err == nil {
		t.Error("opened without knowing an address")
	}
}

// TestFamilies shows nodes on IPv6, and that a wildcard of both families hears both.
func TestFamilies(t *testing.T) {
	t.Parallel()
	d := deps{tune: calm}
	six, err := tryStart(t, "six", d, func(o *Options) { o.Bind = "[::1]:0" })
	if err != nil {
		t.Skipf("no IPv6: %v", err)
	}
	both := start(t, "both", d, func(o *Options) { o.Bind, o.Advertise = "[::]:0", "::1"; seeds(six)(o) }).join(t)
	waitSees(t, six, both)
	port := netip.MustParseAddrPort(both.Self().Addr).Port()
	four := start(t, "four", d, func(o *Options) {
		o.Bind = "[::]:0"
		o.Advertise = "127.0.0.1"
		o.Join = []string{netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port).String()}
	}).join(t)
	waitSees(t, both, four, six)
	if s := both.Stats(); s.Rejected != 0 {
		t.Errorf("%d rejected", s.Rejected)
	}
}
