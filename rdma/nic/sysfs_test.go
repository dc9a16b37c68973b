package nic

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestGID shows which entry of a GID table is taken (E17).
func TestGID(t *testing.T) {
	for _, c := range []struct {
		name, gids string
		index      int
		gid        string
		netdev     string
		addrs      string
	}{
		// https://github.com/NVIDIA/nccl/issues/769
		{"IPv4 before link-local", "0 fe80::ac0:ebff:feda:1cfb v1 bond0; 1 fe80::ac0:ebff:feda:1cfb v2 bond0; 2 ::ffff:200.0.209.6 v1 bond0; 3 ::ffff:200.0.209.6 v2 bond0",
			3, "::ffff:200.0.209.6", "bond0", "200.0.209.6 fe80::ac0:ebff:feda:1cfb"},
		// https://github.com/NVIDIA/nccl/issues/1573: a pod whose entries begin at 4.
		{"behind empty entries", "4 fe80::a4ed:ccff:fe8b:1994 v1 net1; 5 fe80::a4ed:ccff:fe8b:1994 v2 net1; 6 0000:0000:0000:0000:0000:ffff:0a98:000c v1 net1; 7 0000:0000:0000:0000:0000:ffff:0a98:000c v2 net1",
			7, "::ffff:10.152.0.12", "net1", "10.152.0.12 fe80::a4ed:ccff:fe8b:1994"},
		// https://github.com/uccl-project/uccl/pull/803: IPv6 only.
		{"global before link-local", "0 fe80::1 v1 eth1; 1 fe80::1 v2 eth1; 2 fd93::5 v1 eth1; 3 fd93::5 v2 eth1", 3, "fd93::5", "eth1", "fd93::5 fe80::1"},
		// https://github.com/openucx/ucx/pull/10939: order of preference.
		{"IPv4 before global", "1 2001:db8::1 v2 eth1; 3 ::ffff:10.0.0.1 v2 eth1", 3, "::ffff:10.0.0.1", "eth1", "10.0.0.1 2001:db8::1"},
		{"numbers, not names", "10 ::ffff:10.0.0.2 v2 eth1; 9 ::ffff:10.0.0.1 v2 eth1", 9, "::ffff:10.0.0.1", "eth1", "10.0.0.1 10.0.0.2"},
		{"first of several, of a VLAN later", "3 ::ffff:10.0.0.1 v2 eth1; 5 ::ffff:10.9.0.1 v2 eth1.9", 3, "::ffff:10.0.0.1", "eth1", "10.0.0.1"},
		{"IPv4 link-local last", "1 ::ffff:169.254.3.4 v2 eth1; 3 fd93::5 v2 eth1", 3, "fd93::5", "eth1", "fd93::5 169.254.3.4"},
		{"link-local only", "0 fe80::1 v1 eth1; 1 fe80::1 v2 eth1", 1, "fe80::1", "eth1", "fe80::1"},
		{"RoCE v1 only", "0 fe80::1 v1 eth1; 2 ::ffff:10.0.0.1 v1 eth1", -1, "", "eth9", ""},
		{"empty", "", -1, "", "eth9", ""},
		{"all zero, with a type", "0 :: v2 eth1", -1, "", "eth9", ""},
		{"nonsense", "0 nonsense v2 eth1", -1, "", "eth9", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := machine{nics: []nicRow{{name: "mlx5_0", path: "pci0000:00/00:01.0/01:00.0", link: "RoCE", netdev: "eth9", gids: c.gids}}}
			d := m.discover(t, "unset").device(t, "mlx5_0")
			if d.GIDIndex != c.index || d.GID != c.gid || d.Netdev != c.netdev {
				t.Errorf("got GID %d %s of %s, want %d %s of %s", d.GIDIndex, d.GID, d.Netdev, c.index, c.gid, c.netdev)
			}
			if got := strings.Trim(strings.Join(strings.Fields(join(d.Addrs)), " "), " "); got != c.addrs {
				t.Errorf("addresses: got %s, want %s", got, c.addrs)
			}
		})
	}
}

