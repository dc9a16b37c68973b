package tiers

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// futimens sets the times of an open file; x/sys has only the form with a path.
func futimens(fd int, ts []unix.Timespec) error {
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&ts[0])), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
