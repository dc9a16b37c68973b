package index_test

import (
	"fmt"
	"syscall"

	"github.com/kvfs/kvfs/tiers/index"
)

func Example() {
	x := index.New()
	dir, file := x.Alloc(), x.Alloc()
	x.At(dir).Fields().Mode = syscall.S_IFDIR | 0o755
	x.At(file).Fields().Mode = syscall.S_IFREG | 0o644
	x.Link(dir, index.Root, "llama")
	x.Link(file, dir, "ab34")

	fmt.Println(x.Walk("llama/ab34") == file, x.Path(file), x.Children(dir))

	x.Unlink(file)
	fmt.Println(x.Lookup(dir, "ab34"), x.Children(dir))
	x.Free(file)
	// Output:
	// true llama/ab34 1
	// 0 0
}
