package mooncake

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/engines/replay"
)

// shardPath is the file of a shard.
func shardPath(root string, shard int) string {
	return filepath.Join(root, fmt.Sprintf("dfs_shard_%02d.data", shard))
}

// preallocate is what the master does once for each shard.
func preallocate(path string, size int64) error {
	f, err := replay.Open(path, unix.O_RDWR|unix.O_CREAT, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}

// client is a client with an open shard. It keeps the descriptor.
type client struct{ file replay.File }

// open opens a shard for reading and writing, whichever the client wants.
func open(path string) (client, error) {
	f, err := replay.Open(path, unix.O_RDWR|unix.O_CREAT, 0o644)
	return client{f}, err
}

// put writes an object of several pieces at its place in the shard.
func (c client) put(off int64, p []byte) error {
	return c.file.Pwritev(off, p[:len(p)/3], p[len(p)/3:])
}

// get reads an object.
func (c client) get(off int64, p []byte) error {
	return c.file.Preadv(off, p[:len(p)/2], p[len(p)/2:])
}
