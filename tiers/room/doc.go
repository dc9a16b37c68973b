// Package room keeps the accounts of memory: what may be handed out, and who has it.
//
//	Room     the capacity, what is used and pinned of it, and whether more can be had
//	Group    one KV-cache group: its quota, its use, the block size that it learned
//	Account  what the files of a user or of a control group use, if they have a quota
//	Bill     who pays for a file: its group, and up to two accounts
//	Victims  what a Room needs to know of blocks: two functions to have some of them go
//	Leases   the leases of requests that were not released
//
// The package knows nothing of names, files or tiers. Its user tells a Room what each file costs, and asks it
// before it hands out more. Sizes are in bytes. Times are in Unix nanoseconds, from the user's clock.
//
// # Limits
//
// What is used is to stay below the limit. That is the capacity, or less while the file system behind memory
// has less left (Measure). Above it comes the headroom: a file that has bytes already may use half of it rather
// than fail (Overruns), unless the file system is short.
//
// # Waiting
//
// Nothing here waits. Space returns a channel that is closed when room may have appeared, so that the user
// waits for it without its lock. Hopeless and Refusal say when no wait helps.
package room
