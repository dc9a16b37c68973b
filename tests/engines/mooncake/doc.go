// Package mooncake replays what Mooncake's distributed file system back-end (DFS) does with its POSIX adapter: a master
// makes shards, and clients write and read ranges of them in place. docs/engines/mooncake.md is the recipe. The other
// back-ends are in tests/mount.
package mooncake
