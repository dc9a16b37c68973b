// Package catalog is the one place that changes what the engine knows of files and directories. The index has their
// names and fields; the packages of the engine read them, and say here what happens.
//
//	change := c.Apply(catalog.Opened{ID: id, N: 1})
//
// An Edit is one thing that happens to one entry. Apply makes the change, and all that follows from it: what the entry
// costs and who pays, whether the cost counts as pinned, its place in the orders of eviction, and the counters of
// blocks. So none of these can be forgotten, and none is computed elsewhere. A Change says what was and what is.
//
// Apply does no I/O, calls nobody but Follow, and cannot fail. What an Edit needs to be true is said at the Edit; the caller has
// checked it in the same critical section. Follow hears what the event log, the
// outcomes of look-ups and the samples of reuse are made of. What else follows from a change outside the catalog (copies
// in tiers, notices to kernels) is done by the caller, who has the Change.
//
// # Writing
//
// A file that a process writes costs what was reserved for it, or what it has, whichever is more. Its Writing keeps
// that number. It is part of the caller's write side of the file, and only this package changes it.
//
// # Concurrency
//
// The caller serialises all calls, as those of package index. The engine calls Apply in its critical section.
//
// # Cost
//
// An Edit is a value, and Apply is small enough for the compiler to put its body in the place of the call. So an Edit is
// never moved to the heap, and the call goes straight to the code of its kind.
package catalog