func join(addrs []netip.Addr) string {
	var b strings.Builder
	for _, a := range addrs {
		b.WriteString(a.String() + " ")
	}
	return b.String()
}

// TestDevice shows what is read for an InfiniBand device.
func TestDevice(t *testing.T) {
	got := dgxH100().discover(t, "unset").device(t, "mlx5_9")
	want := Device{Name: "mlx5_9", Port: 1, Driver: "mlx5_core", State: "ACTIVE", LinkLayer: "InfiniBand", Rate: "400 Gb/sec (4X NDR)",
		PCI: "0000:c0:00.0", NUMA: 1, Netdev: "ibpc0", GIDIndex: -1}
	if got.path == "" {
		t.Error("no path")
	}
	got.path = ""
	if got.Name != want.Name || got.Port != want.Port || got.Driver != want.Driver || got.State != want.State || got.LinkLayer != want.LinkLayer ||
		got.Rate != want.Rate || got.PCI != want.PCI || got.NUMA != want.NUMA || got.Netdev != want.Netdev || got.GIDIndex != want.GIDIndex || got.GID != "" {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestOrder shows that devices come in numeric order, and GPUs in the order of their minor numbers.
func TestOrder(t *testing.T) {
	m := dgxH100()
	slices.Reverse(m.nics)
	slices.Reverse(m.gpus)
	inv := m.discover(t, "unset")
	var names []string
	for i := range inv.Devices {
		names = append(names, inv.Devices[i].Name)
	}
	if got, want := strings.Join(names, " "), "mlx5_0 mlx5_1 mlx5_2 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_7 mlx5_8 mlx5_9 mlx5_10 mlx5_11"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for i := range inv.GPUs {
		if inv.GPUs[i].Index != i {
			t.Errorf("GPU %d is at %d", inv.GPUs[i].Index, i)
		}
	}
	for _, c := range []struct {
		a, b string
		want int
	}{{"a2", "a10", -1}, {"a10", "a2", 1}, {"a", "a", 0}, {"a", "a0", -1}, {"a01", "a1", 1}, {"a1b3", "a1b20", -1}, {"ab", "a1", 1}, {"", "a", -1},
		{"a18446744073709551617", "a18446744073709551616", 1}} {
		if got := natural(c.a, c.b); got != c.want {
			t.Errorf("natural(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

// TestPorts shows that a device with several ports is one rail, by the first port that is up or by
// the named one.
func TestPorts(t *testing.T) {
	m := machine{nics: []nicRow{{name: "mlx4_0", path: "pci0000:00/00:01.0/01:00.0", link: "IB", driver: "mlx4_core", ports: 2}}}
	root := m.build(t)
	(&tree{t, root}).write("class/infiniband/mlx4_0/ports/1/state", "1: DOWN")
	inv, err := Discover(Options{Sysfs: root, GPUs: fixed{}})
	must(t, err)
	if len(inv.Devices) != 2 || inv.Devices[1].Port != 2 {
		t.Fatalf("got %+v", inv.Devices)
	}
	for _, c := range []struct {
		list []string
		want string
	}{{nil, "all: mlx4_0:2"}, {[]string{"mlx4_0"}, "all: mlx4_0:2"}, {[]string{"mlx4_0:2"}, "all: mlx4_0:2"}} {
		plan, err := inv.Plan(All, c.list)
		if err != nil || plan.String() != c.want {
			t.Errorf("%q: got %v, %v; want %s", c.list, plan, err, c.want)
		}
	}
	(&tree{t, root}).write("class/infiniband/mlx4_0/ports/1/state", "4: ACTIVE")
	if inv, err = Discover(Options{Sysfs: root, GPUs: fixed{}}); err != nil {
		t.Fatal(err)
	}
	plan, err := inv.Plan(All, []string{"mlx4_0:1+mlx4_0:2"})
	if err != nil || plan.String() != "all: mlx4_0" {
		t.Fatalf("got %v, %v", plan, err)
	}
	checkNotes(t, plan.Notes, []string{"mlx4_0:2 is left out: one port of each device"})
}

// TestUsablePort shows that a device with two ports that are up uses the one with an address.
func TestUsablePort(t *testing.T) {
	port := func(n, gid int) Device {
		return Device{Name: "mlx4_0", Port: n, State: "ACTIVE", LinkLayer: "Ethernet", GIDIndex: gid}
	}
	for _, c := range []struct {
		devices []Device
		want    string
	}{
		{[]Device{port(1, -1), port(2, 3)}, "single: mlx4_0:2"},
		{[]Device{port(1, 3), port(2, 3)}, "single: mlx4_0"},
		{[]Device{port(1, -1), port(2, -1)}, "single: mlx4_0"},
	} {
		plan, err := (&Inventory{Devices: c.devices}).Plan(Single, []string{"mlx4_0"})
		if err != nil || plan.String() != c.want {
			t.Errorf("got %v, %v; want %s", plan, err, c.want)
		}
	}
}

// TestOddPlaces shows devices that are no plain PCI functions: in software, a part of a function,
// and one of a virtual machine whose functions are below its bus.
func TestOddPlaces(t *testing.T) {
	m := machine{nodes: 2, nics: []nicRow{
		{name: "rxe0", link: "RoCE", driver: "rdma_rxe", netdev: "eth0", gids: "1 ::ffff:10.0.0.1 v2 eth0"},
		{name: "siw0", link: "iWARP", driver: "siw"},
		{name: "irdma0", path: "pci0000:80/80:01.0/81:00.0", numa: 1, link: "iWARP", driver: "irdma", netdev: "eth3"},
	}}
	root := m.build(t)
	tr := &tree{t, root}
	// A sub-function of mlx5, which is a device below the PCI function.
	function := tr.function("pci0000:30/30:01.0/31:00.0", 1, "mlx5_core")
	tr.write(function+"/mlx5_core.sf.2/infiniband/mlx5_2/ports/1/state", "4: ACTIVE")
	tr.write(function+"/mlx5_core.sf.2/infiniband/mlx5_2/ports/1/link_layer", "InfiniBand")
	tr.link(function+"/mlx5_core.sf.2/infiniband/mlx5_2/device", function+"/mlx5_core.sf.2")
	tr.link("class/infiniband/mlx5_2", function+"/mlx5_core.sf.2/infiniband/mlx5_2")
	// Hyper-V.
	function = "devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:01/47505500-0001-0000-3130-444531454238/pci0101:00/0101:00:00.0"
	tr.write(function+"/numa_node", "0")
	tr.write(function+"/infiniband/mlx5_ib0/ports/1/state", "4: ACTIVE")
	tr.write(function+"/infiniband/mlx5_ib0/ports/1/link_layer", "InfiniBand")
	tr.link(function+"/infiniband/mlx5_ib0/device", function)
	tr.link("class/infiniband/mlx5_ib0", function+"/infiniband/mlx5_ib0")

	inv, err := Discover(Options{Sysfs: root, GPUs: fixed{}})
	must(t, err)
	for _, want := range []Device{
		{Name: "rxe0", Driver: "rdma_rxe", NUMA: -1, Netdev: "eth0", GIDIndex: 1},
		{Name: "siw0", Driver: "siw", NUMA: -1, GIDIndex: -1},
		{Name: "irdma0", Driver: "irdma", PCI: "0000:81:00.0", NUMA: 1, Netdev: "eth3", GIDIndex: -1},
		{Name: "mlx5_2", PCI: "0000:31:00.0", NUMA: 1, GIDIndex: -1},
		{Name: "mlx5_ib0", PCI: "0101:00:00.0", NUMA: 0, GIDIndex: -1},
	} {
		d := inv.device(t, want.Name)
		if d.Driver != want.Driver || d.PCI != want.PCI || d.NUMA != want.NUMA || d.Netdev != want.Netdev || d.GIDIndex != want.GIDIndex {
			t.Errorf("%s: got %+v, want %+v", want.Name, d, want)
		}
		if !d.usable() {
			t.Errorf("%s is not usable", want.Name)
		}
	}
}

// TestAddressNotes shows the notes for devices that peers cannot reach, and that a RoCE port
// without an address is chosen only if it is named.
func TestAddressNotes(t *testing.T) {
	m := machine{nics: []nicRow{
		{name: "mlx5_0", path: "pci0000:00/00:01.0/01:00.0", link: "IB", netdev: "ib0"},
		{name: "mlx5_1", path: "pci0000:00/00:01.0/01:00.1", link: "RoCE", netdev: "eth1"},
		{name: "mlx5_2", path: "pci0000:00/00:02.0/02:00.0", link: "RoCE", netdev: "eth2", gids: "1 fe80::1 v2 eth2"},
	}}
	local := netip.MustParseAddr("fe80::1")
	inv, err := Discover(Options{Sysfs: m.build(t), GPUs: fixed{}, addrs: func(netdev string) []netip.Addr {
		if netdev == "eth2" {
			return []netip.Addr{local}
		}
		return nil
	}})
	must(t, err)
	for _, c := range []struct {
		list  []string
		rails int
		notes []string
	}{
		{nil, 2, []string{
			"mlx5_1 has no RoCE v2 GID and is left out: give eth1 an IP address",
			"mlx5_0 has no IP address, by which connections are made: give ib0 one",
			"mlx5_2 has only a link-local address",
			"mlx5_0 is InfiniBand and mlx5_2 is Ethernet"}},
		{[]string{"mlx5_1"}, 1, []string{"mlx5_1 has no RoCE v2 GID: give eth1 an IP address"}},
	} {
		plan, err := inv.Plan(All, c.list)
		must(t, err)
		if len(plan.Rails) != c.rails {
			t.Errorf("got %s, want %d rails", plan, c.rails)
		}
		checkNotes(t, plan.Notes, c.notes)
	}
}

// TestLive shows that this machine can be discovered, whatever it is, and that the loopback
// interface has its usual addresses.
func TestLive(t *testing.T) {
	if _, err := Discover(Options{GPUs: fixed{}}); err != nil {
		t.Error(err)
	}
	if addrs := interfaceAddrs("lo"); !slices.Contains(addrs, netip.MustParseAddr("127.0.0.1")) {
		t.Skipf("lo is not as usual: %v", addrs)
	}
	if addrs := interfaceAddrs("no-such-interface"); addrs != nil {
		t.Errorf("got %v", addrs)
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string][]int{"": nil, "0": {0}, "0-3": {0, 1, 2, 3}, "0,2-3": {0, 2, 3}, "x": nil, "1-": nil, "-1": nil} {
		if got := parseNodes(text); !slices.Equal(got, want) {
			t.Errorf("parseNodes(%q) = %v, want %v", text, got, want)
		}
	}
	if got := parseNodes("0-999999999"); len(got) != 1024 {
		t.Errorf("%d nodes", len(got))
	}
	for address, want := range map[string]string{"00000000:1B:00.0": "0000:1b:00.0", "0000:1b:00.0": "0000:1b:00.0", "00010000:01:00.0": "10000:01:00.0", "x": "x", "": ""} {
		if got := normalPCI(address); got != want {
			t.Errorf("normalPCI(%q) = %q, want %q", address, got, want)
		}
	}
	for _, c := range []struct {
		a, b         string
		common, rest int
	}{
		{"p/a/b/c/d", "p/a/b/c/d", 5, 0}, {"p/a/b/c", "p/a/x/y/z", 2, 3}, {"p/a", "q/b", 0, 2}, {"", "p/a", 0, 0}, {"p/a/b", "p/c/d", 1, 2},
	} {
		if common, rest := part(c.a, c.b); common != c.common || rest != c.rest {
			t.Errorf("part(%q, %q) = %d, %d; want %d, %d", c.a, c.b, common, rest, c.common, c.rest)
		}
	}
	if filepath.Base(expand("pci0000:15/15:01.0")) != "0000:15:01.0" {
		t.Error("the tests lay out something else")
	}
}
