package nic

import (
	"errors"
	"net/netip"
)

// Device is a port of an RDMA device.
type Device struct {
	Name      string `json:"name" help:"name of the card"`
	Port      int    `json:"port" help:"port, from 1" kind:"number"`
	Driver    string `json:"driver" help:"driver"`
	State     string `json:"state" help:"state of the port: 'ACTIVE', 'DOWN'"`
	LinkLayer string `json:"link_layer" help:"link layer"`
	Rate      string `json:"rate,omitempty" help:"rate in the words of the kernel"`
	PCI       string `json:"pci,omitempty" help:"PCI address; absent for a virtual card"`
	NUMA      int    `json:"numa" help:"NUMA node; -1: unknown" kind:"number"`
	Netdev    string `json:"netdev,omitempty" help:"network interface"`
	GIDIndex  int    `json:"gid_index" help:"index of the RoCE v2 GID; -1: none" kind:"number"`
	GID       string `json:"gid,omitempty" help:"the GID"`

	Addrs []netip.Addr `json:"addrs,omitempty" help:"addresses of the interface"`

	path  string // from the host bridge to the PCI device, as below /sys/devices; empty: not on PCI
	iwarp bool   // reaches peers by IP addresses; needs no GID
}

// Active reports whether the device can carry bytes.
func (d *Device) Active() bool { return d.State == "ACTIVE" }

// GPU is a graphics processor of NVIDIA.
type GPU struct {
	Index   int    `json:"index"` // physical: the number of /dev/nvidiaN
	UUID    string `json:"uuid"`
	PCI     string `json:"pci"` // "0000:1b:00.0"
	NUMA    int    `json:"numa"`
	Name    string `json:"name"`
	Visible bool   `json:"visible"` // to this process, by CUDA_VISIBLE_DEVICES

	path string
	mig  []string // UUIDs of its MIG devices
}

// Inventory is the devices and GPUs of a machine.
type Inventory struct {
	Devices  []Device `json:"devices"`             // in the order of their names, with numbers as numbers: mlx5_2 before mlx5_10
	GPUs     []GPU    `json:"gpus"`                // in the order of Index
	GPUError string   `json:"gpu_error,omitempty"` // why there are no GPUs, or not all of them

	notes     []string       // for each plan
	distances map[[2]int]int // between NUMA nodes
	addrs     bool           // Device.Addrs is complete, and not taken from the GIDs
}

// Options says where to look. The zero value is this machine.
type Options struct {
	Sysfs   string   // root of sysfs. Empty means /sys.
	Visible *string  // value of CUDA_VISIBLE_DEVICES; nil: that of this process, where unset means all
	GPUs    Library  // nil means the NVIDIA library of this machine
	_       struct{} // by names only

	addrs func(netdev string) []netip.Addr // nil: those of this machine, or from the GIDs if Sysfs is set
}

// Library is the part of the NVIDIA library that this package uses.
type Library interface {
	// List returns all GPUs that the driver shows, whatever CUDA_VISIBLE_DEVICES says. It sets
	// Index, UUID, PCI and Name. If it fails for some, it returns the others with the error.
	List() ([]GPU, error)
}

// Policy says how network cards are chosen.
type Policy string

// The policies.
const (
	// ByGPUIndex takes the entry of the list at the physical index of each local GPU.
	ByGPUIndex Policy = "gpu_index"
	// ByAffinity takes for each local GPU the active devices nearest to it on PCIe, then by NUMA
	// node.
	ByAffinity Policy = "affinity"
	// All takes all active devices, or all active ones of the list. Reads are striped over them.
	All Policy = "all"
	// Single takes the first active device, or the first active one of the list.
	Single Policy = "single"
)

// The errors of a list; test with errors.Is.
var (
	ErrEmptyEntry = errors.New("contains an empty RDMA device entry")
	ErrNoGPU      = errors.New("could not determine local physical GPU index")
	ErrNotCovered = errors.New("device list does not cover local GPU")
	// ErrNoDevice: no device is active, or a device of the list is not there.
	ErrNoDevice = errors.New("no such RDMA device")
	// ErrNoList: ByGPUIndex without a list.
	ErrNoList = errors.New("policy gpu_index needs a device list, with an entry for each GPU")
	// ErrPolicy: not one of the policies.
	ErrPolicy = errors.New("no such policy")
)

// MaxRails bounds a plan. More rails would be virtual functions of the same cards. The addresses
// and keys of all rails must fit the messages to peers.
const MaxRails = 32

// Plan is the result of a policy.
type Plan struct {
	Policy  Policy   `json:"policy" help:"setting 'rdma.policy'"`
	Rails   []Rail   `json:"rails"`
	Striped bool     `json:"striped" help:"each read goes by all rails"`
	Notes   []string `json:"notes,omitempty" help:"for an operator: ports that are down, GPUs far from any card"`
}

// Rail is one network card of a plan. An entry of a list may join several devices by "+"; each is a
// rail of its own.
type Rail struct {
	Device Device `json:"device"`
	GPUs   []int  `json:"gpus,omitempty" help:"GPUs for which the card was chosen" kind:"number"`
	Path   string `json:"path,omitempty" help:"how near the card is to the farthest of these GPUs: 'PIX', 'PXB', 'PHB', 'NODE', 'SYS'"`
}
