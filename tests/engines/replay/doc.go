// Package replay does to a mount what inference engines do to files, without the engines. The packages beside it have
// the names, system calls, flags, sizes, threads and answers to errors of each engine. This package has the common
// parts.
//
// A Chat is the work: conversations of several turns. Each turn looks up the blocks of the conversation so far, loads
// those that are there, and stores the rest as if it had computed them. Every loaded byte is compared with the
// content that follows from the name of the block. A Tally counts the results. A missing block is a miss and is
// computed again. Wrong bytes are failures, and so are errors that the engine would not survive.
//
// A Process runs chats in a process of its own. It lives through restarts of the daemon and keeps in memory what the
// engine keeps there.
//
// The work follows from a seed, which is printed; KVFS_TEST_SEED sets it.
package replay
