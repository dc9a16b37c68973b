// Package mem is the primary tier: memory in files of a tmpfs. The kernel can serve these files
// alone, and they outlive the process.
//
// A Store is one directory. As root it is a tmpfs of its own, with the size and the huge-page
// policy that the tier needs. Without the right to mount it is a directory of /dev/shm, and shares
// the limits of that file system:
//
//	/run/kvfs/<id>             root with CAP_SYS_ADMIN: a tmpfs named kvfs is mounted here
//	/dev/shm/kvfs-<uid>/<id>   anyone else
//
// The caller derives the id from the mount point of the file system. So the next process of the
// same mount finds and adopts what a killed one left. List and Discard are for stores that no
// process came back for.
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
// The 256 buckets spread the kernel's lock on a directory and the scan at adoption. They are held
// open, which saves a path walk of two components: create, record, close and unlink take 10.3 us
// instead of 11.3 us.
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
//	 5  1  flags: 1 dir, 2 pinned, 4 checksum valid, 8 link, 16 user; the rest 0
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
//	    2  with the flag link: m, its length
//	    m  the temporary name that the file still has, a path below the mount
//	    2  with the flag user: k, its length
//	    k  attributes of processes, as block.UserAttrs
//	    4  CRC-32C of all that precedes
//
// The longest is 12384 bytes; tmpfs takes 65536, ext4 about 4000.
//
// The file kvfs-memory is text, also for people. Its length never changes and is below 4096. So one
// write to one page rewrites it in place, even if the tmpfs is full:
//
//	kvfs-memory 1               format version of the whole store
//	id <Options.ID>
//	label <Options.Label>       as a quoted Go string, cut at 900 bytes
//	uid <decimal>               of the process that made it
//	xattr <name>                of the records, or none
//	next <16 hex digits>        no BlobID at or above this was ever given out
//	crc32c <8 hex digits>       CRC-32C of the lines above
//
// Open moves next up by 2^32 before it gives out an id, and again when those are used up. So an id
// never returns in the life of a store, whatever was removed or lost, and no block costs a write.
//
// Open discards a store that it cannot trust: another version, id, uid or attribute name, or damage
// in kvfs-memory. It removes everything in it, gives the reason in the log and in Discarded, and
// starts empty. A single bad record costs only its own file.
//
// # Modified
//
// Adopt calls a file modified if its size or st_mtime differs from the record. So the caller of
// Commit puts the st_mtime it just read into Record.Mtime. Two kinds of change go unseen: those
// through a shared writable mapping, for which tmpfs does not set st_mtime, and before Linux 6.13
// those within one clock tick (1 to 10 ms) of the last write before the commit. A checksum finds
// both.
//
// # Locks
//
// Each call holds the gate for reading over its system calls. None of them waits for a device.
// Close holds it for writing. No callback runs under it. The gate keeps Close from freeing a
// directory descriptor under a call in progress: its number could name another file a moment later.
// It costs 11 ns of the 13 us that Create, Commit, close and Remove of a block take together. Only
// the lock of the id lease is below it, taken once in 2^32 calls.
//
// Two locks work between processes. The flock on the directory above the store is held while a
// store is attached, listed or removed; Close takes it shared, so that many can close at once. The
// flock on the file lock inside is held as long as the store is open.
//
// # What stays
//
// Close without keep removes everything but the directory above the store, /run/kvfs or
// /dev/shm/kvfs-<uid>. An open file keeps its own memory until it is closed. No file is ever
// truncated or used again for another block. So a handle, mapping or transfer keeps its bytes to
// its end.
package mem
