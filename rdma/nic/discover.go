package nic

import (
	"cmp"
	"os"
	"slices"
	"strings"
)

// Discover looks at the machine. It fails only if sysfs cannot be read; anything missing counts as
// absent. It blocks for as long as the NVIDIA library takes.
func Discover(o Options) (*Inventory, error) {
	fs, err := openSysfs(o)
	if err != nil {
		return nil, err
	}
	inv := &Inventory{distances: fs.distances(), addrs: fs.addrs != nil}
	if inv.Devices, err = fs.devices(); err != nil {
		return nil, err
	}
	library := o.GPUs
	if library == nil {
		library = nvidia()
	}
	gpus, err := library.List()
	if err != nil {
		inv.GPUError = strings.Join(strings.Fields(err.Error()), " ")
	}
	inv.GPUs = append([]GPU{}, gpus...)
	for i := range inv.GPUs {
		g := &inv.GPUs[i]
		g.PCI = normalPCI(g.PCI)
		g.path, g.NUMA = fs.pci("bus/pci/devices/" + g.PCI)
	}
	slices.SortStableFunc(inv.GPUs, func(a, b GPU) int { return cmp.Compare(a.Index, b.Index) })
	list, set := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	if o.Visible != nil {
		list, set = *o.Visible, true
	}
	if note := markVisible(inv.GPUs, list, set, os.Getenv("CUDA_DEVICE_ORDER")); note != "" {
		inv.notes = append(inv.notes, note)
	}
	return inv, nil
}

// visible returns the GPUs that this process may use: the local ones of a plan.
func (inv *Inventory) visible() []*GPU {
	var gpus []*GPU
	for i := range inv.GPUs {
		if inv.GPUs[i].Visible {
			gpus = append(gpus, &inv.GPUs[i])
		}
	}
	return gpus
}

// whyNoGPU says why visible is empty.
func (inv *Inventory) whyNoGPU() string {
	switch {
	case len(inv.GPUs) > 0:
		return "CUDA_VISIBLE_DEVICES shows none of the GPUs"
	case inv.GPUError != "":
		return inv.GPUError
	}
	return "there is no NVIDIA GPU"
}

// natural orders names as people count: mlx5_2 before mlx5_10.
func natural(a, b string) int {
	for a != "" && b != "" {
		na, nb := digits(a), digits(b)
		if na > 0 && nb > 0 {
			x, y := strings.TrimLeft(a[:na], "0"), strings.TrimLeft(b[:nb], "0")
			if c := cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y), cmp.Compare(na, nb)); c != 0 {
				return c
			}
			a, b = a[na:], b[nb:]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

// digits returns how many digits s begins with.
func digits(s string) int {
	return len(s) - len(strings.TrimLeft(s, "0123456789"))
}
