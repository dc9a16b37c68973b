package harness

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// accessAt is the faccessat system call behind access(3) on every platform.
func accessAt(path *byte, mode uint32) error {
	cwd := unix.AT_FDCWD
	_, _, errno := unix.Syscall6(unix.SYS_FACCESSAT, uintptr(cwd), uintptr(unsafe.Pointer(path)), uintptr(mode), 0, 0, 0)
	runtime.KeepAlive(path)
	if errno != 0 {
		return errno
	}
	return nil
}
