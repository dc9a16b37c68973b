package daemon

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// QuietFlag is the flag of kvfs mount with which kvfs mount -d says that nobody reads the log after the start.
const QuietFlag = "log-until-ready"

// Background starts kvfs mount with args as a process in a new session, and returns when its
// mount answers. If that process ends before, Background ends this process with its exit code;
// the other process has logged the reason.
func Background(ctx context.Context, args []string) error {
	ready, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	args = slices.DeleteFunc(slices.Clone(args), func(arg string) bool {
		return arg == "-d" || arg == "--background" || arg == "--background=true"
	})
	args = slices.Insert(args, 1, "--ready-fd=3")
	log := os.Stderr // the log goes on
	if isPipe(log) {
		if log, err = logFile(); err != nil {
			return errors.Join(err, theirs.Close())
		}
		defer log.Close()
		args = slices.Insert(args, 1, "--"+QuietFlag)
	}
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = "kvfs"
	cmd.Stderr, cmd.ExtraFiles = log, []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(unix.SIGTERM) })() // the process may have ended
	if _, err := bufio.NewReader(ready).ReadString('\n'); err == nil {
		tellLog(log)
		if log != os.Stderr {
			fmt.Fprintln(os.Stderr, "kvfs: the daemon logs no more, because standard error is a pipe; to keep the log, redirect it to a file")
		}
		return cmd.Process.Release()
	}
	err = cmd.Wait()
	tellLog(log)
	if failed, ok := errors.AsType[*exec.ExitError](err); ok && failed.Exited() {
		os.Exit(failed.ExitCode())
	}
	return errors.Join(errors.New("the daemon ended before its mount answered"), err)
}

// isPipe reports whether f is a pipe or a socket, as from a shell with | or from ssh. Their
// reader waits until no process has it open.
func isPipe(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0
}

// logFile returns a file in memory for the log of a daemon until it is ready. The daemon cannot
// have the pipe itself: one of its threads keeps the standard error of the start (fs).
func logFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("kvfs-log", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), "kvfs-log"), nil
}

// tellLog writes the content of log, unless log is standard error.
func tellLog(log *os.File) {
	if log != os.Stderr {
		_, _ = io.Copy(os.Stderr, io.NewSectionReader(log, 0, math.MaxInt64)) // the reader may be gone
	}
}

// dropLog redirects the standard error of this process to nowhere.
func dropLog() error {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	return os.NewSyscallError("dup3", unix.Dup3(int(null.Fd()), int(os.Stderr.Fd()), 0))
}
