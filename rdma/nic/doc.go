// Package nic chooses the network cards by which blocks travel: those next to the GPU
// that will read them.
//
//	Discover   what there is: RDMA devices and GPUs, from sysfs and the NVIDIA library
//	Inventory  the outcome, and what could not be found out
//	Policy     gpu_index, affinity, all, single
//	Plan       the rails that a policy makes of an inventory
//
// Nothing here opens a device: a plan is names in an order. GPUs are known by their physical
// number, whatever CUDA_VISIBLE_DEVICES makes of it. Without cgo, or without the NVIDIA
// library, there are no GPUs, and Inventory.GPUError says why in one line.
//
// # Lists
//
// A list has one entry for each physical GPU: entry 0 is for /dev/nvidia0. Entries are
// separated by commas; "+" joins devices that serve one GPU together; ":2" after a name means
// its second port. So "mlx5_0+mlx5_1,mlx5_2:1" gives two cards to GPU 0 and one to GPU 1.
// The policies other than gpu_index read the list as the devices that may be used at all.
//
// # How near
//
// Nearness is told by where the paths of two devices below /sys/devices part, in the words
// of nvidia-smi topo:
//
//	PIX   at most one PCIe bridge between the common one and each of them
//	PXB   more bridges, but below the same root port
//	PHB   the same host bridge, but different root ports
//	NODE  different host bridges of one NUMA node
//	SYS   different NUMA nodes
//
// Of two devices of one class the one with the longer common path is nearer, and beyond the
// NUMA node the one on the nearer node, by the distances that the firmware tells. Equally
// near devices are all used: a machine with two cards for each GPU would leave half of them
// idle otherwise.
//
// # Decisions
//
// A port that is down is left out and noted, also where a list names it: the node serves with
// the rest. A device that is not there is an error: it is a slip of the pen. A RoCE port
// without an address has no GID to send from; it is not chosen, unless a list names it.
//
// Each device is one rail, with one port, for a device is opened by name.
package nic
