// Package index is the flat table of names. It holds directories and files, their attributes, and
// the order of the entries of a directory. It has every name below the mount. At 10 million blocks,
// its shape decides the daemon's memory and the length of its garbage collections.
//
// Index is the table, Entry one directory or file in it, ID the number of an
// entry. An ID is what other tables (eviction policy, inode numbers) carry.
//
//	x := index.New()
//	id := x.Alloc()
//	x.At(id).Fields().Mode = syscall.S_IFREG | 0o644
//	x.Link(id, index.Root, "ab34")
//	x.Walk("ab34") == id
//
// # States of an entry
//
//	free      on the free list; At panics
//	unlinked  after Alloc or Unlink: has attributes, but no name, no parent, no children
//	linked    after Link: found by Lookup, listed by ReadDir
//
//	free -Alloc-> unlinked -Link-> linked -Unlink-> unlinked -Free-> free
//
// An unlinked file that is open or known to the kernel stays an unlinked entry until the caller
// frees it.
//
// # Layout
//
// No pointers are kept per entry, so the collector has nothing to follow. There are three parts,
// each made of fixed chunks. So growing never copies, and an *Entry stays where it is:
//
//	entries  chunks of 1024 Entry; ID = chunk<<10 | slot; the free ones chained
//	buckets  chunks of 4096 ID: hash table over (parent, name), chained through
//	         Entry.chain, split one bucket for each entry that is linked
//	names    64 size classes, of 4 to 256 bytes in steps of 4; a class has
//	         chunks of 512 slots and chains its free slots through themselves
//
// A hash is stored in half its bytes: 16 lower-case hexadecimal digits as 8 bytes, as often as the
// name begins with them.
//
// An Entry is 128 bytes. Those that a look-up reads are the first 64, one cache line. What few
// entries have is in maps: the children of a directory, and the time when a file expires.
//
// The hash table is Litwin's linear hashing (VLDB 1980): with n buckets and n/2 < 2^k <= n, bucket
// n-2^k is split into itself and bucket n, then n grows by one. The load stays at one entry a
// bucket, and no call rehashes the whole table. Doubling it at once would stop every look-up for
// most of a second at 10 million entries. The hash is seeded, so chosen names cannot be made to
// share a bucket.
//
// Siblings are a doubly linked list in ascending order of a counter that each Link advances. The
// counter's value is the entry's cookie in ReadDir. New siblings come last and none ever moves. So
// an interrupted scan finds its place again, whatever was added or removed. An entry that is renamed
// within its directory keeps its place. One that gets a name right after another entry has lost it takes
// the place of that one. So a scan sees a name that is replaced meanwhile once, and a scan that stops at
// the cookie that was the last one when it began (Last) ends, whatever is renamed meanwhile.
//
// # Memory
//
// An entry costs 128 bytes, its bucket 4, and its name what is stored of it, rounded up to 4. That is
// 168 bytes with 64 digits and ".bin" (BenchmarkMemory). Chunks are kept for reuse and never given back.
// So the memory is that of the largest number of entries so far, at most 2^32-2.
//
// # Concurrency
//
// The caller serialises all calls, and all use of an *Entry. Methods that only read (Lookup, Walk,
// At, the paths and scans) may run in parallel with each other. No method blocks. Only growth and
// the methods that return a string allocate.
//
// Misuse (a free ID, linking twice, freeing a linked entry) is a bug of the
// caller and panics.
//
// # Decisions
//
//   - One table keyed by (parent, name), not one by full path: renaming a
//     directory touches one entry, and the group's name is stored once. The
//     price is one look-up a path component.
//   - Sibling lists, not sorted arrays or trees per directory: 12 bytes a file.
//     A scan whose last entry has gone meanwhile must search for its place
//     along the list.
package index
