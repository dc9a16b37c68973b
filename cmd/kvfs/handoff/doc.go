// Package handoff connects mounts and the owner of the memory: the unix socket of kvfs serve,
// the messages over it, and the descriptors that travel with them. It knows nothing of FUSE.
//
// # The socket
//
// The socket has mode 0600, in a directory of mode 0700 that belongs to the owner's user (see
// Listen). A connecting process must be of root or of that user, by SO_PEERCRED; the mount
// requires the same of the owner. An owner holds a lock on a file next to the socket,
// NAME.lock.
// The kernel releases the lock when the process ends. So the socket of a dead owner is
// replaced, and a second owner is refused while the first one lives.
//
// # The frames
//
// A frame is its length in 4 bytes, big-endian, and that many bytes of JSON: at most 64 KiB, or
// 16 MiB for the answer to status. Unknown fields are ignored, so that fields may be added.
// Descriptors travel with the first byte of a frame.
//
//	owner  {"version":1, "features":[], "pid":7, "release":"v1"}     the greeting, or {"error":"..."}
//	mount  {"version":1, "features":[], "do":"attach", "descriptors":["dev","spin","proc"], "attach":{...}}
//	owner  {"attached":{...}}     or {"error":"..."}, and the end
//	       the life line: nothing is said as long as all is well
//	mount  {"do":"detach"}        please stop answering
//	owner  {"do":"detached"}      done, and the end
//
// A mount with "keep":true stays when its process ends without "detach". The next process asks for it by its directory,
// on a connection that is the life line from then on:
//
//	mount  {"version":1, "features":[], "do":"resume", "dir":"/mnt/kv"}
//	owner  {"attached":{...}, "handed":{...}, "descriptors":["dev","spin"]}     or {"error":"..."}, and the end
//
// So such a mount outlives its process as long as the owner lives, and the owner as long as the process lives.
//
// With "do":"status" the answer is the owner's status document in one frame, and the end.
//
// The owner greets when it can serve, not when it begins to listen. So a mount that got a
// greeting may hand over its descriptors. The owner may use them until the connection ends, and
// not after that: a living owner closes a connection only after it has let go of the
// descriptors.
//
// # Takeover
//
// A daemon with a mount of its own has a socket of the same kind, named after the device number
// of the mount (TakeoverPath). It needs no lock: no other daemon has that number.
//
//	old  {"version":1, "features":[], "pid":7, "release":"v1", "mount":{...}}   what cannot change
//	new  {"version":1, "features":[], "do":"takeover"}                          or new closes: nothing has happened
//	old  {"handed":{...}, "descriptors":["dev","spin"]}                         old has closed everything, and waits
//	new  {"do":"serving"}                                                       old ends
//	     or {"do":"failed", "error":"..."}: old opens everything again
//	old  {"do":"taken back"}                                                    or {"error":"..."}
//
// A connection that ends before "serving" counts as "failed".
//
// # Versions
//
// Version 1 is the only one. Sides of different versions refuse each other. An optional part of
// a version is a feature: each side lists the features that it knows, and those that both know
// are in effect (Greeting.Features, Request.Features).
package handoff
