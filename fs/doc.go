// Package fs is the FUSE front: it turns what the kernel asks about names and
// handles into calls of the engine, and the engine's errors into errnos.
//
// Two packages below it have what needs neither names nor blocks: fs/device reads the requests, has
// them answered here, and writes the answers; fs/control has the files of the directory .kvfs.
//
//	Server           one mount, from Mount, Attach or Resume to its end
//	files            answers its requests: the device.Files of a Server; an operation of FUSE is a method
//	reserved         answers those about .kvfs, with a control.Dir
//	backings         which files the kernel reads and writes by itself
//	Hooks, Mounts    carry what the engine tells to the files of one mount, or of several
//
// # What a client gets
//
// Directories, regular files, and the operations of POSIX on them, except links
// (hard and symbolic), devices, O_TMPFILE and ACLs. Beyond POSIX:
//
//   - A file with a new name, or one that O_TRUNC makes of a block with bytes, becomes
//     visible to other processes when it is committed: by rename, or by the last close by
//     the process that made it. Until then they see the block before, or none. Its own
//     process sees its bytes at any time. The first byte in an empty file hides that file
//     in the same way.
//   - An open for writing without O_TRUNC opens the file that is there, as in POSIX: all
//     see what is written.
//   - Temporary names, plain names (lock files) and pinned groups are POSIX from the first
//     byte. Only a temporary file that another process has open for writing is not
//     emptied under it: who truncates it gets a version of its own.
//   - What is lost or evicted is ENOENT at look-up or open. A read that has begun
//     is never short because of us.
//   - A process that a signal kills while it writes a version of its own commits nothing,
//     but for what it has synced. What all have seen stays.
//
// Package tiers/draft has these rules; the engine carries them out. What it needs to know for
// them is who asks. The kernel names only the thread. Which process that belongs to is read
// from /proc, before any lock is taken, and passed down as a tiers.Caller (process.go).
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
// Writes bypass the daemon if the engine has reserved the space beforehand
// (tiers.Handle.Direct): that of a file that is there and is opened in place, and, once the
// group's block size is known, that of a new one. All others pass through the daemon, which
// reserves as a file grows: the first block of a group, what is opened with O_APPEND, and
// an empty file, which its first byte hides.
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
//   - An inode has one file of the memory tier for as long as anybody has it open, whoever
//     writes it and however.
//   - Every handle of it is opened with that file (FOPEN_PASSTHROUGH). Where the daemon has to
//     see the writes, FOPEN_DIRECT_IO is answered as well: then the reads and writes of that
//     handle come here, and a mapping of it is one of the file. Handles of both kinds can be
//     open at one time.
//   - A version has an inode of its own.
//
// # When a name means another file
//
// The kernel opens the inode that it knows for a name, and OPEN cannot answer with another
// one. Where the name means another file to the process that asks, the front answers
// ESTALE: O_TRUNC makes a version for it, somebody has replaced the file, or the file is hidden
// from it. The kernel then looks the name up and opens what it finds, by itself, but only
// once in a system call. An open by way of /proc/self/fd means the file, not its name, and does
// not differ here. So staleThreads remembers for a moment which threads were told ESTALE:
//
//   - The engine gets to know it (tiers.Caller.Told), and opens the file that it is asked for,
//     unless it would have to be a new version.
//   - A second ESTALE is not told, because engines do not know it. An open for reading fails with
//     ENOENT, a miss. One for writing fails with EINTR: nothing was written, and another
//     attempt finds the version that was made.
//
// # One engine, several mounts
//
// Mount is a mount of the process that has the engine, and that keeps its descriptors. With Attach the process that mounts is
// another one, which may live in a container: it opens /dev/fuse, calls mount(2)
// (device.OpenSession) and passes the descriptors to the owner of the engine. From then on the owner reads
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
//     that knows the directory, but for the one that has asked. That is asynchronous: it takes as
//     long as a notice does. Who opens a block by a name that has not been taken back yet gets
//     ESTALE underneath, and the right answer after a second look-up.
//   - The processes of two mounts may be of two pid name spaces, so the number of the mount is
//     part of a tiers.Process, and /proc is the one that the mount process sees (device.Session.Proc).
//
// # When the owner ends
//
// The mount process keeps its descriptors, so the kernel keeps the mount. Blocks that are
// open go on being read. Requests wait, until the next owner attaches to the same descriptors or
// the mount process itself answers them with errors (device.FailAll). A request belongs to the
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
//	close(2) of what is open for writing   EIO: it is not committed. Temporary and plain names, and files of pinned groups, stay
//	close(2) of anything else              as before
//
// A request that the owner carried out, but had not answered when it was killed, is carried out
// again: an unlink or a rename may then say ENOENT, and a mkdir EEXIST, although they were done.
// Blocks that clients have had open since before are no pins of the next owner: if it evicts
// them, their memory is free when they are closed. All else that an owner had
// registered the next one unregisters, so that what it evicts leaves memory.
//
// An owner that is killed at the moment at which it sends a notice stays, without files, until
// the client whose directory the notice is about has got an answer (fs/device/isolate.go): from the
// next owner, who so must not wait for the process to be gone, or from device.FailAll.
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
//     another inode has used that up, so it is told EINTR instead (device.Session.Stale).
//
// # Deadlocks
//
// The daemon touches its own mount only before it is ready, by bare system calls with a time limit
// (RefusePoll, SelfTest). Notices to the kernel (FUSE_NOTIFY_INVAL_ENTRY)
// take the kernel's lock on the directory, which the request being answered may
// hold, so a device.Conn sends them from a goroutine of its own.
//
// # Lock order
//
//	dirHandle.mu      one open directory; held while the engine is asked
//	refs.later        held for reading while an OPEN is answered that had to wait
//	engine locks      see package tiers; never held during callbacks
//	handleTable.mu, backings.mu, refs.mu, Mounts.mu    leaves
package fs
