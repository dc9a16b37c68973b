// Package outcome knows why a block is not there.
//
//	Reason   why something happened to a block: one table has its word, its verdict and its text
//	Cause    a Reason, and the Actor that asked for it
//	Outcome  what happened to a name
//	History  the outcomes of the latest MaxNames names, through renames of directories
//	Verdict  the answer to "why", in words
//
// The package knows nothing of entries, tiers or events. Its user tells a History what happens and asks it
// about names that are not there. It reads no clock and takes no lock.
package outcome
