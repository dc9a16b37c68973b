package nic

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The layouts below follow public documents and threads, named with each. These give the addresses
// of the cards and how near they are to each other. The bridges in between are made to match.

// island returns a PCIe switch below its own root port, with devices at consecutive buses on its
// downstream ports.
func island(root string, bridge int) func(bus string) string {
	return func(bus string) string {
		return fmt.Sprintf("pci0000:%s/%s:01.0/%02x:00.0/%02x:%s.0/%s:00.0", root, root, bridge, bridge+1, bus, bus)
	}
}

// dgxH100 is a DGX H100: eight GPUs, each on a switch with a ConnectX-7, and two cards for
// storage.
//
// Source: NVIDIA DGX H100 User Guide, Network Modules, table 6, of which a copy is at
// https://www.easymanua.ls/nvidia/dgx-h100/manual?p=19 (ibp24s0, which is bus 18, is mlx5_0 and
// next to GPU 0, and so on); https://github.com/easydiffusion/torchruntime/issues/24 (addresses
// of the GPUs); https://github.com/NVIDIA/nccl/issues/1264 (PIX, of a like machine).
func dgxH100() machine {
	m := machine{nodes: 2}
	for i, row := range []struct{ root, nic, gpu, name string }{
		{"15", "18", "1b", "mlx5_0"}, {"3d", "40", "43", "mlx5_3"},
		{"4c", "4f", "52", "mlx5_4"}, {"5b", "5e", "61", "mlx5_5"},
		{"97", "9a", "9d", "mlx5_6"}, {"bd", "c0", "c3", "mlx5_9"},
		{"cb", "ce", "d1", "mlx5_10"}, {"d9", "dc", "df", "mlx5_11"},
	} {
		at := island(row.root, 0x16+i)
		m.nics = append(m.nics, nicRow{name: row.name, path: at(row.nic), numa: i / 4, link: "IB", netdev: "ibp" + row.nic})
		m.gpus = append(m.gpus, gpuRow{minor: i, path: at(row.gpu), numa: i / 4})
	}
	m.nics = append(m.nics,
		nicRow{name: "mlx5_1", path: "pci0000:26/26:01.0/29:00.0", numa: 0, link: "IB", netdev: "ibp41s0f0"},
		nicRow{name: "mlx5_2", path: "pci0000:26/26:01.0/29:00.1", numa: 0, link: "RoCE", state: "1: DOWN", netdev: "enp41s0f1np1"},
		nicRow{name: "mlx5_7", path: "pci0000:a7/a7:01.0/aa:00.0", numa: 1, link: "IB", netdev: "ibp170s0f0"},
		nicRow{name: "mlx5_8", path: "pci0000:a7/a7:01.0/aa:00.1", numa: 1, link: "RoCE", state: "1: DOWN", netdev: "enp170s0f1np1"})
	return m
}

// hgxB300 is an HGX B300: the ConnectX-8 contain the switches of the GPUs, and have two RDMA
// devices each.
//
// Source: https://github.com/vllm-project/vllm/pull/43799 (8 GPUs, 16 devices, half of them
// idle when each GPU has one), https://github.com/vllm-project/vllm/pull/44919 (their names and
// two rails), https://github.com/deepseek-ai/DeepEP/issues/590 (PXB),
// https://docs.nvidia.com/ai-enterprise/planning-resource/optimizing-vm-configuration-ai-inference-blackwell-ultra-hgx/latest/appendix.html
// (addresses of the cards).
func hgxB300() machine {
	m := machine{nodes: 2}
	names := []string{"mlx5_0", "mlx5_1", "mlx5_6", "mlx5_7", "mlx5_10", "mlx5_11", "mlx5_12", "mlx5_13",
		"mlx5_14", "mlx5_15", "mlx5_16", "mlx5_17", "mlx5_20", "mlx5_21", "mlx5_22", "mlx5_23"}
	gpus := []int{0x1a, 0x40, 0x62, 0x73, 0x9a, 0xbd, 0xdf, 0xf0}
	for i, bus := range []int{0x17, 0x39, 0x5f, 0x70, 0x97, 0xb9, 0xdc, 0xed} {
		up := fmt.Sprintf("pci0000:%02x/%02x:01.0/%02x:00.0", bus-3, bus-3, bus-2)
		for port := range 2 {
			m.nics = append(m.nics, nicRow{
				name: names[2*i+port], path: fmt.Sprintf("%s/%02x:00.0/%02x:00.%d", up, bus-1, bus, port), numa: i / 4,
				link: "RoCE", netdev: fmt.Sprintf("rail%d%d", i, port),
				gids: fmt.Sprintf("1 fe80::%x:%d v2 rail%[1]d%[2]d; 3 ::ffff:172.%[3]d.0.%[1]d v2 rail%[1]d%[2]d", i+1, port, 16+8*port),
			})
		}
		m.gpus = append(m.gpus, gpuRow{minor: i, numa: i / 4, model: "NVIDIA B300 SXM6 AC",
			path: fmt.Sprintf("%s/%02x:01.0/%02x:00.0/%02x:00.0/%02x:00.0", up, bus-1, bus+1, bus+2, gpus[i])})
	}
	return m
}

