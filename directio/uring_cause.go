//go:build giouring

package directio

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// disabledSysctl says which users may use io_uring: 0 all, 1 root and a group, 2 none. It is a
// variable for tests: the sysctl applies to the whole machine.
var disabledSysctl = "/proc/sys/kernel/io_uring_disabled"

// explain adds the likely cause to the error of an io_uring system call.
func explain(syscall string, err error) error {
	err = os.NewSyscallError(syscall, err)
	if why := likelyCause(err); why != "" {
		return fmt.Errorf("%w (%s)", err, why)
	}
	return err
}

func likelyCause(err error) string {
	switch {
	case errors.Is(err, unix.ENOSYS):
		return "kernel older than 5.1, built without io_uring, or a seccomp filter as of a container"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		text, _ := os.ReadFile(disabledSysctl)
		if v := strings.TrimSpace(string(text)); v != "" && v != "0" {
			return "sysctl kernel.io_uring_disabled is " + v
		}
		return "a seccomp filter, as Docker's and containerd's default is"
	case errors.Is(err, unix.ENOMEM):
		return "no memory, or RLIMIT_MEMLOCK too low on Linux before 5.12"
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return "too many open files: RLIMIT_NOFILE"
	}
	return ""
}
