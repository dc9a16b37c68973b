// Package device talks to the kernel by way of /dev/fuse: it mounts, reads the requests, has them answered by
// Files, writes the answers, and sends notices. It knows the protocol, and nothing of names, blocks or tiers.
//
//	Session    a mount: its files, which its process keeps and passes from owner to owner
//	Conn       one owner's share of a mount: from Answer or MountHelper on, until Leave or the end of the mount
//	Files      what answers the requests; package fs has it
//	Epoch      the owner's number, which is part of each node's
//	FailAll    answers where there is no owner; OpenAbort gives a mount up
//
// A Conn gets its requests in one of two ways. That of a Session reads /dev/fuse itself (loop.go), by one thread
// that answers most requests without waking another. MountHelper is go-fuse's server, mounted by
// fusermount3 for those who may not call mount(2).
//
// # The order of things
//
//	Answer, MountHelper    the first request, INIT, is answered, or what an earlier owner left is sent again
//	Start                  requests are read; notices are sent, those that were asked for before, too
//	Leave                  of a Session: what waits is left to the next owner, all else is answered
//	Wait                   the mount is gone
//	Close                  the descriptors are closed
//
// # Numbers of nodes
//
// Files have numbers of their own, below ServiceNodes, or from there on and below 1<<42, if they are no
// blocks. To the kernel each carries the Epoch of the owner that gave it out, but for the root. In requests that Files
// get it is taken off; in answers Files put it on, by Node and Ino. A request about the node of another epoch never comes to
// Files (worker.admit).
//
// # Notices
//
// A notice takes the kernel's lock on the directory, which the request being answered may hold. So it is sent from a
// goroutine of its own, which has a table of descriptors of its own as well (isolate.go).
//
// # Lock order
//
//	loop.open       held for reading while a descriptor is used outside of workers, by a system call that does not wait
//	notifier.mu     leaf
package device
