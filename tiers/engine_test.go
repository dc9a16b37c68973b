package tiers_test

import (
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/state"
)

// TestCommit: a file becomes a block at its commit, once, whole, and tells so
// (A39); until then it belongs to the process that writes it.
func TestCommit(t *testing.T) {
	runScripts(t, []script{
		{name: "close", text: `
			create 10 a g/a
			write a 2p x
			stat 20 g/a -> ErrNotFound
			ls 20 g -> []
			ls 11 g -> [a]
			stat 11 g/a -> 2p 0100644 1:2 nlink 1
			cat 11 g/a -> x*2p
			flush a -> ok; stored g/a 2p
			stat 20 g/a -> 2p 0100644 1:2 nlink 1
			ls 20 g -> [a]
			cat 20 g/a -> x*2p
			release a
			stats -> used 2p pinned 0 blocks 1 writing 0
			unlink 20 g/a -> ok; removed g/a 2p unlink
			stats -> used 0 pinned 0 blocks 0 writing 0`},
		{name: "flush by another thread of the process", text: `
			create 10 a g/a
			write a 1p x
			flush a 19 -> ok; stored g/a 1p
			release a`},
		{name: "flush by a process that inherited", text: `
			create 10 a g/a
			write a 1p x
			flush a 20
			stat 20 g/a -> ErrNotFound
			write a 1p y 1p
			close a -> ok; stored g/a 2p
			cat 20 g/a -> x*1p y*1p`},
		{name: "duplicated descriptor", text: `
			create 10 a g/a
			write a 1p x
			flush a -> ok; stored g/a 1p
			flush a
			write a 1p y 1p
			flush a -> ok; stored g/a 2p
			release a
			cat 20 g/a -> x*1p y*1p`},
		{name: "shell redirection", text: `
			# open, dup2, close, write, close
			create 10 a g/a
			flush a open
			stat 20 g/a -> ErrNotFound
			write a 1p x
			close a -> ok; stored g/a 1p`},
		{name: "temporary, another descriptor left", text: `
			create 10 a g/a.tmp
			write a 1p x
			flush a open
			rename 20 g/a.tmp g/a
			write a 1p y 1p
			close a -> ok; stored g/a 2p
			cat 20 g/a -> x*1p y*1p`},
	})
}

// TestPoison: a file of which a write failed, or whose writer died of a signal,
// is never a block, under any name.
func TestPoison(t *testing.T) {
	runScripts(t, []script{
		{name: "failed write", text: `
			put 10 g/a 1p x -> ok; stored g/a 1p
			open 20 a g/a trunc -> ok; removed g/a 1p replaced
			write a 1p y
			write a 17p y -> ErrTooLarge
			write a 1p z
			flush a -> ErrPoisoned
			stat 30 g/a -> ErrNotFound
			rename 20 g/a g/b -> ErrPoisoned
			release a
			stat 20 g/a -> ErrNotFound
			stats -> used 0 pinned 0 blocks 0 writing 0`},
		{name: "killed after the commit", text: `
			create 10 a g/a
			write a 1p y
			flush a -> ok; stored g/a 1p
			flush a killed
			release a
			cat 20 g/a -> y*1p`},
		{name: "killed, and the thread that opened has ended before", text: `
			put 10 g/a 1p x -> ok; stored g/a 1p
			open 10 a g/a trunc -> ok; removed g/a 1p replaced
			write a 1p y
			flush a killed 20
			release a
			stat 20 g/a -> ErrNotFound
			stats -> used 0 pinned 0 blocks 0 writing 0`},
		{name: "a child that inherited it is killed, and its parent closes", text: `
			create 10 a g/a
			write a 1p y
			flush a killed 20
			close a -> ok; stored g/a 1p
			cat 20 g/a -> y*1p`},
		{name: "the parent closes, and a child that inherited it is killed", text: `
			create 10 a g/a
			write a 1p y
			flush a -> ok; stored g/a 1p
			flush a killed 20
			release a
			cat 20 g/a -> y*1p`},
		{name: "the thread that opened has ended, and another one closes", text: `
			create 10 a g/a
			write a 1p y
			flush a 20
			release a -> ok; stored g/a 1p
			cat 20 g/a -> y*1p`},
	})
}

