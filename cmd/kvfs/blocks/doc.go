// Package blocks is what commands do with the blocks that a command line names: look them up, find the
// longest hit of a prompt, prefetch, evict, pin them, say why they are absent, follow what happens to them.
// Each is a type or a function that asks the daemon, in as many requests as the names take, prints the
// answers for people or as JSON, and fails where the command is to fail. Which blocks are meant is found out
// before, by package client.
package blocks

import "io"

// Streams are those of a command.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}
