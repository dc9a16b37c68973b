// Package lane is the traffic between the engine and one lower tier: what waits to be copied down, removed,
// renamed or loaded, in which order it goes, what is under way, and how long a load will take.
//
//	Lane   the queues of one tier, and the goroutine that empties them
//	Store  a block to be copied down
//	Load   a block to be brought up
//	Tree   the blocks below a directory that was renamed
//	Owner  what a Lane asks of the engine
//
// A Lane knows blocks by the number and the version of their entry. It does not know names, files that are
// written, or why a block moves: of these it asks its Owner.
//
// # Order
//
// All that changes what the tier holds goes through two queues: removals and updates through one, copies
// through the other. The first has priority, and nothing is begun while its head waits for a copy of the same
// key to end. A Store takes its key from the Owner when it is begun, so that a rename before counts. One whose
// block is gone by then, or has another version, is not begun. So the tier sees the operations on one key in
// the order of what happened to the name.
//
// Loads do not change the tier and have a queue of their own: blocks that a reader waits for come before those
// that were asked for ahead of use, and each job has blocks of one request alone.
//
// # Locks
//
// A Lane is guarded by the lock of its Owner (Options.Lock), because what it does has to agree with the names
// at that moment. Methods that end in Locked need it. All others must be called without it. No lock is held
// while the tier is called.
package lane
