package daemon

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Background starts the command line args, of kvfs mount, as a process of its own session, and returns
// when its mount answers. If it ends before, so does this process, with its code: it has said why.
func Background(ctx context.Context, args []string) error {
	ready, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	args = slices.DeleteFunc(slices.Clone(args), func(arg string) bool {
		return arg == "-d" || arg == "--background" || arg == "--background=true"
	})
	cmd := exec.Command("/proc/self/exe", slices.Insert(args, 1, "--ready-fd=3")...)
	cmd.Args[0] = "kvfs"
	cmd.Stderr, cmd.ExtraFiles = os.Stderr, []*os.File{theirs} // the log goes on
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(unix.SIGTERM) })() // it may have ended
	if _, err := bufio.NewReader(ready).ReadString('\n'); err == nil {
		return cmd.Process.Release()
	}
	err = cmd.Wait()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok && failed.Exited() {
		os.Exit(failed.ExitCode())
	}
	return errors.Join(errors.New("the daemon ended before its mount answered"), err)
}
