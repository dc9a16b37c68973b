//go:build cgo

package nic

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// installed is the NVIDIA library of this machine. All callers use this one. go-nvml keeps the
// symbols of the library loaded last in variables of its own, and only the lock of one Interface
// guards them.
var installed = nvml.New()

// nvidia returns the NVIDIA library of this machine, which may be absent.
func nvidia() Library { return nvmlLibrary{installed} }

// nvmlLibrary asks the NVIDIA Management Library.
type nvmlLibrary struct {
	nvml nvml.Interface
}

// List returns the GPUs that the driver shows. If it fails for some of them, it returns the others
// with the error.
func (l nvmlLibrary) List() ([]GPU, error) {
	switch ret := l.nvml.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return nil, errors.New("no NVIDIA driver: libnvidia-ml.so.1 not found")
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return nil, errors.New("NVIDIA driver not loaded")
	default:
		return nil, fmt.Errorf("NVIDIA library: %w", ret)
	}
	// An error on closing the library would not help any caller.
	defer l.nvml.Shutdown()
	count, ret := l.nvml.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("NVIDIA library: number of GPUs: %w", ret)
	}
	var gpus []GPU
	var lost []string
	for i := range count {
		g, err := l.gpu(i)
		if err != nil {
			lost = append(lost, err.Error())
			continue
		}
		gpus = append(gpus, g)
	}
	if len(lost) > 0 {
		return gpus, fmt.Errorf("NVIDIA library: %s", strings.Join(lost, "; "))
	}
	return gpus, nil
}

// gpu returns the i-th GPU of the library. The library's own numbers count only the GPUs that a
// container was given. The minor number is the same inside and outside.
func (l nvmlLibrary) gpu(i int) (g GPU, err error) {
	device, ret := l.nvml.DeviceGetHandleByIndex(i)
	if ret != nvml.SUCCESS {
		return g, fmt.Errorf("GPU #%d: %w", i, ret)
	}
	pci, ret := device.GetPciInfo()
	if ret != nvml.SUCCESS {
		return g, fmt.Errorf("GPU #%d: PCI address: %w", i, ret)
	}
	busID, _, _ := bytes.Cut(pci.BusId[:], []byte{0})
	g.PCI = normalPCI(string(busID))
	if g.Index, ret = device.GetMinorNumber(); ret != nvml.SUCCESS {
		return g, fmt.Errorf("GPU %s: minor number: %w", g.PCI, ret)
	}
	if g.UUID, ret = device.GetUUID(); ret != nvml.SUCCESS {
		return g, fmt.Errorf("GPU %s: UUID: %w", g.PCI, ret)
	}
	if g.Name, ret = device.GetName(); ret != nvml.SUCCESS {
		return g, fmt.Errorf("GPU %s: name: %w", g.PCI, ret)
	}
	g.mig = migUUIDs(device)
	return g, nil
}

// migUUIDs returns the UUIDs of the MIG devices of a GPU; none if it has no MIG.
func migUUIDs(device nvml.Device) []string {
	count, ret := device.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil
	}
	var uuids []string
	for i := range count {
		// Slots without a device are not found.
		mig, ret := device.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		if uuid, ret := mig.GetUUID(); ret == nvml.SUCCESS {
			uuids = append(uuids, uuid)
		}
	}
	return uuids
}
