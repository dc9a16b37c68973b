// Package handoff is how a mount and the owner of the memory find and keep each other: the
// unix socket of kvfs serve, what is said over it, and the descriptors that travel with it.
// It knows nothing of FUSE; a descriptor is a descriptor.
//
// # The place
//
// The socket has mode 0600 and lies in a directory of mode 0700 that belongs to the owner's
// user (see Listen). Whoever connects must be root or that user, by SO_PEERCRED; the mount
// asks the same of the owner. A lock on a file next to the socket, NAME.lock, says who
// serves; the kernel gives it up with the process, so what is left of a dead owner is
// replaced, and a second owner is refused while the first one lives.
//
// # The frames
//
// A frame is its length in 4 bytes, big-endian, and that many bytes of JSON: at most 64 KiB,
// for the answer to status at most 16 MiB. Unknown fields are passed over, so that they may
// be added. Descriptors travel with the first byte of a frame.
//
//	owner  {"version":1, "features":[], "pid":7, "release":"v1"}     the greeting, or {"error":"..."}
//	mount  {"version":1, "features":[], "do":"attach", "descriptors":["dev","spin","proc"], "attach":{...}}
//	owner  {"attached":{...}}     or {"error":"..."}, and the end
//	       the life line: nothing is said as long as all is well
//	mount  {"do":"detach"}        please stop answering
//	owner  {"do":"detached"}      done, and the end
//
// With "do":"status" the answer is the owner's status document in one frame, and the end.
//
// The owner greets when it can serve, not when it begins to listen. So a mount that got a
// greeting may hand over its descriptors and need not give up after that: until the
// connection ends they may be in use by the owner, and once it has ended they are not, for
// an owner that lives ends a connection only after it has let go of them.
//
// # Takeover
//
// A daemon with a mount of its own has a socket of the same kind, named after the device number of
// the mount (TakeoverPath), without a lock: no other daemon has that number.
//
//	old  {"version":1, "features":[], "pid":7, "release":"v1", "mount":{...}}   the greeting says what cannot change
//	new  {"version":1, "features":[], "do":"takeover"}                          or it goes, and nothing has happened
//	old  {"handed":{...}, "descriptors":["dev","spin"]}                         it has closed all, and waits
//	new  {"do":"serving"}                                                       old ends
//	     or {"do":"failed", "error":"..."}, upon which old opens all again:
//	old  {"do":"taken back"}                                                    or {"error":"..."}
//
// If the connection ends before "serving" it is as if the new one had failed.
//
// # Versions
//
// Version 1 is the only one. Sides of different versions refuse each other. What may be there
// or not within a version is a feature: each side lists what it knows, and what both know is
// in effect (Greeting.Features, Request.Features).
package handoff
