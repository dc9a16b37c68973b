package store

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// admit returns who is at the other end of c, and ErrStranger unless that is root or the
// user of this process.
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
