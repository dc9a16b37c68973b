package tiers_test

import (
	"testing"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
)

// TestInPlace: who opens a file without O_TRUNC writes the file that is there, for all to see
// (rule 1).
func TestInPlace(t *testing.T) {
	runScripts(t, []script{
		{name: "one file for all", text: `
			put 10 g/a 2p x -> ok; stored g/a 2p
			open 10 a g/a
			open 20 b g/a
			sameino a b -> true
			close b
			write a 1p y
			read a -> y*1p x*1p
			cat 20 g/a -> y*1p x*1p
			cat 10 g/a -> y*1p x*1p
			close a -> ok; stored g/a 2p
			cat 20 g/a -> y*1p x*1p
			stats -> used 2p pinned 0 blocks 1 writing 0`},
		{name: "a reader sees what is written", text: `
			put 10 g/a 2p x -> ok; stored g/a 2p
			openr 20 r g/a
			open 10 a g/a
			sameino a r -> true
			write a 1p y 3p
			read r -> x*2p 0*1p y*1p
			stat 20 g/a -> 4p 0100644 1:2 nlink 1
			close a -> ok; stored g/a 4p
			close r
			stats -> used 4p pinned 0 blocks 1 writing 0
			blobs -> 2`},
		{name: "the last close commits", text: `
			put 10 g/a 2p x -> ok; stored g/a 2p
			open 10 a g/a
			open 20 b g/a
			write a 1p y
			close a
			write b 1p z 1p
			close b -> ok; stored g/a 2p
			cat 30 g/a -> y*1p z*1p`},
		{name: "fallocate and punch", text: `
			put 10 g/a 1p x -> ok; stored g/a 1p
			open 10 a g/a
			allocate a 3p
			punch a 1p
			cat 20 g/a -> 0*3p
			close a -> ok; stored g/a 3p
			cat 20 g/a -> 0*3p`},
		{name: "allocate keeping the size", text: `
			create 10 a g/a
			allocate a 4p keep
			stats -> used 4p pinned 4p blocks 0 writing 1
			write a 1p x
			close a -> ok; stored g/a 1p
			stats -> used 1p pinned 0 blocks 1 writing 0`},
		{name: "not written", text: `
			put 10 g/a 2p x -> ok; stored g/a 2p
			openr 20 r g/a
			open 10 a g/a
			close a
			close r
			stats -> used 2p pinned 0 blocks 1 writing 0
			unlink 20 g/a -> ok; removed g/a 2p unlink`},
		{name: "a killed writer leaves what it wrote", text: `
			put 10 g/a 2p x -> ok; stored g/a 2p
			open 10 a g/a
			write a 1p y
			flush a killed -> ok; stored g/a 2p
			release a
			cat 20 g/a -> y*1p x*1p`},
		{name: "replaced by another", text: `
			put 10 g/a 2p x -> ok; stored g/a 2p
			open 20 a g/a
			put 10 g/a 1p y -> ok; removed g/a 2p replaced; stored g/a 1p
			cat 20 g/a -> y*1p
			read a -> x*2p
			write a 1p z
			read a -> z*1p x*1p
			close a
			cat 20 g/a -> y*1p
			stats -> used 1p pinned 0 blocks 1 writing 0
			blobs -> 2`},
		{name: "emptied anew by its own process", text: `
			put 10 g/a 2p x -> ok; stored g/a 2p
			open 10 a g/a
			open 11 b g/a trunc -> ok; removed g/a 2p replaced
			sameino a b -> false
			read a -> x*2p
			write a 1p z
			cat 10 g/a -> empty
			close a
			close b -> ok; stored g/a 0
			cat 20 g/a -> empty`},
		{name: "unlinked, then written", text: `
			put 10 g/a 2p x -> ok; stored g/a 2p
			open 10 a g/a
			unlink 20 g/a -> ok; removed g/a 2p unlink
			write a 1p y
			read a -> y*1p x*1p
			close a
			stat 10 g/a -> ErrNotFound
			stats -> used 0 pinned 0 blocks 0 writing 0
			blobs -> 1`},
		{name: "an empty block is unlinked, then written", text: `
			create 10 a g/a
			close a -> ok; stored g/a 0
			open 10 b g/a
			unlink 10 g/a -> ok; removed g/a 0 unlink
			write b 1p x
			read b -> x*1p
			close b
			blobs -> 1`},
		{name: "renamed, then written", text: `
			put 10 g/a 2p x -> ok; stored g/a 2p
			open 10 a g/a
			rename 20 g/a g/b -> ok; renamed g/b<-g/a 2p
			write a 1p y
			cat 20 g/b -> y*1p x*1p
			close a -> ok; stored g/b 2p
			stat 20 g/a -> ErrNotFound`},
		{name: "truncate by name", text: `
			put 10 g/a 2p x -> ok; stored g/a 2p
			truncname g/a 1p -> ok; stored g/a 1p
			cat 20 g/a -> x*1p
			openr 20 r g/a
			truncname g/a 0 -> ok; stored g/a 0
			read r -> empty
			close r
			truncname g 0 -> ErrIsDir`},
	})
}