// TestOneFile: a name is one file, which is private to its process until the commit; who truncates a block begins anew
// (rules 1 to 5; A9, A22).
func TestOneFile(t *testing.T) {
	runScripts(t, []script{
		{name: "rewrite of a block that nobody has open: the same inode", text: `
			put 10 g/a 2p x -> ok; stored g/a 2p
			lookup 30 r g/a -> 2p stable=true
			open 10 a g/a trunc -> ok; removed g/a 2p replaced
			stats -> used 2p pinned 2p blocks 0 writing 1
			write a 1p y
			cat 10 g/a -> y*1p
			stat 20 g/a -> ErrNotFound
			ls 20 g -> []
			ls 10 g -> [a]
			openref 30 f r -> ErrStale
			close a -> ok; stored g/a 1p
			cat 20 g/a -> y*1p
			openref 30 f r
			read f -> y*1p
			close f
			stats -> used 1p pinned 0 blocks 1 writing 0
			blobs -> 2`},
		{name: "rewrite of a block that a process has open: it keeps the bytes", text: `
			put 10 g/a 2p x -> ok; stored g/a 2p
			openr 20 old g/a
			lookup 10 r g/a -> 2p stable=true
			tryopen 10 r -> ErrStale; removed g/a 2p replaced
			stat 20 g/a -> ErrNotFound
			lookup 10 s g/a -> 0 stable=false
			reopen 10 a s
			write a 1p y
			cat 10 g/a -> y*1p
			stat 20 g/a -> ErrNotFound
			read old -> x*2p
			close a -> ok; stored g/a 1p
			cat 20 g/a -> y*1p
			read old -> x*2p
			close old
			stats -> used 1p pinned 0 blocks 1 writing 0`},
		{name: "the thread does not come back for the new file", text: `
			put 10 g/a 2p x -> ok; stored g/a 2p
			openr 20 old g/a
			lookup 10 r g/a -> 2p stable=true
			tryopen 10 r -> ErrStale; removed g/a 2p replaced
			cat 10 g/a -> ErrNotFound
			lookup 10 s g/a -> 0 stable=false
			openplain 10 s -> ErrNotFound
			rename 10 g/a g/b -> ErrNotFound
			rename 10 g/a g/b.tmp -> ErrNotFound
			advance 12s
			forget s
			stat 10 g/a -> ErrNotFound
			close old
			stats -> used 0 pinned 0 blocks 0 writing 0
			blobs -> 1`},
		{name: "its directory is renamed before the thread comes back", text: `
			mkdir g/d
			put 10 g/d/a 2p x -> ok; stored g/d/a 2p
			openr 20 old g/d/a
			lookup 10 r g/d/a -> 2p stable=true
			tryopen 10 r -> ErrStale; removed g/d/a 2p replaced
			rename 20 g/d g/e
			cat 10 g/e/a -> ErrNotFound
			stat 20 g/e/a -> ErrNotFound
			lookup 10 s g/e/a -> 0 stable=false
			reopen 10 a s
			write a 1p y
			close a -> ok; stored g/e/a 1p
			read old -> x*2p
			cat 20 g/e/a -> y*1p`},
		{name: "O_EXCL fails for all", text: `
			create 10 a g/a excl
			create 20 b g/a excl -> ErrExist
			create 10 b g/a excl -> ErrExist
			close a -> ok; stored g/a 0`},
		{name: "a directory of private files is empty to others", text: `
			mkdir g/d
			create 20 a g/d/a
			rmdirby 20 g/d -> ErrNotEmpty
			rmdir g/d
			close a
			stat 20 g/d -> ErrNotFound`},
		{name: "thread id 0 is a process like others", text: `
			# the kernel says 0 for callers of another pid namespace
			put 10 g/a 1p x -> ok; stored g/a 1p
			open 0 a g/a trunc -> ok; removed g/a 1p replaced
			write a 1p y
			stat 20 g/a -> ErrNotFound
			cat 0 g/a -> y*1p
			close a -> ok; stored g/a 1p`},
	})
}

