// Package guest runs programs in a virtual machine whose kernel has RDMA in software (soft-RoCE, the kernel's
// rdma_rxe), with the libraries that it needs. The machine that the tests run on may lack both.
//
//	Prepare      makes the Image, or finds it in the user's cache directory
//	Image.Run    starts QEMU with it and the caller's files, passes on every line that they
//	             print, and returns the exit code of the caller's command
//
// # Image
//
// The image is a kernel and the beginning of an initial RAM disk (cpio), made of packages of Debian 13. Debian's own
// apt fetches them from the mirror that it is configured for and checks the signature and the sums. It has
// directories of its own for that, so that the lists, packages and configuration of the machine stay as they are. The
// image is kept under a key made of the list below, with the names, versions and sums of its packages. It is checked
// when it is used again; then nothing is fetched. To have it made of the present packages of the mirror, remove the
// directory that Image names.
//
// # Machine
//
// QEMU runs without KVM, because most machines that run the tests are virtual themselves, and KVM is not reliable in
// those. There is no disk and no network. The root is in memory, the output comes by a serial line, and the messages
// of the kernel by a second one. The guest turns itself off when the command has ended. QEMU is killed when the
// context ends or nothing was printed for too long.
//
// The guest has a network interface without a peer, with two addresses (Addrs) and the RDMA device Device on it. Two
// addresses, because the kernel's soft-RoCE serves only one network namespace.
package guest