// TestPlain: temporary names, plain names and pinned groups are POSIX from the first byte, and no
// events tell of them (rule 3).
func TestPlain(t *testing.T) {
	pinned := tiers.Options{Groups: map[block.GroupID]tiers.GroupOptions{"p": {Pinned: true}}}
	runScripts(t, []script{
		{name: "lock file", text: `
			create 10 a g/x.lock
			write a 1p x
			cat 20 g/x.lock -> x*1p
			ls 20 g -> [x.lock]
			open 20 b g/x.lock trunc
			sameino a b -> true
			read a -> empty
			write b 1p y
			close a
			flush b killed
			release b
			cat 30 g/x.lock -> y*1p
			unlink 20 g/x.lock
			stats -> used 0 pinned 0 blocks 0 writing 0
			blobs -> 1`},
		{name: "pinned group", opts: pinned, text: `
			mkdir p
			create 10 a p/a
			stat 20 p/a -> 0 0100644 1:2 nlink 1
			write a 2p x
			cat 20 p/a -> x*2p
			open 20 b p/a trunc
			sameino a b -> true
			write b 1p y
			close a
			close b
			cat 30 p/a -> y*1p
			stats -> used 1p pinned 1p blocks 1 writing 0
			unlink 20 p/a
			stats -> used 0 pinned 0 blocks 0 writing 0`},
		{name: "temporary file, in place", text: `
			create 10 a g/x.tmp
			write a 1p x
			open 20 b g/x.tmp
			sameino a b -> true
			write b 1p y 1p
			cat 30 g/x.tmp -> x*1p y*1p
			close b
			flush a killed
			release a
			cat 30 g/x.tmp -> x*1p y*1p
			rename 30 g/x.tmp g/a -> ok; stored g/a 2p`},
		{name: "temporary file, emptied by a second process that writes it alone", text: `
			put 10 g/x.tmp 1p x
			put 20 g/x.tmp 2p y
			cat 10 g/x.tmp -> y*2p
			stats -> used 2p pinned 2p blocks 1 writing 1
			rename 10 g/x.tmp g/a -> ok; stored g/a 2p`},
		{name: "one temporary name, two processes: the later one has it", text: `
			create 10 a g/x.tmp
			write a 1p x
			open 20 b g/x.tmp trunc
			sameino a b -> false
			write b 2p y
			cat 10 g/x.tmp -> y*2p
			write a 1p x
			close a
			close b
			rename 20 g/x.tmp g/a -> ok; stored g/a 2p
			rename 10 g/x.tmp g/a -> ErrNotFound
			cat 30 g/a -> y*2p
			stats -> used 2p pinned 0 blocks 1 writing 0
			blobs -> 2`},
		{name: "one temporary name, two processes: the earlier one renames, and nobody sees a half", text: `
			create 10 a g/x.tmp
			write a 1p x
			open 20 b g/x.tmp trunc
			write b 1p y
			close a
			rename 10 g/x.tmp g/a
			stat 30 g/a -> ErrNotFound
			write b 1p y 1p
			close b -> ok; stored g/a 2p
			rename 20 g/x.tmp g/a -> ErrNotFound
			cat 30 g/a -> y*2p`},
		{name: "one temporary name, two processes: the earlier one removes it", text: `
			create 10 a g/x.tmp
			open 20 b g/x.tmp trunc
			write b 1p y
			unlink 10 g/x.tmp
			stat 20 g/x.tmp -> ErrNotFound
			close a
			close b
			stats -> used 0 pinned 0 blocks 0 writing 0
			blobs -> 1`},
		{name: "others rename a temporary file that its owner writes", text: `
			create 10 a g/x.tmp
			write a 1p x
			rename 20 g/x.tmp g/a
			stat 20 g/a -> ErrNotFound
			stat 20 g/x.tmp -> ErrNotFound
			cat 10 g/a -> x*1p
			write a 1p y 1p
			close a -> ok; stored g/a 2p
			cat 20 g/a -> x*1p y*1p`},
		{name: "others rename a temporary file that its owner writes, into another group", text: `
			mkdir h
			create 10 a g/x.tmp
			write a 1p x
			rename 20 g/x.tmp h/a
			group h -> used 1p expects 0
			close a -> ok; stored h/a 1p`},
		{name: "others rename a file that its owner writes, out of a pinned group", opts: pinned, text: `
			mkdir p
			create 10 a p/a
			write a 1p x
			rename 20 p/a g/a
			stat 20 g/a -> ErrNotFound
			fsync a -> ok; stored g/a 1p
			cat 20 g/a -> x*1p
			close a`},
		{name: "others rename a temporary file that a third process writes", text: `
			put 10 g/x.tmp 1p x
			open 30 a g/x.tmp
			put 10 g/a 1p y -> ok; stored g/a 1p
			rename 20 g/x.tmp g/a -> ok; removed g/a 1p replaced
			stat 20 g/a -> ErrNotFound
			cat 30 g/a -> x*1p
			close a -> ok; stored g/a 1p
			cat 20 g/a -> x*1p`},
		{name: "others rename a temporary file whose writer is killed then", text: `
			create 10 a g/x.tmp
			write a 1p x
			rename 20 g/x.tmp g/a
			flush a killed
			release a
			stat 10 g/a -> ErrNotFound
			blobs -> 1`},
	})
}