// TestReplaced: who looked a block up that was replaced meanwhile can read it, for as long as the kernel refers to it and
// it is one of the latest. Who looked a block up that was removed looks again.
func TestReplaced(t *testing.T) {
	big := state.Options{CapacityBytes: 128 * page}
	runScripts(t, []script{
		{name: "by a rename", opts: big, text: `
			put 10 g/a 1p x -> ok; stored g/a 1p
			lookup 20 r g/a -> 1p stable=true
			put 10 g/t.tmp 1p y
			rename 10 g/t.tmp g/a -> ok; removed g/a 1p replaced; stored g/a 1p
			stats -> used 2p pinned 1p blocks 1 writing 0
			openref 20 f r
			read f -> x*1p
			cat 20 g/a -> y*1p
			close f
			stats -> used 1p pinned 0 blocks 1 writing 0
			blobs -> 2`},
		{name: "by a rename, and the kernel forgets it", opts: big, text: `
			put 10 g/a 1p x -> ok; stored g/a 1p
			lookup 20 r g/a -> 1p stable=true
			put 10 g/t.tmp 1p y
			rename 10 g/t.tmp g/a -> ok; removed g/a 1p replaced; stored g/a 1p
			blobs -> 3
			forget r
			stats -> used 1p pinned 0 blocks 1 writing 0
			blobs -> 2`},
		{name: "by renames, the oldest bytes go first", opts: big, text: `
			put 10 g/a 1p x -> ok; stored g/a 1p
			lookup 20 r1 g/a -> 1p stable=true
			put 10 g/t.tmp 1p y
			rename 10 g/t.tmp g/a -> ok; removed g/a 1p replaced; stored g/a 1p
			lookup 20 r2 g/a -> 1p stable=true
			put 10 g/t.tmp 1p z
			rename 10 g/t.tmp g/a -> ok; removed g/a 1p replaced; stored g/a 1p
			lookup 20 r3 g/a -> 1p stable=true
			put 10 g/t.tmp 1p u
			rename 10 g/t.tmp g/a -> ok; removed g/a 1p replaced; stored g/a 1p
			stats -> used 3p pinned 2p blocks 1 writing 0
			openref 20 f r1 -> ErrStale
			openref 20 f r2
			read f -> y*1p`},
		{name: "by a rename, while a process has it open", opts: big, text: `
			put 10 g/a 1p x -> ok; stored g/a 1p
			openr 30 old g/a
			lookup 20 r g/a -> 1p stable=true
			put 10 g/t.tmp 1p y
			rename 10 g/t.tmp g/a -> ok; removed g/a 1p replaced; stored g/a 1p
			tryopen 20 r -> ErrStale
			openref 20 f r
			read f -> x*1p
			read old -> x*1p
			cat 20 g/a -> y*1p
			close old
			close f
			stats -> used 1p pinned 0 blocks 1 writing 0
			blobs -> 2`},
		{name: "a private file that has lost its name, by its own process", text: `
			create 10 a g/a
			write a 1p x
			lookup 10 r g/a -> 1p stable=false
			create 20 b g/a trunc
			openref 10 f r -> ErrStale
			read a -> x*1p
			close a
			close b -> ok; stored g/a 0`},
		{name: "in a full pinned group", opts: state.Options{CapacityBytes: 128 * page, Groups: map[block.GroupID]state.GroupOptions{"p": {Pinned: true, QuotaBytes: 3 * page}}}, text: `
			mkdir p
			put 10 p/a 1p x
			put 10 p/b 1p x
			lookup 20 r p/a -> 1p stable=true
			put 10 p/t.tmp 1p y
			rename 10 p/t.tmp p/a
			put 10 p/t.tmp 1p z
			rename 10 p/t.tmp p/b
			cat 20 p/a -> y*1p
			cat 20 p/b -> z*1p`},
	})
}

