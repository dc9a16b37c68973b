package device

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// OpenAbort opens the control file that aborts the connection of a FUSE mount, by the minor number
// of the mount's device. A write to the file fails every waiting and every later request. Once open,
// the file stands for that connection alone, even if another mount gets the number. OpenAbort needs
// the fusectl file system: if it is not mounted, root opens an instance without a mount point.
func OpenAbort(minor int) (*os.File, error) {
	name := filepath.Join(strconv.Itoa(minor), "abort")
	f, err := os.OpenFile(filepath.Join("/sys/fs/fuse/connections", name), os.O_WRONLY, 0)
	if err == nil {
		return f, nil
	}
	dir, private := fusectl()
	if private != nil {
		return nil, errors.Join(err, private)
	}
	defer unix.Close(dir)
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "fusectl:" + name, Err: err}
	}
	return os.NewFile(uintptr(fd), "fusectl:"+name), nil
}

// fusectl returns a descriptor of the root of a fusectl file system without a mount point.
func fusectl() (int, error) {
	fd, err := unix.Fsopen("fusectl", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, os.NewSyscallError("fsopen fusectl", err)
	}
	defer unix.Close(fd)
	if err := unix.FsconfigCreate(fd); err != nil {
		return -1, os.NewSyscallError("fsconfig fusectl", err)
	}
	dir, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("fsmount fusectl", err)
	}
	return dir, nil
}
