// Package daemon is a process that holds a mount, or owns memory and disk for the mounts of others: it
// opens the tiers, the cluster, the engine, the FUSE front and what else can be asked of it (surface), and
// has its life, from the start until all of it is down again. There are three of them:
//
//	Mount     a mount with an engine of its own (embedded), or, in mode standalone-store, one that an
//	          owner answers (attachment)
//	TakeOver  the same for a mount that another daemon serves: embedded again
//	Serve     the owner of many mounts (owner)
//
// A start opens from the bottom up (openDaemon), mounts, and tells who waits for it (Readiness). A stop
// goes the other way. A small child watches each process with a mount, should that be killed (Watcher).
// Package handoff has what these processes say to each other, package status what they say of themselves.
// Settings are not read again while a daemon lives: another one takes the mount over with new ones.
package daemon

import "time"

// Program is what this program says of itself. Its methods are the lives of daemons.
type Program struct {
	Version string           // which peers, mounts, other daemons and status are told
	Clock   func() time.Time // of the engine and of what it tells others; nil: the machine's
}
