// Package fs is the FUSE front: it turns the kernel's requests about names and handles into
// calls of the engine, and the engine's errors into errnos.
//
// Two packages below it need neither names nor blocks: fs/device reads the requests, has them
// answered here, and writes the answers; fs/control has the files of the directory .kvfs.
//
//	Server           one mount, from Mount, Attach or Resume to its end
//	files            answers its requests: the device.Files of a Server; an operation of FUSE is a method
//	reserved         answers requests about .kvfs, with a control.Dir
//	access           makes the lines of .kvfs/accesslog (fs/accesslog) from what the connection shows
//	backings         the files that the kernel reads and writes by itself
//	Hooks, Mounts    carry callbacks of the engine to the files of one mount, or of several
//
// # What a client gets
//
// Directories, regular files, and the operations of POSIX on them, except links (hard and
// symbolic), devices, O_TMPFILE and ACLs. Beyond POSIX:
//
//   - A name is one file. A new file with the name of a block, and one that is written anew with
//     O_TRUNC, is private to its process until its commit: the rename, an fsync, or the last close
//     by the process that made it. Until then other processes find nothing.
//   - An open for writing without O_TRUNC opens the existing file, as in POSIX: all
//     processes see what is written.
//   - Temporary names, plain names (lock files) and pinned groups follow POSIX from the
//     first byte, with one exception: truncating a temporary file that another process has
//     open for writing makes a new file, which has the name from then on.
//   - A lost or evicted file is ENOENT at look-up or open. A read that has begun is never
//     short because of kvfs.
//   - A process that a signal kills while it writes a private file leaves nothing. What all
//     processes have seen stays.
//
// Package tiers/draft has these rules, and the engine carries them out. The rules depend on the
// calling process, but the kernel names only the calling thread. So this package reads the process of
// the thread from /proc, before it takes any lock, and passes it down as a state.Caller (process.go).
//
// # How it is fast
//
// The kernel itself reads and writes an open block (FUSE passthrough). The daemon answers OPEN with
// the number of a registered tmpfs file, and gets no further request until RELEASE, for which no
// client waits. Registrations outlive the handles, so a hot OPEN is two short critical sections and no
// system call. The kernel caches names and attributes. When the engine drops a block by itself, it
// takes them back explicitly. Where passthrough is impossible (no CAP_SYS_ADMIN, Linux before 6.9),
// reads are spliced from the tmpfs file and writes pass through the daemon.
//
// Writes bypass the daemon if the engine has reserved the space beforehand (openfile.Handle.Direct): for
// an existing file opened in place, and, once the group's block size is known, for a new file. Other
// writes pass through the daemon, which reserves as a file grows: the first block of a group, a file
// opened with O_APPEND, and an empty file.
//
// The package uses go-fuse's raw interface, not its node tree. The node tree registers and
// unregisters the backing file at every open: two system calls, a third of the time of a 64 KiB
// read. It also keeps an object for each inode, which the engine's flat index has already.
//
// # One inode, one backing file
//
// The kernel refuses (EIO) to open one inode with two backing files at one time, or both with
// and without passthrough. Hence:
//
//   - An inode keeps one file of the memory tier for as long as any process has it open,
//     for any kind of writer.
//   - Every handle of it is opened with that file (FOPEN_PASSTHROUGH). If the daemon must
//     see the writes, the answer has FOPEN_DIRECT_IO as well: reads and writes of that
//     handle come here, and a mapping of it maps the file. Handles of both kinds can be
//     open at one time.
//   - A block that is written anew keeps its inode if nobody has it open. Else the new file has
//     another inode.
//
// # When a name means another file
//
// The kernel opens the inode that it knows for a name, and OPEN cannot answer with another one.
// The front answers ESTALE if the name means another file, or none, to the calling process:
// O_TRUNC has made another file, because the block is open, another process has replaced the file,
// or the file is private to another process. On ESTALE the kernel looks the name up and opens
// what it finds, but only once in a system call. Engines do not know ESTALE, so staleThreads remembers
// for a moment which threads got it, and none gets a second one: an open for reading fails with ENOENT,
// a miss, and an open for writing with EINTR: nothing was written, and the next attempt finds the file
// that was made. An open through /proc/self/fd means the file, not its name, and looks the same here.
// So a file that has lost its name cannot be opened again.
//
// # One engine, several mounts
//
// With Mount, the process that has the engine also mounts, and keeps the descriptors. With Attach
// another process mounts, perhaps in a container. It opens /dev/fuse, calls mount(2)
// (device.OpenSession) and passes the descriptors to the owner of the engine. From then on the owner
// reads the requests from the kernel and registers its tmpfs files with it, as for a mount of its own.
// No request is forwarded and no byte copied between the two processes, and the kernel reads an open
// block without a request. An attached mount costs more only because the references of its kernel are
// counted (BenchmarkHotAnswerShared: about 0.1 us for an open and its close).
//
//   - Each Server counts the look-ups and handles of its own kernel (refs). When the mount
//     process is gone, Detach gives back exactly those. It does not commit what was being
//     written, as when a signal kills the writer.
//   - A change through one kernel concerns names and attributes that the others may have
//     cached. The engine calls Invalidate (Options.Kernels), and Mounts tells each other
//     kernel that knows the directory. That is asynchronous and takes as long as a notice
//     does; only the rename of a directory waits for it (movedDir). An open by a name that is not yet taken back gets ESTALE underneath, and the
//     right answer after a second look-up.
//   - The processes of two mounts may be in two pid name spaces. So a state.Process
//     contains the number of the mount, and /proc is the one that the mount process sees
//     (device.Session.Proc).
//
// # When the owner ends
//
// The mount process keeps its descriptors, so the kernel keeps the mount. Reads of open blocks
// go on. Requests wait until the next owner attaches to the same descriptors, or the mount
// process itself answers them with errors (device.FailAll). The kernel loses a request when the
// /dev/fuse file that read it is closed. So only files that the mount process has, too, read
// requests. No read sleeps, because a sleeping read would outlive the decision to stop.
//
// The next owner first has the kernel queue again every request that was read and not answered
// (FUSE_NOTIFY_RESEND, Linux 6.9), and look up all names again (FUSE_NOTIFY_INC_EPOCH, Linux
// 6.16; before that, the old names are found out one by one). Then it reads. It does not know
// the nodes and handles of the earlier owner, whose numbers carry another epoch:
//
//	path look-ups, opens, stats, changes   ESTALE underneath; the kernel repeats them from the root: right answers
//	relative to a directory that was       ESTALE, until the process enters it again by its path; so
//	entered or opened before               is what fstat(2) asks when the kernel's attributes have expired
//	read(2) of what is open                as before, if it was passthrough; else ESTALE
//	close(2) of what is open for writing   EIO: it is not committed. Temporary and plain names, and files of pinned groups, stay
//	close(2) of anything else              as before
//
// If the earlier owner carried out a request and was killed before the answer, the next owner
// carries it out again. An unlink or a rename may then answer ENOENT, and a mkdir EEXIST,
// although it was done. Blocks that clients have open from before are no pins of the next
// owner: if it evicts them, their memory is freed when they are closed. The next owner
// unregisters all other files of the earlier owner, so that eviction frees their memory.
//
// An owner that is killed while it sends a notice stays as a process without files, until the client
// whose directory the notice is about gets an answer (fs/device/isolate.go). That answer comes from
// the next owner or from device.FailAll. So the next owner must not wait for the process to be gone.
//
// An owner that ends in an orderly way first calls Detach. Detach answers the requests that do not
// wait, and waits a moment for open directories to be closed (listings). The rest is as above.
//
// # Takeover
//
// A process with a mount of its own (Mount) can be followed, too: HandOver ends its answers,
// and the process that gets the descriptors resumes (Resume). All of the above about the next
// owner holds, with three differences from a kill:
//
//   - Every request that was carried out was also answered, except requests that waited for
//     durability when the earlier owner let go: they are carried out again, as after a
//     kill.
//   - A client whose open was answered may not have used the backing file yet. So the files
//     of earlier owners are unregistered a while later (dropLater).
//   - The kernel repeats a call on ESTALE only once. A client that the earlier owner sent
//     to another inode has used that up, so it gets EINTR instead (device.Session.Stale).
//
// # Deadlocks
//
// The daemon touches its own mount only before it is ready, by bare system calls with a time
// limit (RefusePoll, SelfTest). A notice to the kernel (FUSE_NOTIFY_INVAL_ENTRY) takes the
// kernel's lock on the directory, which the request being answered may hold. So a device.Conn
// sends notices from a goroutine of its own.
//
// # Lock order
//
//	dirHandle.mu      one open directory; held while the engine is asked
//	refs.later        held for reading while an OPEN is answered that had to wait
//	engine locks      see package tiers; never held during callbacks
//	handleTable.mu, backings.mu, refs.mu, Mounts.mu, accesslog.Log.mu    leaves
package fs
