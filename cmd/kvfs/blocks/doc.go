// Package blocks is what commands do with the blocks of a command line: look them up, find the longest hit
// of a prompt, prefetch, evict, pin, explain why they are absent, follow their events. Each is a type or a
// function. It asks the daemon, in as many requests as the names take, prints the answers for people or as
// JSON, and fails if the command must fail. Package client finds the blocks before.
package blocks

import "io"

// Streams are the streams of a command.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}
