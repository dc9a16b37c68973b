// Package writing is the room of files that are opened: which file a process gets, commits and
// renames. Package draft has the rules; this package does what they say.
//
//	File    the write side of an entry; other rooms see it as state.WriteSide
//	Handle  one open of a File for writing
//
// It owns the Files, the blocks that were replaced and can still be opened (limbo.go), the records of entries in memory
// (record.go), and the pins of files that are open for reading. The locks of a File come before State.Mu; the order of
// all of them is in go doc -all ./tiers.
package writing