// p5 is a p5.48xlarge: eight islands of one H100 and four EFA devices.
//
// Source: https://github.com/whn09/libfabric-efa-demo, src/8_topo.cpp (addresses and
// nodes), https://github.com/aws/aws-ofi-nccl/pull/1226 (islands),
// https://github.com/aws/eks-charts/pull/1110 (names),
// https://github.com/NVIDIA/NVSentinel/pull/1750 (what sysfs says of EFA).
func p5() machine {
	m := machine{nodes: 2}
	for i, bus := range []int{0x4f, 0x60, 0x71, 0x82, 0x93, 0xa4, 0xb5, 0xc6} {
		at := island(fmt.Sprintf("%02x", bus-11), bus-10)
		for n := range 4 {
			m.nics = append(m.nics, nicRow{name: fmt.Sprintf("rdmap%ds0", bus+n), path: at(fmt.Sprintf("%02x", bus+n)),
				numa: i / 4, link: "EFA", driver: "efa"})
		}
		m.gpus = append(m.gpus, gpuRow{minor: i, path: at(fmt.Sprintf("%02x", bus+4)), numa: i / 4})
	}
	return m
}

// dgx2 is a quarter of a DGX-2: two GPUs share a switch with a card, and two such switches hang
// below another.
//
// Source: https://github.com/NVIDIA/nccl-tests/issues/78 (nvidia-smi topo -m: PIX and PXB).
func dgx2() machine {
	const up = "pci0000:30/30:01.0/31:00.0/"
	return machine{nodes: 2,
		nics: []nicRow{
			{name: "mlx5_0", path: up + "32:00.0/33:00.0/34:00.0/35:00.0", link: "IB"},
			{name: "mlx5_1", path: up + "32:04.0/3a:00.0/3b:00.0/3c:00.0", link: "IB"},
		},
		gpus: []gpuRow{
			{minor: 0, path: up + "32:00.0/33:00.0/34:01.0/36:00.0"}, {minor: 1, path: up + "32:00.0/33:00.0/34:02.0/37:00.0"},
			{minor: 2, path: up + "32:04.0/3a:00.0/3b:01.0/3d:00.0"}, {minor: 3, path: up + "32:04.0/3a:00.0/3b:02.0/3e:00.0"},
		}}
}

// vm is a virtual machine whose cards each sit on a root port of their own, as libvirt places
// them.
//
// Source: https://gitlab.com/qemu-project/qemu/-/issues/4409.
func vm() machine {
	return machine{nodes: 1,
		nics: []nicRow{{name: "mlx5_0", path: "pci0000:00/00:02.0/01:00.0", numa: -1, link: "IB"}, {name: "mlx5_1", path: "pci0000:00/00:02.1/02:00.0", numa: -1, link: "IB"}},
		gpus: []gpuRow{{minor: 0, path: "pci0000:00/00:02.2/03:00.0", numa: -1}, {minor: 1, path: "pci0000:00/00:02.3/04:00.0", numa: -1}}}
}

