//go:build cgo

package nic

import (
	"fmt"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// mockLibrary is the NVIDIA library of a machine with these GPUs.
func mockLibrary(gpus []GPU) *mock.Interface {
	return &mock.Interface{
		InitFunc:           func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:       func() nvml.Return { return nvml.SUCCESS },
		DeviceGetCountFunc: func() (int, nvml.Return) { return len(gpus), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			return mockDevice(gpus[i]), nvml.SUCCESS
		},
	}
}

func mockDevice(g GPU) *mock.Device {
	return &mock.Device{
		GetPciInfoFunc: func() (nvml.PciInfo, nvml.Return) {
			var pci nvml.PciInfo
			copy(pci.BusId[:], g.PCI)
			return pci, nvml.SUCCESS
		},
		GetMinorNumberFunc: func() (int, nvml.Return) { return g.Index, nvml.SUCCESS },
		GetUUIDFunc:        func() (string, nvml.Return) { return g.UUID, nvml.SUCCESS },
		GetNameFunc:        func() (string, nvml.Return) { return g.Name, nvml.SUCCESS },
		GetMaxMigDeviceCountFunc: func() (int, nvml.Return) {
			if g.mig == nil {
				return 0, nvml.ERROR_NOT_SUPPORTED
			}
			return 7, nvml.SUCCESS
		},
		GetMigDeviceHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			// The slots in between are free.
			if i%2 == 1 || i/2 >= len(g.mig) {
				return nil, nvml.ERROR_NOT_FOUND
			}
			return &mock.Device{GetUUIDFunc: func() (string, nvml.Return) { return g.mig[i/2], nvml.SUCCESS }}, nvml.SUCCESS
		},
	}
}

// plan discovers m with the library l and plans by affinity.
func (m machine) plan(t *testing.T, l *mock.Interface, visible string) (*Inventory, *Plan) {
	t.Helper()
	inv, err := Discover(Options{Sysfs: m.build(t), GPUs: nvmlLibrary{l}, Visible: &visible})
	must(t, err)
	plan, err := inv.Plan(ByAffinity, nil)
	must(t, err)
	if started, stopped := len(l.InitCalls()), len(l.ShutdownCalls()); started != 1 || stopped > 1 {
		t.Errorf("library initialized %d times, shut down %d times", started, stopped)
	}
	return inv, plan
}

// TestNVML shows that GPUs are known by minor number, UUID and PCI address, with none, one and
// eight of them (B24, B27).
func TestNVML(t *testing.T) {
	for _, c := range []struct {
		name    string
		m       machine
		visible string
		want    string
	}{
		{"none", bonded(), "0", "affinity: mlx5_bond_0"},
		{"one", workstation(), "0", "affinity: mlx5_0 (GPU 0, PHB)"},
		{"eight, one visible", dgxH100(), "6", "affinity: mlx5_10 (GPU 6, PIX)"},
		{"eight, by UUID", dgxH100(), uuid(7) + ",GPU-2", "affinity: mlx5_4 (GPU 2, PIX), mlx5_11 (GPU 7, PIX)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := mockLibrary(c.m.library().gpus)
			inv, plan := c.m.plan(t, l, c.visible)
			if plan.String() != c.want {
				t.Errorf("got %s, want %s", plan, c.want)
			}
			if len(inv.GPUs) != len(c.m.gpus) || len(l.ShutdownCalls()) != 1 {
				t.Errorf("%d GPUs, %d times shut down", len(inv.GPUs), len(l.ShutdownCalls()))
			}
		})
	}
}

// TestNVMLContainer shows a container that was given GPUs 5 and 2 of eight: the library counts
// them 0 and 1, and their entries of a list of the host are still those of 5 and 2.
func TestNVMLContainer(t *testing.T) {
	m := dgxH100()
	all := m.library().gpus
	inv, plan := m.plan(t, mockLibrary([]GPU{all[5], all[2]}), "0,1")
	if want := "affinity: mlx5_4 (GPU 2, PIX), mlx5_9 (GPU 5, PIX)"; plan.String() != want {
		t.Errorf("got %s, want %s", plan, want)
	}
	list := []string{"mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9"}
	plan, err := inv.Plan(ByGPUIndex, list)
	if want := "gpu_index: mlx5_4 (GPU 2, PIX), mlx5_9 (GPU 5, PIX)"; err != nil || plan.String() != want {
		t.Errorf("got %v, %v; want %s", plan, err, want)
	}
}

