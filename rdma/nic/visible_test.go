package nic

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestVisible shows which GPUs are local under CUDA_VISIBLE_DEVICES, and that their numbers stay
// the physical ones (B27). The minor numbers of this machine run against the order of the bus, as
// on some machines.
func TestVisible(t *testing.T) {
	gpus := func() []GPU {
		var gpus []GPU
		for i := range 4 {
			gpus = append(gpus, GPU{Index: 3 - i, UUID: uuid(3 - i), PCI: fmt.Sprintf("0000:%d0:00.0", i+1), Name: "H100",
				mig: []string{fmt.Sprintf("MIG-%d0000000-1111-5222-8333-444444444444", i), fmt.Sprintf("MIG-%d0000001-1111-5222-8333-444444444444", i)}})
		}
		return gpus
	}
	for _, c := range []struct{ name, list, want string }{
		{"unset", "unset", "3 2 1 0"},
		{"empty", "", ""},
		{"blank", " ", ""},
		{"one, in the order of the bus", "0", "3"},
		{"several", "2,0", "3 1"},
		{"spaces", " 1 , 2 ", "2 1"},
		{"-1 ends it", "0,-1,1", "3"},
		{"only -1", "-1", ""},
		{"beyond the last ends it", "1,4,0", "2"},
		{"nonsense ends it", "1,x,0", "2"},
		{"an empty entry ends it", "1,,0", "2"},
		{"twice", "1,1", "2"},
		{"NoDevFiles", "NoDevFiles", ""},
		{"UUID", uuid(2), "2"},
		{"UUIDs", uuid(0) + "," + uuid(3), "3 0"},
		{"UUID in capitals", strings.ToUpper(uuid(1)), "1"},
		{"beginning of a UUID", "GPU-2", "2"},
		{"beginning of all UUIDs", "GPU-", ""},
		{"unknown UUID ends it", "GPU-2,GPU-9,GPU-1", "2"},
		{"UUID without GPU-", uuid(2)[4:], ""},
		{"MIG", "MIG-20000001-1111-5222-8333-444444444444", "1"},
		{"beginning of a MIG", "MIG-2", "1"},
		{"MIG of an older driver", "MIG-" + uuid(2) + "/1/0", "2"},
		{"MIG of an older driver, beginning", "MIG-GPU-2/1/0", "2"},
		{"unknown MIG", "MIG-9", ""},
		{"MIG of any", "MIG-", ""},
		{"mixed", "0,GPU-0", "3 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			gpus := gpus()
			if note := markVisible(gpus, c.list, c.list != "unset", ""); note != "" {
				t.Errorf("note %q", note)
			}
			var got []string
			for _, g := range gpus {
				if g.Visible {
					got = append(got, fmt.Sprint(g.Index))
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("got %s, want %s", strings.Join(got, " "), c.want)
			}
		})
	}
}

// TestVisibleModels shows a note that numbers are uncertain where CUDA sorts GPUs of different
// models by speed, which only CUDA knows.
func TestVisibleModels(t *testing.T) {
	for _, c := range []struct {
		list, order string
		want        bool
	}{{"0", "", true}, {"0", "FASTEST_FIRST", true}, {"0", "PCI_BUS_ID", false}, {"GPU-0", "", false}, {"", "", false}} {
		gpus := []GPU{{Index: 0, UUID: uuid(0), PCI: "0000:01:00.0", Name: "A"}, {Index: 1, UUID: uuid(1), PCI: "0000:02:00.0", Name: "B"}}
		if note := markVisible(gpus, c.list, true, c.order); (note != "") != c.want {
			t.Errorf("%q with order %q: note %q", c.list, c.order, note)
		}
	}
	m := workstation()
	m.gpus = append(m.gpus, gpuRow{minor: 1, path: "pci0000:00/00:01.2/02:00.0", model: "NVIDIA GeForce RTX 3060"})
	plan, err := m.discover(t, "1").Plan(ByAffinity, nil)
	if err != nil || !strings.Contains(strings.Join(plan.Notes, "; "), "set CUDA_DEVICE_ORDER=PCI_BUS_ID") {
		t.Errorf("got %v, %v", plan, err)
	}
}

// TestVisibleEnvironment shows that the variable of this process counts by default.
func TestVisibleEnvironment(t *testing.T) {
	m := dgxH100()
	o := Options{Sysfs: m.build(t), GPUs: m.library()}
	check := func(want int) {
		t.Helper()
		inv, err := Discover(o)
		must(t, err)
		if got := len(inv.visible()); got != want {
			t.Errorf("%d GPUs are visible, want %d", got, want)
		}
	}
	t.Setenv("CUDA_VISIBLE_DEVICES", "1,2")
	check(2)
	t.Setenv("CUDA_VISIBLE_DEVICES", "")
	check(0)
	must(t, os.Unsetenv("CUDA_VISIBLE_DEVICES"))
	check(8)
}

func FuzzVisible(f *testing.F) {
	for _, seed := range []string{"", "0", "0,-1", "GPU-0,1", "MIG-GPU-1/0/0", "MIG-", "99999999999999999999"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, list string) {
		gpus := []GPU{{UUID: uuid(0), PCI: "0000:01:00.0", mig: []string{"MIG-1"}}, {Index: 1, UUID: uuid(1), PCI: "0000:02:00.0"}}
		markVisible(gpus, list, true, "")
		if list == "" && (gpus[0].Visible || gpus[1].Visible) {
			t.Error("an empty list shows a GPU")
		}
	})
}
