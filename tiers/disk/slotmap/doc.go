// Package slotmap is what the SSD tier remembers of its devices: which block is in which slot, which
// slots and slabs are free, in which order blocks are evicted, and which headers are to be written.
//
//	Map       the blocks of all devices: their keys, attributes and slots
//	Space     one device: slabs, size classes and numbers, against the capacity
//	Slab      one file, cut into equal slots of one size class
//	Class     the slots of one size, and the order of eviction
//
// It does no I/O, starts no goroutine and takes no lock: the caller serialises all calls, since every
// change to a block changes a slot map and a space together.
package slotmap
