// Package trace records what processes ask of a mount, and plays it on another one.
//
//	Record    reads .kvfs/accesslog and writes a trace, without names
//	Replay    performs the operations of a trace in a directory, and reports times and hits
//
// A trace is JSON, one object a line: a Head, then an Op for each operation. It is compressed if the name of its file
// ends with .gz. Each component of a path is replaced by a keyed hash, with a key that nobody keeps: equal names stay
// equal, and groups stay groups.
package trace

import "time"

// version is that of the form of a trace.
const version = 1

// Head is the first line of a trace.
type Head struct {
	Version int       `json:"kvfs_trace"`
	Start   time.Time `json:"start"`
	Reads   string    `json:"reads"` // how bytes were read: mount.read_path of the status
}

// What an operation does.
const (
	Lookup = "lookup" // a name was looked up, and nothing was opened
	Read   = "read"   // a block was opened: it is read whole
	Write  = "write"  // a block was written, and got this name
	Rename = "rename"
	Remove = "remove"
	Lost   = "lost" // Size operations are missing here
)

// Op is one operation of a trace.
type Op struct {
	At     int64  `json:"t"` // microseconds from Head.Start
	Worker int    `json:"w"` // the process that asked: they are numbered from 0 on
	Do     string `json:"do"`
	Path   string `json:"p,omitempty"`
	To     string `json:"to,omitempty"` // of Rename
	Size   int64  `json:"s,omitempty"`  // of the block, in bytes
	Miss   bool   `json:"miss,omitempty"`
	Failed string `json:"err,omitempty"` // the name of another errno
	Took   int64  `json:"d,omitempty"`   // microseconds that the daemon took for the request
}
