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
// # Deadlocks
//
// The daemon never touches its own mount. Notices to the kernel (NotifyEntry)
// take the kernel's lock on the directory, which the request being answered may
// hold, so they are sent from a goroutine of their own.
//
// # Lock order
//
//	dirHandle.mu      one open directory; held while the engine is asked
//	engine locks      see package tiers; never held during callbacks
//	handleTable.mu, backings.mu, notifier.mu, controlRequest.mu    leaves
package fs