// workstation has one GPU and one card with two ports, on root ports of the processor.
//
// Source: https://github.com/noonghunna/club-3090/issues/1087 (lspci -t); the card at 03 is
// taken to be a ConnectX with two functions.
func workstation() machine {
	return machine{nodes: 1,
		nics: []nicRow{
			{name: "mlx5_0", path: "pci0000:00/00:01.3/03:00.0", numa: -1, link: "RoCE", netdev: "enp3s0f0np0",
				gids: "0 fe80::1 v1 enp3s0f0np0; 1 fe80::1 v2 enp3s0f0np0; 2 ::ffff:192.168.1.5 v1 enp3s0f0np0; 3 ::ffff:192.168.1.5 v2 enp3s0f0np0"},
			{name: "mlx5_1", path: "pci0000:00/00:01.3/03:00.1", numa: -1, link: "RoCE", state: "1: DOWN", netdev: "enp3s0f1np1"},
		},
		gpus: []gpuRow{{minor: 0, path: "pci0000:00/00:01.1/01:00.0", numa: -1, model: "NVIDIA GeForce RTX 5090"}}}
}

// bonded is a node without GPUs whose two ports are one bond.
//
// Source: https://github.com/NVIDIA/nccl/issues/769 (its GID table); of the two interfaces of
// the card the bond has the address, and the GIDs.
func bonded() machine {
	return machine{nodes: 2, nics: []nicRow{{name: "mlx5_bond_0", path: "pci0000:30/30:02.0/31:00.0", link: "RoCE", netdev: "eth2",
		gids: "0 fe80:0000:0000:0000:0ac0:ebff:feda:1cfb v1 bond0; 1 fe80:0000:0000:0000:0ac0:ebff:feda:1cfb v2 bond0;" +
			"2 0000:0000:0000:0000:0000:ffff:c800:d106 v1 bond0; 3 0000:0000:0000:0000:0000:ffff:c800:d106 v2 bond0"}}}
}

// oneFar has cards on the first of two sockets only.
//
// Source: none; machines with one card for all are common.
func oneFar() machine {
	return machine{nodes: 2,
		nics: []nicRow{{name: "mlx5_0", path: "pci0000:20/20:01.0/21:00.0", numa: 0, link: "IB"}},
		gpus: []gpuRow{{minor: 0, path: "pci0000:40/40:01.0/41:00.0", numa: 0}, {minor: 1, path: "pci0000:c0/c0:01.0/c1:00.0", numa: 1}}}
}

