package mem

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/driver"
)

// fileName is the name of a blob's file and a zero, as system calls take it. So reading a file of a
// large store allocates nothing for names and walks no path.
type fileName [16 + 1]byte

// nameOf returns the name of a blob's file.
func nameOf(id driver.BlobID) (n fileName) {
	for i := range 16 {
		n[i] = hexDigits[id>>(60-4*i)&15]
	}
	return n
}

// fstatat is unix.Fstatat, and does not follow links.
func fstatat(dir int, n *fileName, st *unix.Stat_t) error {
	_, _, errno := unix.Syscall6(unix.SYS_NEWFSTATAT, uintptr(dir), uintptr(unsafe.Pointer(n)),
		uintptr(unsafe.Pointer(st)), unix.AT_SYMLINK_NOFOLLOW, 0, 0)
	return errOf(errno)
}

// getxattrat is getxattrat(2) of Linux 6.13. It does not follow links. attr ends with a zero, and buf
// is not empty.
func getxattrat(dir int, n *fileName, attr []byte, buf []byte) (int, error) {
	args := struct {
		value       unsafe.Pointer
		size, flags uint32
	}{value: unsafe.Pointer(&buf[0]), size: uint32(len(buf))}
	got, _, errno := unix.Syscall6(unix.SYS_GETXATTRAT, uintptr(dir), uintptr(unsafe.Pointer(n)), unix.AT_SYMLINK_NOFOLLOW,
		uintptr(unsafe.Pointer(&attr[0])), uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args))
	runtime.KeepAlive(buf)
	return int(got), errOf(errno)
}

// hasGetxattrat reports whether the kernel, and what filters its calls, has getxattrat. It asks for
// the record of the lock file, which has none.
func (s *Store) hasGetxattrat() bool {
	var lock fileName
	copy(lock[:], lockName)
	_, err := getxattrat(int(s.root.Fd()), &lock, append([]byte(s.attr), 0), make([]byte, 1))
	return err == unix.ENODATA
}

// errOf returns nil for 0.
func errOf(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}
