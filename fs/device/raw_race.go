//go:build race

package device

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Under the race detector the calls go through package unix, which tells the
// detector that a reply happens before the request that follows it.

func rawRead(fd int, p []byte) (int, unix.Errno) {
	n, err := unix.Read(fd, p)
	return n, asErrno(err)
}

func rawWrite(fd int, p []byte) unix.Errno {
	_, err := unix.Write(fd, p)
	return asErrno(err)
}

func asErrno(err error) unix.Errno {
	errno, _ := errors.AsType[unix.Errno](err)
	return errno
}
