// Package tiers is the engine of kvfs: names, blocks, the tiers that hold them,
// and who may evict what. The FUSE front (package fs) and the tiers themselves
// (tiers/mem, tiers/disk, tiers/peer) are wired to it by cmd/kvfs.
//
//	Engine  all of it; methods may be called in parallel
//
// Engine is made of rooms, types with the methods of one subject each; docs/architecture.md lists them. They share
// core: the lock, the index, the accounts, the files being written, the promotions under way.
//
// It uses the tiers by the interfaces of package driver. Parts of it with rules of their own are packages: draft
// (writing), room (accounts of memory), fate (why a block is not there).
//
// # A store, step by step
//
//  1. Create makes a file in the primary tier, enters the name as uncommitted, and
//     reserves what blocks of the group need, evicting if it must. Nothing is zeroed
//     or allocated: the reservation is a number, and the tmpfs is larger than the
//     capacity by the headroom.
//  2. The kernel writes straight into the file (Handle.Direct), or, while the
//     group's block size is not known, WriteAt does, reserving as it goes.
//  3. Flush, or Rename to a name that is not temporary, commits: size and time are
//     taken from the file, the name becomes visible to all, the block enters its
//     group's eviction order, the event log tells, and one xattr on the file makes
//     it survive a crash of the process.
//  4. When the last handle for writing is closed, the block joins the queue of each
//     secondary tier (cascade.go), which copies it in batches and computes its
//     checksum on the way. Fsync, and close where the cascade is synchronous, wait for
//     that; nobody else does. What may still be written meanwhile is Volatile.
//
// # A load, step by step
//
//  1. Lookup finds the name in the index and grants the lease: for a while the block
//     is not evicted, because engines look up first and read later.
//  2. OpenRead pins the block. The kernel reads the file by itself.
//  3. CloseRead unpins it.
//
// A block that only secondary tiers hold is hollow: it has its name and attributes,
// but no bytes in memory. Opening it promotes it (promote.go):
//
//  1. The first who opens it makes room, evicting if need be, and a file of the
//     primary tier with its pages allocated; all others wait with it.
//  2. The tier loads the block into that file, together with others that were asked
//     for meanwhile, and verifies the checksum.
//  3. The file becomes the entry's, pinned once for each who waits, and gets its
//     record. If the tier could not give the block, the next one is asked; if none
//     can, the open is a miss (ErrNotFound), and where the copy is known to be gone or
//     bad, the name goes.
//
// # Asking ahead
//
// Presences looks up thousands of names with few holds of the lock (presence.go). Prefetch, and
// Hint without anybody waiting, promote lists of blocks ahead of use, a bounded number of bytes at
// a time; in the queues of the tiers they come after those that somebody waits for (prefetch.go).
// Jobs lists the loads under way. An open that would come after its deadline is a miss: at once
// if that is predicted from what the tier has given lately, else when the time is up (predict.go).
// Why remembers what became of names (package fate).
//
// # What the tiers hold
//
// Entry.Tiers has a bit for each secondary tier with a copy of the present version,
// Entry.Storing one for each copy that is queued or under way. What an earlier
// process left is entered when the engine opens (enumerate). A tier that wants to
// evict asks (Host.MayEvict) and one that lost a copy tells (Host.Lost), so that the
// bits are right at all times, and no look-up has to ask a tier.
//
// All that changes what a tier holds under one key reaches it in the order in which
// it happened to the name; see package lane.
//
// # Other nodes
//
// One secondary tier may be a Remote: what other nodes have. Its blocks have no entries
// until somebody asks for their names (locate.go), because a cluster has more of them than
// a node has memory for; a look-up that finds no entry asks Remote.Locate, which answers
// from memory. From there on such a block is hollow as others are: its open promotes it.
//
// Versions are numbered by a hybrid logical clock: the clock, but above every number that
// was seen, here or elsewhere (Observe). So of two versions the later has the higher number
// wherever they were made, as far as the maker knew of the other. Names that are removed,
// replaced or renamed leave a Grave: what others have of them below its number is void
// (Remote.Bury there, Supersede here). Two nodes that store one name at the same time, each
// without the other's version when it began, both keep what they have. A number from more
// than a day ahead is ignored, with all that came with it: one broken clock must not set
// the others.
//
// What is removed, or renamed away, has its grave before the lock is released, so that no
// look-up finds it elsewhere meanwhile. What is replaced has it afterwards: here the new
// version has the name already. Of a directory's rename the graves of what was in it come
// before its own.
//
// What only others have is moved, pinned or given other attributes by becoming this node's
// own first. A block that others have, too, is copied to a device of this node before it is
// evicted, if there is one. It may be evicted within its lease, though who else has it may
// evict it as well: else a node could not read more of the others' blocks than its memory
// holds, in the time of a lease.
//
// What this node tells the others is what is in its own memory and on its own devices
// (holding.go); the event log says when that changes. It lends blocks (lend.go) and takes
// copies on request (take.go).
//
// # Writing
//
// Package draft has the rules as a table of states. A file is opened for writing in place, except that
// O_TRUNC on a block with bytes and a new name make a version of their own. Only its own process finds a
// version, until it is committed and takes the name. File has the states and how they show in an entry;
// version.go has the versions that wait for a name; limbo.go says what becomes of a block that was replaced.
//
// # Several kernels
//
// With Options.Kernels an entry is referred to by several kernels, each of which keeps names
// and attributes on its own (kernels.go). Lookups, Opens and Lease of an entry are those of all
// together, so a front gives back exactly what its kernel had. Invalidate also tells of what
// one of them asked for. It tells late, so a kernel may open what a name meant before: a block
// that has no name any more is then ErrStale, once, upon which the kernel looks again. What it
// cannot be told in time is that a block which is still there has another name now. A thread is
// known by its kernel and its id. Abandon ends the handles of a kernel that is gone.
//
// # Accounts
//
// Package room has the accounts. What is used is the sum of what each file costs: whole pages of its size, or
// what is reserved for it, whichever is more. It never exceeds the capacity, except by
// writes that the engine did not see and that went past their reservation; those
// come out of the headroom and are settled when the file is closed or committed.
// If the headroom is nearly used up, what is being committed is refused, because
// a write may have ended short, unless all bytes of a block like its group's are there.
//
// The file system may have less left than the accounts say. Who needs room looks at it first
// (gauge): the limit of what may be used leaves an eighth of the headroom free.
//
// # Eviction
//
// Blocks go in the order of the policy. Never: open files, uncommitted files,
// pinned blocks and groups. Not within the lease, unless a writer has waited for
// WriteTimeout and would fail otherwise. Above the high watermark a goroutine
// evicts what has rested for a second, so that writers seldom do it inline.
//
// A block with a copy in a secondary tier becomes hollow, whatever its lease: that
// tier keeps the promise. One without is copied first, and skipped until it has been;
// a writer that has waited for WriteTimeout takes its memory all the same, and the
// block is lost, which is counted. What a tier has refused (full, write budget,
// admission) goes without a copy.
//
// # After a crash
//
// A file is committed if and only if it has a record (Record), written by one
// system call. Adopt takes over all of them: of two with one name the higher
// sequence number wins, and one that changed after its commit is dropped. The same
// holds between memory and the secondary tiers.
//
// # Lock order
//
// Outermost first:
//
//	prefetch.mu       what one Prefetch has under way; its caller's Done is called with it
//	File.growth       one file's reservation and the identity of its bytes; may be
//	                  held while waiting for room, and across memory operations of
//	                  the kernel (create, copy), never across a device's
//	File.ends         one handle of a file ends at a time; held as File.commits is
//	File.commits      one file's bytes and its entry are brought in line; held across an fstat and one
//	                  fsetxattr on tmpfs
//	attrs.records    a stripe: orders the writers of one record; held across one
//	                  fsetxattr on tmpfs
//	core.mu         all tables and accounts; short sections, no system call, no
//	                  callback but those methods of Remote that do not block, no
//	                  channel that may block
//	event.Log.mu      leaf
//
// What must happen outside of core.mu (unlinking files, telling the kernel,
// events) is collected in a gone and done by finish.
//
// # Decisions
//
//   - The engine, not the primary tier, owns the index: secondary tiers and peers
//     hold blocks that memory does not, and a listing must show them.
//   - A full cascade queue slows writers only when memory has nothing else to evict:
//     what does not fit into it waits without protection (deferred). Dropping the
//     copy at once would lose blocks in every burst longer than the queue.
//   - A rename does not copy: it is an update of the header on SSD.
//   - fsync commits a version. To keep what it promised and hide it at the same time would need two
//     copies under one name in every tier.
//   - What fsync promised under a name leaves a tier only when the next version takes its
//     place there, or turns out not to (flagSynced). A version without fsync removes
//     the old copy when it is committed: that costs no promise.
//   - Reservations do not fallocate. tmpfs would clear every page, and the write
//     that follows overwrites it: that halves the speed of a first write.
//   - One mutex. On two cores a hot open holds it for well under a microsecond of the
//     20 that the FUSE round trip takes. To be sharded by group when a profile
//     asks for it.
package tiers
