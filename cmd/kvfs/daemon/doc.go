// Package daemon is a process that holds a mount, or owns memory and disk for the mounts of
// other processes. It opens the tiers, the cluster, the engine, the FUSE front and the control
// files and events (surface), serves, and closes all of it. There are three:
//
//	Mount     a mount with an engine of its own (embedded), or, in mode standalone-store, one that
//	          an owner answers (attachment)
//	TakeOver  the same for a mount that another daemon serves: embedded again
//	Serve     the owner of many mounts (owner)
//
// A start opens from the bottom up (openDaemon), mounts, and tells the waiting processes (Readiness). A
// stop goes the other way. A small child watches each process with a mount, in case it is killed
// (Watcher). Package handoff has the messages between these processes, package status their status. A
// daemon does not read its settings again: another daemon takes the mount over with new ones.
package daemon

import "time"

// Program describes this program. Its methods are the lives of daemons.
type Program struct {
	Version string           // sent to peers, mounts, other daemons, and in the status
	Clock   func() time.Time // the time of the engine and of its messages; nil: the machine's
}
