// Package control has the files of the control directory, .kvfs: what is read from them and
// written to them, and by whom. It knows neither the kernel's protocol nor what the files are about.
//
//	File       one file: a text, or a dialogue. Who offers one needs no more of this package,
//	           and of StreamJSON.
//	Dir        the files of one mount, and the memory that requests to them share
//	Handle     an open file: Read, Write, Close
//	Dialogue   answers one request
//
// Package fs gives the files inode numbers and answers the kernel's requests about them with what a Dir
// and its Handles say. Errors are errnos (unix.Errno), as clients get them; what is wrong with the content of a
// request is told in the answer, which is then {"error": "why", "field": "/pointer"}.
//
// # A dialogue
//
// What is written to a descriptor is a request, until the first read, which runs it. What is read then is the
// answer, up to its end. The next request may follow on the same descriptor. Each request runs on a goroutine
// of its own, which ends with the descriptor at the latest (Dialogue), and which Dir.Wait waits for.
//
// # Lock order
//
// conversation.mu is a leaf. No handler runs under it.
package control
