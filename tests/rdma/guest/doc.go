// Package guest runs programs in a virtual machine whose kernel has what the machine it
// runs on may lack: RDMA in software (soft-RoCE, the kernel's rdma_rxe) and the libraries
// that go with it.
//
//	Prepare      makes the Image, or finds it in the user's cache directory
//	Image.Run    starts QEMU with it and the caller's files, tells every line that they
//	             print, and returns the exit code of the caller's command
//
// # Image
//
// A kernel and the beginning of an initial RAM disk (cpio), made of packages of Debian 13:
// Debian's own apt fetches them from the mirror that it is configured for and checks the
// signature and the sums. It gets directories of its own for all that, so that the
// machine's lists, packages and configuration stay as they are. The image is kept, with
// the names, versions and sums of what is in it, under a key made of the list below and is
// checked when it is used again: then nothing is fetched. Remove the directory that Image
// names to have it made of what the mirror offers today.
//
// # Machine
//
// QEMU without KVM: the machines that tests run on are virtual themselves mostly, and what
// KVM does in those is not to be relied on. There is no disk and no network: the root is in
// memory, what is printed comes by a serial line, the messages of the kernel by a second
// one. The guest turns itself off when the command has ended; QEMU is killed when the
// context ends or nothing was printed for too long.
//
// The guest has a network interface without a peer, with two addresses (Addrs) and the
// RDMA device Device on it: the kernel's soft-RoCE serves only one network namespace.
package guest
