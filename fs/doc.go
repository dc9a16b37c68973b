// Package fs is the FUSE front: it turns what the kernel asks about names and
// handles into calls of the engine, and the engine's errors into errnos.
//
// # What a client gets
//
// Directories, regular files, and the operations of POSIX on them, except links
// (hard and symbolic), devices, O_TMPFILE and ACLs. Beyond POSIX:
//
//   - A file becomes visible to other processes when it is committed: by rename, or
//     by the close of a descriptor by the process that opened it for writing.
//     Until then they see the version before, or none. Its own process sees its
//     bytes at any time. Names that look temporary are visible to all and are
//     committed by their rename alone.
//   - A committed block never changes under a reader. Who opens it for writing gets
//     a version of its own, with a new inode, that takes the name at its commit.
//     (In pinned groups, which hold raw files, writes go in place.)
//   - What is lost or evicted is ENOENT at look-up or open. A read that has begun
//     is never short because of us.
//   - A process that a signal kills while it writes a file in place commits nothing.
//
// # How it is fast
//
// A block that is open is read and written by the kernel itself (FUSE
// passthrough): the daemon answers OPEN with the number of a registered tmpfs
// file, and is not asked again until RELEASE, which nobody waits for.
// Registrations outlive the handles, so a hot OPEN is two short critical
// sections and no system call. Names and attributes are cached by the kernel and
// taken back explicitly when the engine drops a block by itself. Where
// passthrough cannot be had (no CAP_SYS_ADMIN, Linux before 6.9), reads are
// spliced from the tmpfs file and writes pass through the daemon.
//
// Writes bypass the daemon only if the engine has reserved the space beforehand,
// which it does once the group's block size is known. The first block of a group,
// and any file of which the size cannot be known, is written through the daemon,
// which reserves as it grows.
//
// The package uses go-fuse's raw interface, not its node tree: the node tree
// registers and unregisters the backing file at every open, two system calls that
// cost a 64 KiB read a third of its time, and it keeps an object for each inode that
// the engine's flat index has already.
//
// # One inode, one backing file
//
// The kernel refuses (EIO) to open one inode with two backing files, or with
// passthrough and without it at one time. Hence:
//
//   - Each version of a name has its own inode, so a new version never shares an
//     inode with readers of the old. When OPEN meets a committed block, the front
//     answers ESTALE; the kernel looks the name up again, by itself and once, and finds the
//     new version's inode.
//   - All handles of one version agree on passthrough while it is being written
//     (tiers.Handle.Direct).
//
// # One engine, several mounts
//
// Mount is a mount of the process that has the engine, and that keeps its descriptors. With Attach the process that mounts is
// another one, which may live in a container: it opens /dev/fuse, calls mount(2)
// (OpenSession) and passes the descriptors to the owner of the engine. From then on the owner reads
// the requests from the kernel and registers its tmpfs files with it, just as a process
// with a mount of its own does. There is no hop in between: neither are requests
// forwarded nor bytes copied from one process to the other, and the kernel reads a block
// that is open without asking anybody. What an attached mount costs more is the count of what its
// kernel holds (BenchmarkHotAnswerShared: about 0.1 us for an open and its close).
//
//   - Each Server counts the look-ups and handles of its own kernel (refs), so that Detach
//     can give back exactly those when the mount process is gone. What was being written
//     then is not committed, as when a signal kills the writer.
//   - What one kernel has the engine do to a name or to attributes, the others may have
//     cached: the engine calls Invalidate (Options.Kernels), and Mounts tells each kernel
//     that knows the directory, but for the one that has asked (asking.go). That is asynchronous: it takes as long as a notice does. Who
//     opens a block by a name that has not been taken back yet gets ESTALE underneath, and
//     the right answer after a second look-up.
//   - The engine tells processes apart by thread ids. Those of two mounts may be of two pid
//     name spaces, so the number of the mount is part of them, and /proc is the one that
//     the mount process sees (Session.Proc).
//
// # When the owner ends
//
// The mount process keeps its descriptors, so the kernel keeps the mount. Blocks that are
// open go on being read. Requests wait, until the next owner attaches to the same descriptors or
// the mount process itself answers them with errors (FailAll). A request belongs to the
// file of /dev/fuse by which it was read, and is lost when that is closed: so it is read
// only by files that the mount process has, too, and never by a read that sleeps, which would
// outlive the decision to stop.
//
// The next owner has the kernel queue again what was read and not answered
// (FUSE_NOTIFY_RESEND, Linux 6.9), then look up all names again (FUSE_NOTIFY_INC_EPOCH, Linux
// 6.16; before that they are found out one by one), and only then reads. It does not know the
// nodes and handles of the one before, of which the numbers carry another epoch:
//
//	path look-ups, opens, stats, changes   ESTALE underneath; the kernel repeats them from the root: right answers
//	relative to a directory that was       ESTALE, until the process enters it again by its path; so
//	entered or opened before               is what fstat(2) asks when the kernel's attributes have expired
//	read(2) of what is open                as before, if it was passthrough; else ESTALE
//	close(2) of what is open for writing   EIO: it cannot be committed. Under temporary names the rename fails: ENOENT
//	close(2) of anything else              as before
//
// A request that the owner carried out, but had not answered when it was killed, is carried out
// again: an unlink or a rename may then say ENOENT, and a mkdir EEXIST, although they were done.
// Blocks that clients have had open since before are no pins of the next owner: if it evicts
// them, their memory is free when they are closed. All else that an owner had
// registered the next one unregisters, so that what it evicts leaves memory.
//
// An owner that is killed at the moment at which it sends a notice stays, without files, until
// the client whose directory the notice is about has got an answer (isolate.go): from the next
// owner, who so must not wait for the process to be gone, or from FailAll.
//
// An owner that ends in an orderly way calls Detach first, which answers what does not wait, and waits
// a moment for open directories to be closed (listings); the rest is as above.
//
// # Takeover
//
// A process with a mount of its own (Mount) can be followed, too: HandOver ends its answers, and the
// process that gets the descriptors resumes (Resume). All that is said above of the next owner
// holds; three things are better than after a kill:
//
//   - Whatever was carried out was answered, but for what waited to be durable when the earlier
//     owner let go: that is carried out again, as after a kill.
//   - A client whose open was answered may not have come to use the backing file. So those of earlier
//     owners are unregistered a while later (dropLater).
//   - The kernel repeats what is told ESTALE only once. A client that the earlier owner has sent to
//     another inode has used that up, so it is told EINTR instead (Session.Stale). An open for
//     writing is told so before the engine hears of it, for each makes a version (staleThreads.spent).
//
// # Deadlocks
//
// The daemon never touches its own mount. Notices to the kernel (NotifyEntry)
// take the kernel's lock on the directory, which the request being answered may
// hold, so they are sent from a goroutine of their own.
//
// # Lock order
//
//	dirHandle.mu      one open directory; held while the engine is asked
//	refs.later        held for reading while an OPEN is answered that had to wait
//	engine locks      see package tiers; never held during callbacks
//	handleTable.mu, backings.mu, notifier.mu, controlRequest.mu, refs.mu, asking.mu, Mounts.mu    leaves
package fs
