//go:build giouring

package directio

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"
)

// TestDenied shows, for each io_uring system call that a filter can forbid and both errnos in use, that auto falls
// back to pread with one line that names the errno and the likely cause, and that io_uring fails with them. So it is
// for kernel.io_uring_disabled: the filter says what the kernel would, and a file stands for the sysctl, which would
// deny io_uring to everybody else.
func TestDenied(t *testing.T) {
	for _, c := range []struct {
		name            string
		nr              uint32
		errno           unix.Errno
		call            string
		disabled, cause string
	}{
		{"SetupEPERM", unix.SYS_IO_URING_SETUP, unix.EPERM, "io_uring_setup", "0", "seccomp"},
		{"SetupENOSYS", unix.SYS_IO_URING_SETUP, unix.ENOSYS, "io_uring_setup", "0", "seccomp"},
		{"EnterEPERM", unix.SYS_IO_URING_ENTER, unix.EPERM, "io_uring_enter", "0", "seccomp"},
		{"RegisterENOSYS", unix.SYS_IO_URING_REGISTER, unix.ENOSYS, "io_uring_register", "0", "seccomp"},
		{"Sysctl", unix.SYS_IO_URING_SETUP, unix.EPERM, "io_uring_setup", "2", "kernel.io_uring_disabled is 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inChild(t, func(t *testing.T) {
				if c.nr != unix.SYS_IO_URING_SETUP { // which comes first
					// Closed before: one whose owner had yet to enter the kernel could not end.
					closeEngine(t, openRing(t, Options{}))
				}
				disabledSysctl = filepath.Join(t.TempDir(), "io_uring_disabled")
				must(t, os.WriteFile(disabledSysctl, []byte(c.disabled+"\n"), 0o600))
				if err := forbid(c.nr, c.errno); err != nil {
					t.Skipf("no seccomp: %v", err)
				}
				checkDenied(t, c.errno, c.call, c.cause)
			})
		})
	}
}

// checkDenied opens all kinds of engine where io_uring is denied.
func checkDenied(t *testing.T, errno unix.Errno, call, cause string) {
	t.Helper()
	core, logs := observer.New(zapcore.InfoLevel)
	o := Options{Logger: zap.New(core)}
	for _, o.Engine = range []string{"", EngineAuto, EnginePread} {
		e, err := Open(t.Context(), o)
		must(t, err)
		if e.Name() != EnginePread {
			t.Errorf("engine %q is %s", o.Engine, e.Name())
		}
		if _, err := one(e, Op{Kind: Sync, File: fileWith(t, "", nil)}); err != nil {
			t.Error(err)
		}
		closeEngine(t, e)
	}
	if logs.Len() != 2 {
		t.Errorf("%d lines for two engines that fell back: %v", logs.Len(), logs.All())
	}
	for _, line := range logs.All() {
		text, _ := line.ContextMap()["error"].(string)
		for _, want := range []string{call, errno.Error(), cause} {
			if !strings.Contains(text, want) {
				t.Errorf("line %q %q lacks %q", line.Message, text, want)
			}
		}
	}
	o.Engine = EngineUring
	var sys *os.SyscallError
	if e, err := Open(t.Context(), o); !errors.Is(err, errno) || !errors.As(err, &sys) || sys.Syscall != call || e != nil {
		t.Errorf("io_uring asked for: %v", err)
	}
}

// forbid has every thread of this process get errno from system call nr.
func forbid(nr uint32, errno unix.Errno) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // seccomp_data.nr
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: nr, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&prog)))
	if e != 0 {
		return e
	}
	return nil
}
