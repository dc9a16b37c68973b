// Package elsewhere is the room of other nodes: which names they have, what this node tells them, lends to them and takes
// from them.
//
// It owns the entries that stand only for a file or directory of other nodes: it makes them when a process asks for the
// name, and forgets them when nothing refers to them. It makes those of what a driver.Finder has, too, which stay. Most
// of it does nothing without a Remote tier.
package elsewhere
