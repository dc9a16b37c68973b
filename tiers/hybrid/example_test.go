package hybrid_test

import (
	"fmt"

	"github.com/kvfs/kvfs/tiers/hybrid"
)

// A model with a group of full attention and a group with a window of 32 tokens. Full attention needs
// every block of a hit; the window needs only the latest ones.
func ExampleCoordinator_Lookup() {
	c, err := hybrid.New(hybrid.Spec{HashBlockSize: 16, Groups: []hybrid.Group{
		{Kind: "full", BlockSize: 16},
		{Kind: "swa", BlockSize: 16, Window: 32},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	// Of a prompt of 100 tokens the cache holds the first four blocks of group 0, and blocks 2 and 3 of group 1.
	hit := c.Lookup(100, 6, func(group, unit int) bool {
		return unit < 4 && (group == 0 || unit >= 2)
	})
	fmt.Println(hit.Tokens)
	fmt.Println(hit.Load[0])
	fmt.Println(hit.Load[1])
	// Output:
	// 64
	// [true true true true]
	// [false false true true]
}
