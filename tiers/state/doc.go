// Package state is what the packages of the engine share: the catalog of names and accounts, the tiers, the log of events,
// and the one lock that guards them.
//
// The lock is State.Mu. A method whose name ends in Locked is called with the lock held, and returns with it held. Other
// methods are called without it. The lock is held for short sections: no system call, no channel that may block, no
// callback but those methods of driver.Remote that do not block. Work for which it must be released is collected in a
// Gone, and Finish does it. The other locks of the engine, and their order, are in go doc -all ./tiers.
//
// What a package keeps to itself is a field of its own type, also if the lock guards it.
package state
