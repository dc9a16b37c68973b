// Package replay does to a mount what inference engines do to files, without
// the engines: the packages beside it have, for each engine, its names, system
// calls, flags, sizes, threads and answers to errors; this one has what they
// share.
//
// A Chat is the work: conversations of several turns, each of which looks up the
// blocks of everything said so far, loads those that are there, and stores the
// others as if it had computed them. Every byte that is loaded is compared with
// what follows from the block's name. A Tally says what came of it: a block that
// is not there is a miss and computed again; wrong bytes, and errors that the
// engine would not survive, are failures.
//
// A Process runs chats in a process of its own, which lives through restarts of
// the daemon and keeps what the engine keeps in its memory.
//
// The work follows from a seed, which is printed; KVFS_TEST_SEED sets it.
package replay
