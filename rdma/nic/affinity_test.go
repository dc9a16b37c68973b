package nic

import "testing"

// TestNearness shows the class of each pair of devices, in the words of nvidia-smi topo.
//
// Source: its legend, as in https://github.com/NVIDIA/nccl/issues/1264.
func TestNearness(t *testing.T) {
	const root = "pci0000:10/10:01.0/"
	for _, c := range []struct {
		name, gpu, nic string
		gpuNode, node  int
		want           string
	}{
		{"functions of one card", root + "11:00.0", root + "11:00.1", 0, 0, "PIX"},
		{"one switch", root + "11:00.0/12:00.0/13:00.0", root + "11:00.0/12:01.0/14:00.0", 0, 0, "PIX"},
		{"one switch, NUMA wrong", root + "11:00.0/12:00.0/13:00.0", root + "11:00.0/12:01.0/14:00.0", 0, 1, "PIX"},
		{"a switch below the other's", root + "11:00.0/12:00.0/13:00.0", root + "11:00.0/12:01.0/14:00.0/15:00.0", 0, 0, "PXB"},
		{"two switches below one", root + "11:00.0/12:00.0/13:00.0/14:00.0/15:00.0", root + "11:00.0/12:01.0/16:00.0/17:00.0/18:00.0", 0, 0, "PXB"},
		{"root ports of one bridge", root + "11:00.0", "pci0000:10/10:02.0/12:00.0", 0, 0, "PHB"},
		{"on the bus of the bridge", "pci0000:10/10:05.0", "pci0000:10/10:06.0", 0, 0, "PHB"},
		{"bridges of one node", root + "11:00.0", "pci0000:20/20:01.0/21:00.0", 1, 1, "NODE"},
		{"bridges of two nodes", root + "11:00.0", "pci0000:20/20:01.0/21:00.0", 0, 1, "SYS"},
		{"node unknown", root + "11:00.0", "pci0000:20/20:01.0/21:00.0", -1, 1, ""},
		{"not on PCI", root + "11:00.0", "", 0, -1, ""},
	} {
		inv := &Inventory{}
		g, d := &GPU{path: expand(c.gpu), NUMA: c.gpuNode}, &Device{path: expand(c.nic), NUMA: c.node}
		if c.nic == "" {
			d.path = ""
		}
		if got := classNames[inv.nearness(g, d).class]; got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

// TestNearest shows that of two devices of one class the one with the longer common path is taken.
func TestNearest(t *testing.T) {
	const up = "p/r/u/"
	inv := &Inventory{GPUs: []GPU{{path: up + "a/b/c/d/e/f", Visible: true}}}
	for _, d := range []struct{ name, path string }{{"farther", up + "x/y"}, {"nearer", up + "a/b/z"}, {"farthest", "p/r/v/w"}} {
		inv.Devices = append(inv.Devices, Device{Name: d.name, Port: 1, State: "ACTIVE", path: d.path})
	}
	plan, err := inv.Plan(ByAffinity, nil)
	if want := "affinity: nearer (GPU 0, PXB)"; err != nil || plan.String() != want {
		t.Errorf("got %v, %v; want %s", plan, err, want)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
