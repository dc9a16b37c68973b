package handoff

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// OpenProc opens the root of a procfs that numbers processes as this process sees them: /proc,
// or, if /proc belongs to an outer pid name space, a new procfs without a mount point.
func OpenProc() (*os.File, error) {
	fd, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		own, err := ownProc("/proc")
		if own {
			return os.NewFile(uintptr(fd), "proc"), nil
		}
		unix.Close(fd)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, err
		}
	}
	ctx, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen proc", err)
	}
	defer unix.Close(ctx)
	if err := unix.FsconfigCreate(ctx); err != nil {
		return nil, os.NewSyscallError("fsconfig proc", err)
	}
	if fd, err = unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, 0); err != nil {
		return nil, os.NewSyscallError("fsmount proc", err)
	}
	return os.NewFile(uintptr(fd), "proc"), nil
}

// ownProc reports whether the procfs at dir is that of this process's pid name space: NSpid
// lists the numbers of a process from that name space inwards.
func ownProc(dir string) (bool, error) {
	text, err := os.ReadFile(dir + "/self/status")
	if err != nil {
		return false, err
	}
	_, rest, found := bytes.Cut(text, []byte("\nNSpid:"))
	line, _, _ := strings.Cut(string(rest), "\n")
	return found && len(strings.Fields(line)) == 1, nil
}

// CheckProc fails unless proc is a procfs: questions about processes to another file system
// could take forever.
func CheckProc(proc *os.File) error {
	raw, err := proc.SyscallConn()
	if err != nil {
		return err
	}
	var st unix.Statfs_t
	var statErr error
	if err := raw.Control(func(fd uintptr) { statErr = unix.Fstatfs(int(fd), &st) }); err != nil {
		return err
	}
	if statErr != nil {
		return os.NewSyscallError("statfs", statErr)
	}
	if st.Type != unix.PROC_SUPER_MAGIC {
		return fmt.Errorf("%w: descriptor %q is of no procfs", ErrMalformed, nameProc)
	}
	return nil
}
