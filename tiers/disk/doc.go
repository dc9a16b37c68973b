// Package disk is the SSD tier: blocks in the slots of preallocated slab files,
// written and read past the page cache.
//
//	Tier      driver.Tier over one or more directories, one a device
//	Check     fsck: what is wrong with a directory, and repair
//
// Its parts are packages of their own, which do not know it:
//
//	format    what is on disk, byte by byte
//	recovery  one directory: lock, superblock, start, index, fsck
//	port      the way to one device: operations, watchdog, staging buffers
//	durable   the syncs of one device, and the calls that wait for them
//	slotmap   which block is in which slot of all devices, free slots, eviction order
//
// # What is written when
//
// A slab is marked in the superblock, durably, before its first change since the index was written. A start takes the
// slabs without a mark from the index, and reads the tables of the others. A clean close writes the index. So does a
// checkpoint, once a minute at most: of the slabs whose tables are durable and agree with the slot map at that moment.
//
// A store writes the data, then the slot's header. A crash between the two leaves the slot free. A
// removal or an eviction writes the free header, and only then is the slot given out again. So no
// old header ever stands over new data, unless the device reorders writes across a power cut. The
// checksum of the data finds that case. Headers of adjacent slots go in one write.
//
// How bytes move, by size (measured on 2 cores of a virtual machine, reads with 8 at a time, GB/s):
//
//	small    below 2 MiB: whole, through a buffer. Several adjacent ones go in one operation. A load into the mapping of
//	         the file took 5 to 7 times as long, because each page of 4 KiB is a fault: 256 KiB 0.25, now 1.4
//	large    loads come in pieces of 1 MiB, four at a time. The next ones are read while one is verified and written
//	         to the file: 4 MiB 4.1. Into a mapping it was 3.2: its pages must be cleared before the device fills them
//	         Stores go from the mapping of the file: 16 MiB 1.17. In pieces it was 0.95
//
// A block that is removed or renamed while its device is offline stays unchanged on that device. If
// the device is back at the next start, the block is back under its old name. If another device
// stored the block anew meanwhile, the higher seq counts.
//
// Nothing is synced per block. A group fdatasync comes every SyncBytes or SyncInterval, at Sync and
// at Close. A sync that fails takes the device offline, because the kernel does not write the lost
// pages again.
package disk
