// Package recovery is one directory of the SSD tier at rest: who may use it, its superblock and index, and
// all that it holds, read as a whole.
//
//	Open     checks a directory, locks it, and reads or makes the superblock
//	Dir      the superblock while the tier runs; Recover at its start, Checkpoint meanwhile, SaveIndex at its end
//	Check    fsck: what is wrong with a directory, and repair
//
// The caller reads and writes blocks, in the files that SlabPath names. This package reads whole
// tables and, in Check, whole slabs: past the page cache, in pieces, on several goroutines that end
// before the call does. Package format draws the bytes.
package recovery
