// Package device talks to the kernel through /dev/fuse: it mounts, reads the requests, has Files answer them,
// writes the answers, and sends notices. It knows the protocol, and nothing of names, blocks or tiers.
//
//	Session    a mount: its files, which its process keeps and passes from owner to owner
//	Conn       one owner's connection to a mount: from Answer or MountHelper until Leave or the end of the mount
//	Files      answers the requests; package fs implements it
//	Epoch      the owner's number, which is part of each node's
//	FailAll    answers where there is no owner; OpenAbort aborts a mount
//
// A Conn gets its requests in one of two ways. For a Session it reads /dev/fuse itself
// (loop.go), with one thread that answers most requests without waking another. MountHelper is
// go-fuse's server, mounted by fusermount3 for users that may not call mount(2).
//
// # The order of calls
//
//	Answer, MountHelper    the first request, INIT, is answered, or the kernel sends again what an earlier owner left
//	Start                  requests are read; notices are sent, those queued before Start, too
//	Leave                  of a Session: waiting requests are left to the next owner, the others are answered
//	Wait                   the mount is gone
//	Close                  the descriptors are closed
//
// # Numbers of nodes
//
// Files have numbers of their own: blocks below ServiceNodes, other files from there up to
// 1<<42. The kernel sees each number with the Epoch of the owner that gave it out, except the
// root's. Requests reach Files without the epoch; answers of Files must have it (Node, Ino). A
// request about a node of another epoch never reaches Files (worker.admit).
//
// # Notices
//
// A notice takes the kernel's lock on the directory, which the request being answered may hold.
// So a goroutine of its own sends notices, with its own table of descriptors (isolate.go).
//
// # Lock order
//
//	loop.open       held for reading while a descriptor is used outside of workers, by a system call that does not wait
//	notifier.mu     leaf
package device