// TestMachines shows the plans of affinity, all and single for machines as they are sold (B27, B29,
// E17).
func TestMachines(t *testing.T) {
	for _, c := range []struct {
		name                  string
		m                     machine
		affinity, all, single string
		notes                 []string // parts of the notes of affinity, in order
	}{
		{"DGX H100", dgxH100(),
			"affinity: mlx5_0 (GPU 0, PIX), mlx5_3 (GPU 1, PIX), mlx5_4 (GPU 2, PIX), mlx5_5 (GPU 3, PIX), " +
				"mlx5_6 (GPU 4, PIX), mlx5_9 (GPU 5, PIX), mlx5_10 (GPU 6, PIX), mlx5_11 (GPU 7, PIX)",
			"all, striped: mlx5_0, mlx5_1, mlx5_3, mlx5_4, mlx5_5, mlx5_6, mlx5_7, mlx5_9, mlx5_10, mlx5_11",
			"single: mlx5_0", []string{"left out: mlx5_2 is DOWN, mlx5_8 is DOWN"}},
		{"HGX B300", hgxB300(),
			"affinity: mlx5_0 (GPU 0, PXB), mlx5_1 (GPU 0, PXB), mlx5_6 (GPU 1, PXB), mlx5_7 (GPU 1, PXB), " +
				"mlx5_10 (GPU 2, PXB), mlx5_11 (GPU 2, PXB), mlx5_12 (GPU 3, PXB), mlx5_13 (GPU 3, PXB), " +
				"mlx5_14 (GPU 4, PXB), mlx5_15 (GPU 4, PXB), mlx5_16 (GPU 5, PXB), mlx5_17 (GPU 5, PXB), " +
				"mlx5_20 (GPU 6, PXB), mlx5_21 (GPU 6, PXB), mlx5_22 (GPU 7, PXB), mlx5_23 (GPU 7, PXB)",
			"all, striped: mlx5_0, mlx5_1, mlx5_6, mlx5_7, mlx5_10, mlx5_11, mlx5_12, mlx5_13, " +
				"mlx5_14, mlx5_15, mlx5_16, mlx5_17, mlx5_20, mlx5_21, mlx5_22, mlx5_23",
			"single: mlx5_0", nil},
		{"DGX-2", dgx2(), "affinity: mlx5_0 (GPU 0+1, PIX), mlx5_1 (GPU 2+3, PIX)", "all, striped: mlx5_0, mlx5_1", "single: mlx5_0", nil},
		{"virtual machine", vm(), "affinity: mlx5_0 (GPU 0+1, PHB), mlx5_1 (GPU 0+1, PHB)", "all, striped: mlx5_0, mlx5_1", "single: mlx5_0", nil},
		{"workstation", workstation(), "affinity: mlx5_0 (GPU 0, PHB)", "all: mlx5_0", "single: mlx5_0", []string{"left out: mlx5_1 is DOWN"}},
		{"no GPU", bonded(), "affinity: mlx5_bond_0", "all: mlx5_bond_0", "single: mlx5_bond_0", []string{"there is no NVIDIA GPU"}},
		{"one far", oneFar(), "affinity: mlx5_0 (GPU 0+1, SYS)", "all: mlx5_0", "single: mlx5_0", []string{"GPU 1 is far from any device: the nearest, mlx5_0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inv := c.m.discover(t, "unset")
			for policy, want := range map[Policy]string{ByAffinity: c.affinity, All: c.all, Single: c.single} {
				plan, err := inv.Plan(policy, nil)
				must(t, err)
				if plan.String() != want {
					t.Errorf("%s:\ngot  %s\nwant %s", policy, plan, want)
				}
				if policy == ByAffinity {
					checkNotes(t, plan.Notes, c.notes)
				}
			}
		})
	}
}

// checkNotes compares notes with a part of each.
func checkNotes(t *testing.T, got, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("notes: got %q, want %q", got, want)
		return
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("note %d: got %q, want %q in it", i, got[i], want[i])
		}
	}
}

// TestEFA shows that each GPU of an instance of AWS gets its four devices, in all the most of a
// plan, though they have no GIDs and no addresses.
func TestEFA(t *testing.T) {
	inv := p5().discover(t, "unset")
	plan, err := inv.Plan(ByAffinity, nil)
	must(t, err)
	if len(plan.Rails) != 32 || plan.Striped {
		t.Fatalf("%d rails, striped %v: want 32 that are not", len(plan.Rails), plan.Striped)
	}
	for i, r := range plan.Rails {
		if !slices.Equal(r.GPUs, []int{i / 4}) || r.Path != "PIX" || r.Device.Driver != "efa" {
			t.Errorf("rail %d is %s of driver %s, want it for GPU %d", i, &r, r.Device.Driver, i/4)
		}
	}
	if first := plan.Rails[0].Device; first.Name != "rdmap79s0" || first.LinkLayer != "Unknown" || first.GIDIndex != -1 {
		t.Errorf("the first rail is %+v", first)
	}
	checkNotes(t, plan.Notes, nil)
}

// TestNothing shows that a machine without cards and GPUs can be discovered without error, and has
// no plan.
func TestNothing(t *testing.T) {
	inv := machine{nodes: 1}.discover(t, "unset")
	if len(inv.Devices) != 0 || len(inv.GPUs) != 0 || inv.GPUError != "" {
		t.Errorf("found %+v", inv)
	}
	for _, p := range []Policy{ByGPUIndex, ByAffinity, All, Single} {
		if plan, err := inv.Plan(p, nil); err == nil {
			t.Errorf("%s: planned %s", p, plan)
		}
	}
	if _, err := Discover(Options{Sysfs: t.TempDir() + "/none", GPUs: fixed{}}); err == nil {
		t.Error("found something in a directory that is not there")
	}
}