// TestNVMLMIG shows that a MIG device counts as the GPU that contains it.
func TestNVMLMIG(t *testing.T) {
	m := dgxH100()
	gpus := m.library().gpus
	gpus[3].mig = []string{"MIG-aaaaaaaa-1111-5222-8333-444444444444", "MIG-bbbbbbbb-1111-5222-8333-444444444444"}
	gpus[4].mig = []string{}
	for _, visible := range []string{gpus[3].mig[1], "MIG-" + uuid(3) + "/2/0"} {
		if _, plan := m.plan(t, mockLibrary(gpus), visible); plan.String() != "affinity: mlx5_5 (GPU 3, PIX)" {
			t.Errorf("%s: got %s", visible, plan)
		}
	}
}

// TestNVMLFails shows the error when the library cannot be used, or a GPU does not answer.
func TestNVMLFails(t *testing.T) {
	m := dgxH100().built(t)
	for ret, want := range map[nvml.Return]string{
		nvml.ERROR_LIBRARY_NOT_FOUND:       "no NVIDIA driver: libnvidia-ml.so.1 not found",
		nvml.ERROR_DRIVER_NOT_LOADED:       "NVIDIA driver not loaded",
		nvml.ERROR_LIB_RM_VERSION_MISMATCH: "NVIDIA library: ERROR_LIB_RM_VERSION_MISMATCH",
	} {
		l := mockLibrary(nil)
		l.InitFunc = func() nvml.Return { return ret }
		inv, plan := m.plan(t, l, "0")
		if inv.GPUError != want || len(inv.GPUs) != 0 || len(plan.Rails) != 10 {
			t.Errorf("got %q, %d GPUs, %s; want %q", inv.GPUError, len(inv.GPUs), plan, want)
		}
		if len(l.ShutdownCalls()) != 0 {
			t.Error("shut down what did not start")
		}
	}
	l := mockLibrary(nil)
	l.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
	if inv, _ := m.plan(t, l, "0"); !strings.Contains(inv.GPUError, "number of GPUs") {
		t.Errorf("got %q", inv.GPUError)
	}

	gpus := m.library().gpus
	for what, breakIt := range map[string]func(*mock.Device){
		"minor number": func(d *mock.Device) {
			d.GetMinorNumberFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
		},
		"UUID": func(d *mock.Device) {
			d.GetUUIDFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }
		},
		"name": func(d *mock.Device) {
			d.GetNameFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }
		},
		"PCI address": func(d *mock.Device) {
			d.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) { return nvml.PciInfo{}, nvml.ERROR_GPU_IS_LOST }
		},
	} {
		l := mockLibrary(gpus)
		l.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
			d := mockDevice(gpus[i])
			switch i {
			case 1:
				breakIt(d)
			case 6:
				return nil, nvml.ERROR_GPU_IS_LOST
			}
			return d, nvml.SUCCESS
		}
		inv, plan := m.plan(t, l, "")
		if len(inv.GPUs) != 6 || !strings.Contains(inv.GPUError, what) || !strings.Contains(inv.GPUError, "#6") {
			t.Errorf("%s: %d GPUs, %q", what, len(inv.GPUs), inv.GPUError)
		}
		if !strings.Contains(fmt.Sprint(plan.Notes), "not all GPUs are known") {
			t.Errorf("notes: %q", plan.Notes)
		}
	}
}

// TestNVMLReal asks the NVIDIA library of this machine, twice at once: there are GPUs, or one
// line that says why not.
func TestNVMLReal(t *testing.T) {
	done := make(chan error, 2)
	for range 2 {
		// Ends with the call.
		go func() {
			gpus, err := nvidia().List()
			for _, g := range gpus {
				if g.UUID == "" || g.PCI == "" || g.Name == "" {
					err = fmt.Errorf("half known: %+v", g)
				}
			}
			if len(gpus) == 0 && err != nil && !strings.Contains(err.Error(), "\n") {
				err = nil
			}
			done <- err
		}()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
