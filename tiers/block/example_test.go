package block_test

import (
	"errors"
	"fmt"

	"github.com/kvfs/kvfs/tiers/block"
)

func ExampleParseKey() {
	k, err := block.ParseKey("llama/ab/cd")
	fmt.Println(k.Group, k.Hash, k.Path(), err)

	_, err = block.ParseKey("/absolute")
	fmt.Println(errors.Is(err, block.ErrInvalid))
	// Output:
	// llama ab/cd llama/ab/cd <nil>
	// true
}

// An Error names the operation, the tier and the block. Test its kind with errors.Is.
func ExampleError() {
	var err error = &block.Error{Op: "load", Tier: "disk", Key: block.Key{Group: "llama", Hash: "ab"}, Err: block.ErrNotFound}
	fmt.Println(err)
	fmt.Println(errors.Is(err, block.ErrNotFound))
	// Output:
	// load disk llama/ab: block not found
	// true
}
