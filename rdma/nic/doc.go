// Package nic chooses the network cards that carry blocks: those next to the GPU that will read
// them.
//
//	Discover   reads which RDMA devices and GPUs there are, from sysfs and the NVIDIA library
//	Inventory  the result, and what could not be found out
//	Policy     gpu_index, affinity, all, single
//	Plan       the rails that a policy chooses from an inventory
//
// This package opens no device: a plan is an ordered list of names. GPUs have their physical
// numbers; CUDA_VISIBLE_DEVICES does not change them. Without cgo, or without the NVIDIA library,
// there are no GPUs, and Inventory.GPUError says why in one line.
//
// # Lists
//
// A list has one entry for each physical GPU: entry 0 is for /dev/nvidia0. Commas separate entries.
// "+" joins devices that serve one GPU together. ":2" after a name means its second port. So
// "mlx5_0+mlx5_1,mlx5_2:1" gives two cards to GPU 0 and one to GPU 1. The policies other than
// gpu_index read the list as the set of devices that may be used.
//
// # How near
//
// The point where the paths of two devices below /sys/devices part gives their nearness, in the
// words of nvidia-smi topo:
//
//	PIX   at most one PCIe bridge between the common one and each of them
//	PXB   more bridges, but below the same root port
//	PHB   the same host bridge, but different root ports
//	NODE  different host bridges of one NUMA node
//	SYS   different NUMA nodes
//
// Of two devices of one class, the device with the longer common path is nearer. Beyond the NUMA
// node it is the device on the nearer node, by the distances that the firmware reports. Equally
// near devices are all used: otherwise a machine with two cards for each GPU would leave half of
// them idle.
//
// # Decisions
//
// A port that is down is left out and noted, also if a list names it: the node serves with the
// others. A device that is not there is an error, because it is a typing error. A RoCE port without
// an address has no GID to send from, and is chosen only if a list names it.
//
// Each device is one rail, with one port, because a device is opened by name.
package nic
