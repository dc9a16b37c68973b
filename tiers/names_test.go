package tiers_test

import (
	"strings"
	"testing"
)

// TestNames: names are checked as POSIX asks, whoever else is writing there.
func TestNames(t *testing.T) {
	long, longest := strings.Repeat("n", 256), strings.Repeat("n", 255)
	runScripts(t, []script{
		{name: "limits", text: `
			create 10 a ` + long + ` -> ErrNameTooLong
			mkdir ` + long + ` -> ErrNameTooLong
			put 10 g/` + longest + ` 1p x -> ok; stored g/` + longest + ` 1p
			cat 20 g/` + longest + ` -> x*1p
			create 10 a g/.. -> ErrInvalid
			mkdir g/. -> ErrInvalid
			create 10 a .kvfs -> ErrReserved
			mkdir .kvfs -> ErrReserved
			put 10 g/.kvfs 1p x -> ok; stored g/.kvfs 1p
			put 10 none/a 1p x -> ErrNotFound
			create 10 a g/.kvfs/a -> ErrNotDir
			mkdir g/.kvfs/a -> ErrNotDir`},
		{name: "exclusive", text: `
			put 10 g/a 1p x -> ok; stored g/a 1p
			create 10 b g/a excl -> ErrExist
			create 10 b g/b excl
			create 10 c g/b excl -> ErrExist
			create 20 c g/b excl -> ErrExist
			mkdir g/b -> ErrExist
			create 20 c g -> ErrIsDir
			create 20 c g excl -> ErrExist`},
		{name: "rmdir", text: `
			rmdir g/d -> ErrNotFound
			mkdir g/d
			put 10 g/d/a 1p x -> ok; stored g/d/a 1p
			rmdir g/d -> ErrNotEmpty
			rmdir g/d/a -> ErrNotDir
			unlink 10 g/d -> ErrIsDir
			unlink 10 g/d/a -> ok; removed g/d/a 1p unlink
			unlink 10 g/d/a -> ErrNotFound
			create 20 h g/d/h
			rmdirby 20 g/d -> ErrNotEmpty
			unlink 10 g/d/h -> ErrNotFound
			close h -> ok; stored g/d/h 0
			unlink 10 g/d/h -> ok; removed g/d/h 0 unlink
			rmdir g/d
			blobs -> 1`},
		{name: "absence is cached only if it is the same for all", text: `
			lookup 10 r g/a -> ErrNotFound stable=true
			create 20 a g/a
			lookup 10 r g/a -> ErrNotFound stable=false
			lookup 20 r g/a -> 0 stable=false
			close a -> ok; stored g/a 0
			lookup 10 r g/a -> 0 stable=true`},
	})
}
