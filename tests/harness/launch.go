package harness

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Launchers: helpers that change something about their process and then become the daemon.
// Options.Launch names one, with an argument.

// Launch says how to start a daemon in a restricted process. The zero value
// changes nothing.
type Launch struct {
	MaxFiles  uint64 // RLIMIT_NOFILE; 0: as it is
	NoIOUring bool   // seccomp refuses io_uring_setup with EPERM, as Docker's profile does
}

const launchHelper = "kvfs-launch"

// command returns the program and arguments that start args under l.
func (l Launch) command(args []string) []string {
	if l == (Launch{}) {
		return args
	}
	return append([]string{"/proc/self/exe", fmt.Sprint(l.MaxFiles), fmt.Sprint(l.NoIOUring)}, args...)
}

// launchMain applies the first two of args, the fields of a Launch, and becomes the
// command in the rest.
func launchMain(args []string) int {
	runtime.LockOSThread() // a filter belongs to the thread, and exec keeps it
	err := limit(unix.RLIMIT_NOFILE, args[0])
	if err == nil && args[1] == "true" {
		err = denyIOUring()
	}
	if err == nil {
		err = unix.Exec(args[2], args[2:], withoutHelper())
	}
	fmt.Fprintf(os.Stderr, "launch %q: %v\n", args, err)
	return 127
}

// limit sets a limit of this process, unless it is 0.
func limit(which int, text string) error {
	var n uint64
	if _, err := fmt.Sscan(text, &n); err != nil || n == 0 {
		return err
	}
	if err := unix.Setrlimit(which, &unix.Rlimit{Cur: n, Max: n}); err != nil {
		return fmt.Errorf("setrlimit: %w", err)
	}
	return nil
}

// denyIOUring installs a filter that fails the three system calls of io_uring with EPERM. It needs
// root: otherwise the filter would also remove the setuid bit of fusermount3.
func denyIOUring() error {
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		ret   = unix.BPF_RET | unix.BPF_K
	)
	// Offset 0 of seccomp_data is the number of the system call, which is the
	// same for io_uring on every architecture.
	filter := []unix.SockFilter{
		{Code: load, K: 0},
		{Code: equal, K: unix.SYS_IO_URING_SETUP, Jt: 3},
		{Code: equal, K: unix.SYS_IO_URING_ENTER, Jt: 2},
		{Code: equal, K: unix.SYS_IO_URING_REGISTER, Jt: 1},
		{Code: ret, K: unix.SECCOMP_RET_ALLOW},
		{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0)
	runtime.KeepAlive(filter)
	if err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	return nil
}
