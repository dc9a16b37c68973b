package kvfs_test

import (
	"context"
	"fmt"
	"log"

	kvfs "github.com/kvfs/kvfs/clients/go"
)

// Example writes a block, finds it among others, and reads it.
func Example() {
	ctx := context.Background()
	c, err := kvfs.Open("/mnt/kv")
	if err != nil {
		log.Fatal(err)
	}
	if err := c.Put("g0/9f08", []byte("the bytes of a block")); err != nil {
		log.Fatal(err)
	}
	blocks := kvfs.Blocks{Group: "g0", Hashes: []string{"9f08", "77aa"}}
	found, err := c.Exists(ctx, blocks, kvfs.LookupOptions{Request: "req-1"})
	if err != nil {
		log.Fatal(err)
	}
	var buf []byte
	for _, hash := range blocks.Hashes[:found.Prefix] {
		if buf, err = c.Get("g0/"+hash, buf); err != nil {
			log.Fatal(err) // fs.ErrNotExist: it is gone again, compute it
		}
		fmt.Printf("%s: %d bytes\n", hash, len(buf))
	}
	if _, err := c.Release(ctx, "req-1"); err != nil {
		log.Fatal(err)
	}
}
