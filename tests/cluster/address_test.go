package cluster

import (
	"os"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestAddresses shows that two nodes find each other and read each other's blocks with each form of an address for bind,
// join and advertise: IPv4 and IPv6, with and without a port, in brackets and bare, and all addresses of the machine.
func TestAddresses(t *testing.T) {
	harness.KvfsOnly(t, "no peers")
	harness.NeedFuse(t)
	net := harness.NewNet(t, 2)
	for i, ip := range []string{"fd00:7::1", "fd00:7::2"} {
		net.Run(i, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=0", "net.ipv6.conf.default.disable_ipv6=0")
		net.Run(i, "ip", "-6", "addr", "add", ip+"/64", "dev", "eth0", "nodad")
	}
	for _, c := range []struct{ bind, advertise, other string }{
		{"[fd00:7::1]", "", "[fd00:7::2]"},
		{"fd00:7::1", "", "fd00:7::2"},
		{"[fd00:7::1]:7946", "", "[fd00:7::2]:7946"},
		{"[::]", "[fd00:7::1]", "[fd00:7::2]"},
		{"::", "fd00:7::1", "[fd00:7::2]"},
		{"0.0.0.0", net.Addr(0), net.Addr(1)},
		{net.Addr(0), "", net.Addr(1)},
	} {
		t.Run(c.bind, func(t *testing.T) {
			var a, b *harness.Daemon
			flags := []string{"--insecure", "--node-name", "a", "--bind", c.bind, "--join", c.other}
			if c.advertise != "" {
				flags = append(flags, "--advertise", c.advertise)
			}
			net.In(0, func() { a = harness.Mount(t, harness.Options{MemorySize: "32MiB", Flags: flags}) })
			net.In(1, func() {
				b = harness.Mount(t, harness.Options{MemorySize: "32MiB", Flags: []string{"--insecure", "--node-name", "b", "--bind", c.other}})
			})
			data := content("x", 1, 64*kib)
			if err := os.WriteFile(a.Path("x"), data, 0o644); err != nil {
				t.Fatal(err)
			}
			harness.Poll(t, "the block is read on the other node", func() bool {
				got, err := os.ReadFile(b.Path("x"))
				return err == nil && string(got) == string(data)
			})
		})
	}
	var d *harness.Daemon
	net.In(0, func() {
		d = harness.Mount(t, harness.Options{MemorySize: "32MiB", Flags: []string{"--bind", "[::1]"}}) // needs no keys
	})
	if _, err := os.Stat(d.Dir); err != nil {
		t.Error(err)
	}
}