// TestRename: rename commits, replaces and moves, and refuses what POSIX
// refuses.
func TestRename(t *testing.T) {
	long := strings.Repeat("n", 256)
	runScripts(t, []script{
		{name: "temporary directory", text: `
			mkdir g/tmp
			put 10 g/tmp/a 1p x
			rename 10 g/tmp/a g/a -> ok; stored g/a 1p
			mkdir g/tmp/d
			put 10 g/tmp/d/b 1p x
			rename 10 g/tmp/d/b g/b -> ok; stored g/b 1p`},
		{name: "committed", text: `
			put 10 g/a 1p x -> ok; stored g/a 1p
			rename 20 g/a g/b -> ok; renamed g/b<-g/a 1p
			rename 20 g/b g/b.tmp -> ok; removed g/b 1p renamed
			cat 10 g/b.tmp -> x*1p
			rename 20 g/b.tmp c -> ok; stored c 1p`},
		{name: "replaces a block", text: `
			put 10 g/a 1p x -> ok; stored g/a 1p
			put 10 g/b 2p y -> ok; stored g/b 2p
			openr 20 r g/b
			rename 20 g/a g/b noreplace -> ErrExist
			rename 20 g/a g/b -> ok; removed g/b 2p replaced; renamed g/b<-g/a 1p
			cat 20 g/b -> x*1p
			read r -> y*2p
			close r
			stats -> used 1p pinned 0 blocks 1 writing 0`},
		{name: "errors", text: `
			put 10 g/a 1p x -> ok; stored g/a 1p
			mkdir g/d
			mkdir g/d/e
			mkdir g/f
			rename 10 g/none g/b -> ErrNotFound
			rename 10 g/a g/d -> ErrIsDir
			rename 10 g/d g/a -> ErrNotDir
			rename 10 g/d g/d/e/x -> ErrLoop
			rename 10 g/d g/d/e -> ErrLoop
			rename 10 g/f g/d -> ErrNotEmpty
			rename 10 g/a g/a/b -> ErrNotDir
			rename 10 g/a ` + long + ` -> ErrNameTooLong
			rename 10 g/a .kvfs -> ErrReserved
			rename 10 g/a g/.kvfs -> ok; renamed g/.kvfs<-g/a 1p
			rename 10 g/f g/d noreplace -> ErrExist
			rename 10 g/f g/d/e
			create 20 h g/h
			rename 10 g/h g/i -> ErrNotFound
			rename 10 g/.kvfs g/.kvfs`},
		{name: "directories move", text: `
			mkdir g/d
			put 10 g/d/a 1p x -> ok; stored g/d/a 1p
			create 10 b g/d/b
			write b 1p y
			mkdir h
			rename 10 g/d h/e
			cat 20 h/e/a -> x*1p
			group g -> used 0 expects 1p
			group h -> used 2p expects 0
			close b -> ok; stored h/e/b 1p`},
		{name: "directory into a full group", opts: state.Options{CapacityBytes: 64 * page, Groups: map[block.GroupID]state.GroupOptions{"q": {QuotaBytes: 3 * page}}}, text: `
			mkdir q
			put 10 q/1 1p x -> ok; stored q/1 1p
			put 10 q/2 1p x -> ok; stored q/2 1p
			put 10 q/3 1p x -> ok; stored q/3 1p
			mkdir g/d
			put 10 g/d/a 1p x -> ok; stored g/d/a 1p
			put 10 g/d/b 1p x -> ok; stored g/d/b 1p
			rename 10 g/d q/d -> ok; evicted q/1 1p quota; evicted q/2 1p quota
			cat 10 q/d/a -> x*1p
			cat 10 q/d/b -> x*1p
			stat 10 q/1 -> ErrNotFound
			group q -> used 3p expects 1p`},
		{name: "directory into a full pinned group", opts: state.Options{CapacityBytes: 64 * page, Groups: map[block.GroupID]state.GroupOptions{"p": {Pinned: true, QuotaBytes: 1 * page}}}, text: `
			mkdir p
			put 10 p/1 1p x
			mkdir g/d
			put 10 g/d/a 1p x -> ok; stored g/d/a 1p
			# a quota is not enforced on what is already there
			rename 10 g/d p/d
			group p -> used 2p expects 0
			stats -> used 2p pinned 2p blocks 2 writing 0
			put 10 p/2 1p x -> ErrQuota`},
		{name: "file into a full group", opts: state.Options{CapacityBytes: 64 * page, Groups: map[block.GroupID]state.GroupOptions{"q": {QuotaBytes: 1 * page}, "p": {Pinned: true, QuotaBytes: 1 * page}}}, text: `
			mkdir q
			mkdir p
			put 10 q/1 1p x -> ok; stored q/1 1p
			put 10 p/1 1p x
			put 10 g/a 1p y -> ok; stored g/a 1p
			put 10 g/b 1p z -> ok; stored g/b 1p
			rename 10 g/a p/2 -> ErrQuota
			rename 10 g/a q/2 -> ok; evicted q/1 1p quota; renamed q/2<-g/a 1p
			# the block that is replaced makes room by itself
			rename 10 g/b q/2 -> ok; removed q/2 1p replaced; renamed q/2<-g/b 1p
			cat 10 q/2 -> z*1p`},
		{name: "block onto a pinned one in a full group", opts: state.Options{CapacityBytes: 64 * page, Groups: map[block.GroupID]state.GroupOptions{"p": {Pinned: true, QuotaBytes: 1 * page}}}, text: `
			mkdir p
			put 10 p/1 1p x
			put 10 g/a 1p y -> ok; stored g/a 1p
			rename 10 g/a p/1 -> ok; removed g/a 1p renamed
			cat 10 p/1 -> y*1p`},
	})
}
