package handoff

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// admit returns the credentials of the process at the other end of c. It fails with ErrStranger
// unless that process is of root or of the user of this process.
func admit(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var who *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		who, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	if credErr != nil {
		return nil, os.NewSyscallError("SO_PEERCRED", credErr)
	}
	if who.Uid != 0 && who.Uid != uint32(os.Geteuid()) {
		return who, fmt.Errorf("%w: uid %d, pid %d", ErrStranger, who.Uid, who.Pid)
	}
	return who, nil
}

// process returns a pidfd of the process at the other end of c.
func process(c *net.UnixConn) (pidfd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	inner := raw.Control(func(fd uintptr) {
		pidfd, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	})
	if err = errors.Join(inner, err); err != nil {
		return -1, os.NewSyscallError("SO_PEERPIDFD", err)
	}
	return pidfd, nil
}

// endTime is how long a process may take to end after its connection has ended.
const endTime = 5 * time.Second

// awaitEnd waits until a process has ended and so given up all locks and descriptors. It waits
// at most endTime, because a thread of that process may wait for us. It reports whether the
// process has ended.
func awaitEnd(pidfd int) bool {
	until := time.Now().Add(endTime)
	for left := endTime; left > 0; left = time.Until(until) {
		p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, int(left.Milliseconds())+1)
		if n > 0 {
			return true
		}
		if err != nil && err != unix.EINTR {
			return false
		}
	}
	return false
}
