// Package disk is the SSD tier: blocks in the slots of preallocated slab files,
// written and read past the page cache.
//
//	Tier      driver.Tier over one or more directories, one a device
//	Check     fsck: what is wrong with a directory, and repair
//
// Its parts are packages of their own, which do not know it:
//
//	format    what is on disk, byte by byte
//	home      one directory: lock, superblock, recovery, index, fsck
//	port      the way to one device: operations, watchdog, staging buffers
//	durable   the syncs of one device, and the calls that wait for them
//	ledger    which block is in which slot of all devices, free slots, eviction order
//
// # What is written when
//
// The flag in the superblock is cleared, durably, before the first change to a slab. A clean close
// sets it again after it has written the index.
//
// A store writes the data, then the slot's header. A crash between the two leaves the slot free. A
// removal or an eviction writes the free header, and only then is the slot given out again. So no
// old header ever stands over new data, unless the device reorders writes across a power cut. The
// checksum of the data finds that case. Headers of adjacent slots go in one write.
//
// A block that is removed or renamed while its device is offline stays unchanged on that device. If
// the device is back at the next start, the block is back under its old name. If another device
// stored the block anew meanwhile, the higher seq counts.
//
// Nothing is synced per block. A group fdatasync comes every SyncBytes or SyncInterval, at Sync and
// at Close. A sync that fails takes the device offline, because the kernel does not write the lost
// pages again.
package disk
