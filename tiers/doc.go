// Package tiers is the engine of kvfs. It holds names, blocks and the tiers of each block, and it decides what may be
// evicted. cmd/kvfs connects it with the FUSE front (package fs) and the tiers (tiers/mem, tiers/disk, tiers/peer).
//
//	Engine  all of it; methods may be called in parallel
//
// Engine stands on the packages openfile, transfer, memory and names, each of which calls only those after it. They share
// a state.State: the lock, the index, the accounts. This package has what needs several of them: start and end, adoption,
// statistics, attributes, eviction on request, the exchange with other nodes. docs/architecture.md says more.
//
// The engine uses the tiers by the interfaces of package driver. Parts of it with rules of their own are packages:
// draft (writing), room (accounts of memory), outcome (why a block is not there).
//
// # A store, step by step
//
//  1. Create makes a file in the primary tier, enters the name as uncommitted, and reserves the size that blocks of
//     the group have. It evicts if it must. It clears and allocates no pages: the reservation is a number, and the
//     tmpfs is larger than the capacity by the headroom.
//  2. The kernel writes straight into the file (Handle.Direct). While the block size of the group is not known,
//     WriteAt writes instead, and reserves as it goes.
//  3. Flush, or Rename to a name that is not temporary, commits. The engine takes size and time from the file. All
//     processes see the name. The block enters the eviction order of its group. The event log gets an event. One
//     xattr on the file makes the block survive a crash of the process.
//  4. When the last handle for writing is closed, the block joins the queue of each secondary tier (package transfer). The
//     tier copies it in batches and computes its checksum on the way. Only Fsync waits for that, and close where the
//     cascade is synchronous. A file that may still be written meanwhile is Volatile.
//
// # A load, step by step
//
//  1. Lookup finds the name in the index and grants the lease. During the lease the block is not evicted, because
//     engines look up first and read later.
//  2. OpenRead pins the block. The kernel reads the file by itself.
//  3. CloseRead unpins it.
//
// A nonresident block is in secondary tiers only: it has its name and attributes, but no bytes
// in memory. Opening it promotes it (package transfer):
//
//  1. The first open makes room, and evicts for it if it must. It makes a file of the primary tier with its pages
//     allocated. Later opens wait for the same promotion.
//  2. The tier loads the block into that file, with other blocks that were asked for meanwhile, and verifies the
//     checksum.
//  3. The entry takes the file, with one pin for each waiting open, and the file gets its record. If the tier cannot
//     give the block, the next tier is asked. If none can, the open is a miss (ErrNotFound). If the copy is known to
//     be gone or bad, the name is removed.
//
// # Asking ahead
//
// Presences looks up thousands of names with few holds of the lock (package names). Prefetch promotes lists of blocks
// ahead of use, a bounded number of bytes at a time (package transfer). Hint does the same, and no caller waits. In the
// queues of the tiers these blocks come after those that a caller waits for. Jobs lists the loads under way. An open
// that would come after its deadline is a miss: at once, if the recent speed of the tier predicts it, else when the
// time is up (lane.Predictor). Why remembers what became of names (package outcome).
//
// # What the tiers hold
//
// Entry.Tiers has a bit for each secondary tier with a copy of the present version. Entry.Storing has one for each copy
// that is queued or under way. When the engine opens, it enters the blocks that the tiers hold already (enumerate).
// A tier asks before it evicts (Host.MayEvict) and reports a copy that it lost (Host.Lost). So the bits are right at
// all times, and no look-up has to ask a tier.
//
// A tier gets all changes under one key in the order in which they happened to the name; see package lane.
//
// # Other nodes
//
// One secondary tier may be a Remote: it stands for the other nodes. A cluster has more blocks than a node has memory
// for, so the blocks of others have no entries until a caller asks for their names (package names). A look-up that finds no
// entry asks Remote.Locate, which answers from memory. From then on the block is nonresident as others are: its open
// promotes it. If the Remote does not know all names (Asker), a look-up of one that it does not know asks other nodes,
// without a lock, and looks once more.
//
// A hybrid logical clock numbers versions: the clock, but above every number that was seen, here or elsewhere
// (Observe). So the later of two versions has the higher number wherever they were made, as far as the maker knew of
// the other. Names that are removed, replaced or renamed leave a Grave. A grave voids the versions of its name with a
// lower number (Remote.Bury there, Supersede here). Two nodes may store one name at the same time, each without the
// other's version when it began. Then both keep theirs, unless one has changed a block in place: its bytes differ, and
// the later version stays. So a clock that is wrong sets the numbers of all nodes, until the others get there: they need
// not be times. A number that no clock gives is ignored, with all that came with it.
//
// A name that is removed or renamed away gets its grave before the lock is released, so that no look-up finds it
// elsewhere meanwhile. A replaced name gets its grave afterwards, because the new version has the name here already.
// When a directory is renamed, the graves of the names in it come before its own.
//
// To move, pin or change the attributes of a block that only others have, this node first gets it as its own. A block
// that others have, too, is copied to a device of this node, if there is one, before it is evicted. It may be evicted
// within its lease, though the other holders may evict it as well. Otherwise a node could read, in the time of a lease,
// no more of the others' blocks than fit into its memory.
//
// This node tells the others what is in its own memory and on its own devices (package names); the event log says when
// that changes. It lends blocks and takes copies on request.
//
// # Writing
//
// Package draft has the rules. A name is one file. A file is opened for writing in place, except that O_TRUNC on a block
// begins anew, and that a new file is private to its own process until it is committed. File has the states and how they
// show in an entry.
//
// # Several kernels
//
// With Options.Kernels several kernels refer to an entry, each with names and attributes of its own (package state).
// Lookups, Opens and Lease of an entry count for all kernels together, so a front gives back exactly what its kernel
// had. Invalidate also reports changes that one of the kernels asked for. It reports late, so a kernel may open what a
// name meant before. A block without a name is then ErrStale, and the kernel looks again. A block that
// is still there, under another name now, cannot be reported in time. A thread is known by its kernel and its id.
// Abandon ends the handles of a kernel that is gone.
//
// # Accounts
//
// Package room has the accounts. Memory in use is the sum of what each file costs: whole pages of its size, or its
// reservation, whichever is more. The sum exceeds the capacity only by writes that the engine did not see and that went
// past their reservation. Those come out of the headroom, and are settled when the file is closed or committed. If the
// headroom is nearly used up, commits are refused, because a write may have ended short. The exception is a file with
// all bytes of a block like its group's.
//
// The file system may have less left than the accounts say. So a call that needs room looks at it first (gauge). The
// limit on memory in use leaves an eighth of the headroom free.
//
// # Eviction
//
// Blocks go in the order of the policy. Open files, uncommitted files, pinned blocks and pinned groups are never
// evicted. Leased blocks go only when a writer has waited for WriteTimeout and would fail otherwise. Above the high
// watermark a goroutine evicts blocks that have rested for a second, so that writers seldom evict inline.
//
// A group with a quota has an order of its own. A user or a control group with a quota has one, too; its blocks are in
// that order and in the one of their group, and leave both at once. What is over a quota evicts in that quota's order.
//
// A block with a copy in a secondary tier becomes nonresident, whatever its lease: that tier keeps the promise. A block
// without one is copied first, and skipped until the copy is there. A writer that has waited for WriteTimeout takes
// its memory all the same. Then the block is lost, and counted as lost. If no copy has ended during that wait, nobody
// waits for copies until one does. A block that a tier has refused (full, write budget, admission) goes without a copy.
//
// # After a crash
//
// A file is committed if and only if it has a record (Record), written by one system call. Adopt takes over all of
// them. Of two files with one name the higher sequence number wins. A file that changed after its commit is dropped.
// The same holds between memory and the secondary tiers.
//
// # Lock order
//
// Outermost first:
//
//	prefetch.mu       the promotions of one Prefetch; its caller's Done is called with it
//	File.growth       one file's reservation and the identity of its bytes; may be
//	                  held while waiting for room, and across memory operations of
//	                  the kernel (create, copy), never across a device's
//	File.ends         one handle of a file ends at a time; held as File.commits is
//	File.commits      one file's bytes and its entry are brought in line; held across an fstat and one
//	                  fsetxattr on tmpfs
//	Files.records     a stripe: orders the writers of one record; held across one
//	                  fsetxattr on tmpfs
//	State.Mu          all tables and accounts; short sections, no system call, no
//	                  callback but those methods of Remote that do not block, no
//	                  channel that may block
//	event.Log.mu      leaf
//
// Work that must happen outside of State.Mu (unlinking files, telling the kernel,
// events) is collected in a state.Gone and done by Finish.
//
// # Decisions
//
//   - The engine, not the primary tier, owns the index: secondary tiers and peers hold blocks that memory does not,
//     and a listing must show them.
//   - A full cascade queue slows writers only when memory has nothing else to evict. A block that does not fit into
//     it waits without protection (deferred). Dropping the copy at once would lose blocks in every burst longer than
//     the queue.
//   - A rename does not copy: it is an update of the header on SSD.
//   - fsync commits a version. To keep its promise and hide the version at the same time would need two copies under
//     one name in every tier.
//   - A copy that fsync promised leaves its tier only when the next version has taken its place there, or has failed
//     to (FlagSynced). A version without fsync removes the old copy when it is committed: that costs no promise.
//   - Reservations do not fallocate. tmpfs would clear every page, and the write that follows overwrites it: that
//     halves the speed of a first write.
//   - One mutex. On two cores a hot open holds it for well under a microsecond of the 20 that the FUSE round trip
//     takes. Shard it by group when a profile asks for it.
package tiers
