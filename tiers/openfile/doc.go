// Package openfile has the files that processes open: which file a process gets, commits and renames. Package draft has the rules; this package does what they say.
//
//	File    the write side of an entry; other packages see it as state.WriteSide
//	Handle  one open of a File for writing
//
// It owns the Files, the records of entries in memory (record.go). The
// locks of a File come before State.Mu; the order of all of them is in go doc -all ./tiers.
package openfile
