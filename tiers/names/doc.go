// Package names is the room of the tree of names: what a name means to a process, how names come and go, attributes, and
// the presence of many names at a time.
//
// It owns the end of an entry: DropNameLocked takes its name away, and ReapLocked frees it when nothing refers to it any
// more. It also owns the leases of requests. Its fields are guarded by State.Mu.
package names
