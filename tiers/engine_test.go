package tiers_test

import "testing"

// TestCommit: a file becomes a block at its commit, once, whole, and tells so
// (A9, A39); until then it belongs to the process that writes it.
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
	})
}
