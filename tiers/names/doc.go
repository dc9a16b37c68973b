// Package names says what a name means to a process, how names come and go, and where many blocks are at a time. A name
// that only other nodes or a driver.Finder have gets an entry when a process asks for it.
//
// It owns the end of an entry: DropNameLocked takes its name away, and ReapLocked frees it when nothing refers to it any
// more. It also owns the leases of requests. Copies and loads of a block follow its name: see Copies.
package names
