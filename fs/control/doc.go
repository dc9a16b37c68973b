// Package control has the files of the control directory, .kvfs: their content, their requests, and the users
// that may open them. It knows neither the kernel's protocol nor the subjects of the files.
//
//	File       one file: a text, or a dialogue. A package that offers a file needs only
//	           this type and StreamJSON
//	Dir        the files of one mount, and the memory that requests to them share
//	Handle     an open file: Read, Write, Close
//	Dialogue   answers one request
//
// Package fs gives the files inode numbers, and answers the kernel's requests about them from a
// Dir and its Handles. Errors are errnos (unix.Errno), as clients get them. A fault in the
// content of a request is reported in the answer: {"error": "why", "field": "/pointer"}.
//
// # A dialogue
//
// A client writes a request to a descriptor. Its first read runs the request and returns the answer, up to its
// end. The next request may follow on the same descriptor. Each request runs on a goroutine of its own. The
// goroutine ends with the descriptor at the latest (Dialogue), and Dir.Wait waits for it.
//
// # Lock order
//
// conversation.mu is a leaf. No handler runs under it.
package control
