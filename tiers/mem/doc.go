// Package mem is the primary tier: memory in files of a tmpfs, which the kernel
// can serve by itself and which outlive the process.
//
// A Store is one directory. As root it is a tmpfs of its own, made with the
// size and the huge-page policy that the tier needs; without the right to mount
// it is a directory of /dev/shm and shares that file system's limits:
//
//	/run/kvfs/<id>             root with CAP_SYS_ADMIN: a tmpfs named kvfs is mounted here
//	/dev/shm/kvfs-<uid>/<id>   anyone else
//
// The id comes from the caller, who derives it from the mount point of the file
// system, so the next process of the same mount finds what a killed one left
// and adopts it. List and Discard are for stores that nobody came back for.
//
// # Format
//
// All files are 0600, all directories 0700, integers little-endian:
//
//	kvfs-memory        what this is, see below
//	lock               flock(LOCK_EX) of the process that has it open; its pid in decimal
//	b/<xx>/<id>        one file a block: id is the BlobID as 16 lower-case hex
//	                   digits, xx its last two
//
// The 256 buckets spread the kernel's lock on a directory and the scan at
// adoption, and being held open they spare a path walk of two components: 10.3
// instead of 11.3 us for create, record, close and unlink.
//
// A file is committed if and only if it has a record, an extended attribute
// named user.kvfs.record (tmpfs has user attributes since Linux 6.6) or, where
// that is refused and we are root, trusted.kvfs.record. It goes with the file,
// is replaced by one system call, and cannot be torn by the death of the
// process; an index file beside would need a log for that. A directory is an
// empty file whose record has the flag dir. Record, format 1:
//
//	 0  4  "KVFR"
//	 4  1  format version, 1
//	 5  1  flags: 1 dir, 2 pinned, 4 checksum valid; the rest 0
//	 6  2  n, length of the path, 0..4096; 0 only with dir
//	 8  8  blob id: the name of the file it belongs to
//	16  8  seq
//	24  8  size in bytes, at most 2^63-1
//	32  4  mode, at most 07777
//	36  4  uid
//	40  4  gid
//	44  4  mtime, nanoseconds below 10^9
//	48  8  mtime, seconds since 1970, signed
//	56  8  atime, seconds
//	64  8  expires, seconds; of the zero time.Time if never
//	72  4  atime, nanoseconds
//	76  4  expires, nanoseconds
//	80  8  checksum of the bytes, CRC-64/NVME; 0 if not valid
//	88  n  path below the mount; obeys block.CheckPath, else any bytes
//	    4  CRC-32C of all that precedes
//
// The longest is 4188 bytes; tmpfs takes 65536, ext4 about 4000.
//
// The file kvfs-memory is text, for people too. Its length never changes and is
// below 4096, so that it is rewritten in place, by one write to one page, even if
// the tmpfs is full:
//
//	kvfs-memory 1               format version of the whole store
//	id <Options.ID>
//	label <Options.Label>       as a quoted Go string, cut at 900 bytes
//	uid <decimal>               of the process that made it
//	xattr <name>                of the records, or none
//	next <16 hex digits>        no BlobID at or above this was ever given out
//	crc32c <8 hex digits>       CRC-32C of the lines above
//
// Open moves next up by 2^32 before it gives out an id, and again when those are
// used up, so an id never returns in the life of a store, whatever was removed
// or lost, without a write a block.
//
// Open discards a store that it cannot trust: another version, id, uid or
// attribute name, or damage in kvfs-memory. It removes everything in it, says
// why in the log and in Discarded, and starts empty. A single bad record costs
// its own file only.
//
// # Modified
//
// Adopt calls a file modified if its size or st_mtime differs from the record,
// so the caller of Commit puts the st_mtime it just read into Record.Mtime.
// Two kinds of change go unseen: through a shared writable mapping, for which
// tmpfs does not set st_mtime, and before Linux 6.13 within one clock tick (1 to
// 10 ms) of the last write before the commit. A checksum finds both.
//
// # Locks
//
// The gate is held for reading over the system calls of each call, none of which
// waits for a device, and for writing by Close; no callback runs under it. It is
// what keeps Close from freeing a directory descriptor under a call in progress:
// the number could name another file a moment later. It costs 11 ns of the 13 us
// that Create, Commit, close and Remove of a block take together. Below it is only
// the lock of the id lease, mu, taken once in 2^32 calls.
//
// Between processes there are two: the flock on the directory above the store,
// held while a store is attached, listed or taken down, and inside it the one
// on the file lock, held as long as the store is open.
//
// # What stays
//
// Close without keep removes everything but the directory above the store,
// /run/kvfs or /dev/shm/kvfs-<uid>. A file that somebody has open keeps its own
// memory until it is closed. Nothing is ever truncated or used again for another
// block, so a handle, mapping or transfer keeps its bytes to its end.
package mem
