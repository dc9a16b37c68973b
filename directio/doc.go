// Package directio moves bytes between files and memory past the page cache:
// O_DIRECT, aligned buffers under a byte budget, and an Engine that does many
// reads and writes at once.
//
//	Engine   Do(ctx, ops): io_uring (tag giouring), a pool of pread/pwrite, or a Fake
//	File     a file that is really open with O_DIRECT; Probe, what that is worth
//	Pool     aligned buffers: first come first served, all or nothing
//	Mapping  a file in memory as source: tmpfs without a copy
//
// Package faultio decorates an Engine with the faults of devices.
//
// # Results
//
// Do reports per Op. It continues short reads and writes. It retries EINTR, EAGAIN and EBUSY, the
// latter two for up to ten seconds. The remaining results are:
//
//	nil
//	io.ErrUnexpectedEOF   the file ends before the read does
//	io.ErrShortWrite      the kernel writes no more and does not say why
//	*os.SyscallError      with the errno; EINVAL also for an op that breaks the rules of Op
//	ctx's error           taken back
//	os.ErrClosed          the Engine is closed
//
// # Memory
//
// The memory of an op must come from mmap, never from the Go heap, because the kernel writes to it.
// Do returns only when the kernel is done with all of it. Submitted pieces cannot be cancelled: the
// end of ctx takes back only those that still wait. So a device that never answers keeps Do, and
// the memory, for ever. Stuck shows this. A caller with a deadline must not wait on Do itself.
//
// # Lock order
//
// The locks of a scheduler, a Pool and a Fake are leaves: nothing is locked, called or
// awaited under them.
//
// # Decisions
//
// Figures are of one 2-core machine with a virtio disk, Linux 6.18.
//
//   - The binding of io_uring, giouring, links only with -checklinkname=0, so it is behind the tag
//     giouring. Without the tag everything builds and works by pread, with the same bandwidth.
//     io_uring takes 40 to 60 % less CPU at 64 KiB with many in flight, and 50 us more for a lone
//     read of 64 KiB.
//   - One ring per device, owned by one goroutine on one thread. Rings shared under a lock, or one
//     ring per caller, are no faster from 1 MiB up and cost more CPU below.
//   - Not used: registered buffers (5 us/MiB on huge pages, nothing at 64 KiB, and they
//     pin memory), registered files, IOPOLL, SQPOLL, linked requests, timeouts of the
//     ring. The owner of the ring waits without a timeout and is woken by an eventfd.
//   - fdatasync goes through the ring as a request of its own. Each submission entry is cleared
//     first: the binding leaves the flags of a sync in it, and the next read would fail with them.
//   - Pieces of 1 MiB, 8 MiB in flight: larger pieces are slower, more in flight only
//     adds latency.
//   - Reads before writes by bytes, 3 to 1, and writes never fill more than three
//     quarters of what may be in flight. Priority alone would starve writes; equal
//     turns would let a cascade slow every promotion.
//   - Huge pages: scattered pages of 4 KiB split a request of 1 MiB in two and cost
//     twice the time. Hence MADV_HUGEPAGE in Pool, and a tmpfs with huge= for Mapping.
//   - Pool gives out ranges of one mapping. The first waiter waits until there is a range for it.
//     No waiter can starve, since every buffer comes back. Gaps may make a waiter wait longer than
//     the bytes alone would. UsableRatio lessens that.
//   - All file I/O is aligned to 4096 bytes, whatever a device accepts. So every file system and
//     sector size works alike.
package directio
